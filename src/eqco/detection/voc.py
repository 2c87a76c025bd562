"""Annotations in Pascal VOC's form: an XML file for each image, splits as lists of names."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from eqco.data.decoding import EXTENSIONS
from eqco.detection.annotations import (
    AnnotatedImages,
    OnBadBoxes,
    UncheckedBox,
    UncheckedImage,
    check_annotations,
    list_faults,
)
from eqco.runtime.errors import InputError

__all__ = ["read_voc"]


def read_voc(folder: Path, split: str, *, on_bad_boxes: OnBadBoxes = "error") -> AnnotatedImages:
    """A split of a folder with Annotations, JPEGImages and ImageSets/Main.

    Classes are all names that occur in Annotations, in alphabetical order. VOC's pixels count from
    1 and boxes include their last one. Objects marked `difficult` are neither trained on nor
    counted.

    Args:
        folder: such as VOCdevkit/VOC2007.
        split: the name of a list in ImageSets/Main, without `.txt`.
        on_bad_boxes: refuse boxes with a fault, or leave them out.
    """
    names = (folder / "ImageSets" / "Main" / f"{split}.txt").read_text().split()
    files = sorted((folder / "Annotations").glob("*.xml"))
    parsed = {file.stem: parse(file) for file in files}
    lacking = [name for name in names if name not in parsed]
    if lacking:
        raise InputError(
            f"{folder}: {list_faults(lacking, 'image', 'listed without a file in Annotations')}."
        )
    every = (name.text or "" for root in parsed.values() for name in root.iterfind("object/name"))
    classes = sorted(set(every))
    label = {name: place for place, name in enumerate(classes, start=1)}
    images = [unchecked_image(folder, name, parsed[name], label) for name in names]
    return check_annotations(f"{folder}, {split}", classes, images, on_bad_boxes=on_bad_boxes)


def parse(file: Path) -> ElementTree.Element:
    """The root of one XML file."""
    try:
        return ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise InputError(f"{file} is damaged ({error}). Restore it or remove it.") from error


def unchecked_image(
    folder: Path, name: str, root: ElementTree.Element, label: dict[str, int]
) -> UncheckedImage:
    """One image with its objects."""
    try:
        boxes = []
        for place, entry in enumerate(root.iterfind("object"), start=1):
            left, top, right, bottom = (
                float(text_at(entry, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            corners = (left - 1, top - 1, right, bottom)
            area = (right - left + 1) * (bottom - top + 1)
            difficult = entry.findtext("difficult", "0").strip() == "1"
            which = label[entry.findtext("name") or ""]
            boxes.append(UncheckedBox(f"object {place}", corners, which, area, difficult))
        height, width = (int(text_at(root, f"size/{side}")) for side in ("height", "width"))
    except ValueError as error:
        raise InputError(f"{folder / 'Annotations' / name}.xml: {error}.") from error
    return UncheckedImage(image_file(folder / "JPEGImages", name), height, width, boxes)


def text_at(entry: ElementTree.Element, path: str) -> str:
    """The text at a path that must be there."""
    text = entry.findtext(path)
    if text is None:
        raise ValueError(f"it has no {path}")
    return text


def image_file(folder: Path, name: str) -> Path:
    """The file of that name, whatever kind of image it is."""
    found = (folder / f"{name}{suffix}" for suffix in EXTENSIONS)
    return next((file for file in found if file.is_file()), folder / f"{name}.jpg")
