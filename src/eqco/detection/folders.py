"""A folder of annotated images, in COCO's or Pascal VOC's form, split by split."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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

__all__ = ["open_annotated", "splits_of"]

FORMS = (
    "COCO: instances_SPLIT.json here or in annotations/, images in SPLIT/ (or images/SPLIT/); or "
    "SPLIT/_annotations.coco.json beside its images. Pascal VOC: Annotations/, JPEGImages/ and "
    "ImageSets/Main/SPLIT.txt"
)
Reader = Callable[..., AnnotatedImages]
# the keys that entries of each list in a COCO file must have
REQUIRED = {
    "images": {"id", "file_name", "height", "width"},
    "annotations": {"image_id", "category_id", "bbox"},
    "categories": {"id", "name"},
}


def open_annotated(
    folder: Path, split: str, *, on_bad_boxes: OnBadBoxes = "error"
) -> AnnotatedImages:
    """One split of a folder; a year in its name (train2017) may be left out."""
    splits = splits_of(folder)
    if split not in splits:
        raise InputError(
            f"{folder} has no split {split!r}. It has {', '.join(splits)}: choose by --train-split "
            f"and --test-split."
        )
    return splits[split](on_bad_boxes=on_bad_boxes)


def splits_of(folder: Path) -> dict[str, Reader]:
    """What reads each split that is there."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}. Expected is one of: {FORMS}.")
    found: dict[str, Reader] = {}
    for lists in sorted((folder / "ImageSets" / "Main").glob("*.txt")):
        if "_" not in lists.stem:  # VOC has a list for each class too, such as cat_train
            found[lists.stem] = partial(read_voc, folder, lists.stem)
    for file in sorted(folder.glob("*/_annotations.coco.json")):
        found[file.parent.name] = partial(read_coco, file, file.parent)
    for place in (folder / "annotations", folder):
        for file in sorted(place.glob("instances_*.json")):
            split = file.stem.removeprefix("instances_")
            images = next(
                (at for at in (folder / split, folder / "images" / split) if at.is_dir()),
                folder / split,
            )
            found[re.sub(r"\d{4}$", "", split) or split] = partial(read_coco, file, images)
    if not found:
        raise InputError(f"{folder} holds no annotations. Expected is one of: {FORMS}.")
    return found


def read_coco(file: Path, folder: Path, *, on_bad_boxes: OnBadBoxes = "error") -> AnnotatedImages:
    """A split in COCO's form: a JSON file, and the folder of the images that it names.

    Labels are the categories in the order of their ids, 1 for the first. Regions marked `iscrowd`
    are kept for the evaluation, which passes them over.
    """
    content = parse_coco(file)
    names = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
    label = {number: place for place, number in enumerate(sorted(names), start=1)}
    images = {entry["id"]: entry for entry in content["images"]}
    twice = len(content["images"]) - len(images)
    if twice:
        raise InputError(f"{file}: {twice} images have an id that another has. Number them anew.")
    boxes: dict[Any, list[UncheckedBox]] = {number: [] for number in images}
    unknown: list[str] = []
    nowhere: list[str] = []
    for entry in content["annotations"]:
        name = f"annotation {entry.get('id', '?')}"
        if entry["image_id"] not in images:
            nowhere.append(f"{name} (image_id {entry['image_id']})")
        elif entry["category_id"] not in label:
            where = images[entry["image_id"]]["file_name"]
            unknown.append(f"{name} of {where} (category_id {entry['category_id']})")
        else:
            box = unchecked_box(file, entry, name, label[entry["category_id"]])
            boxes[entry["image_id"]].append(box)
    if unknown:
        raise InputError(
            f"{file}: {list_faults(unknown, 'annotation', 'of unknown categories')}. The "
            f"categories are {', '.join(f'{n} {name}' for n, name in sorted(names.items()))}."
        )
    if nowhere:
        raise InputError(
            f"{file}: {list_faults(nowhere, 'annotation', 'of images that are not there')}."
        )
    return check_annotations(
        str(file),
        [names[number] for number in sorted(names)],
        [
            UncheckedImage(folder / e["file_name"], int(e["height"]), int(e["width"]), boxes[n])
            for n, e in images.items()
        ],
        on_bad_boxes=on_bad_boxes,
    )


def parse_coco(file: Path) -> dict[str, Any]:
    """The three lists that the JSON must have, each entry with the keys that it must have."""
    try:
        content = json.loads(file.read_text())
        lists = {name: list(content[name]) for name in REQUIRED}
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} is not in COCO's form ({type(error).__name__}: {error}); it needs images, "
            f"annotations and categories."
        ) from error
    for name, keys in REQUIRED.items():
        for place, entry in enumerate(lists[name]):
            if not isinstance(entry, dict) or not keys <= entry.keys():
                raise InputError(
                    f"{file}: entry {place} of {name} lacks one of {', '.join(sorted(keys))}."
                )
    return lists


def unchecked_box(file: Path, entry: dict[str, Any], name: str, label: int) -> UncheckedBox:
    """One annotation; its area is the box's where the file gives none."""
    try:
        left, top, width, height = map(float, entry["bbox"])
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{file}: bbox={entry['bbox']} of {name}; it must be left, top, width, height."
        ) from error
    corners = (left, top, left + width, top + height)
    area = float(entry.get("area", width * height))
    return UncheckedBox(name, corners, label, area, bool(entry.get("iscrowd", 0)))


def read_voc(folder: Path, split: str, *, on_bad_boxes: OnBadBoxes = "error") -> AnnotatedImages:
    """A split in Pascal VOC's form: a list of names in ImageSets/Main, an XML file for each image.

    Classes are all names that occur in Annotations, in alphabetical order. VOC's pixels count from
    1 and boxes include their last one. Objects marked `difficult` are neither trained on nor
    counted.
    """
    names = (folder / "ImageSets" / "Main" / f"{split}.txt").read_text().split()
    files = sorted((folder / "Annotations").glob("*.xml"))
    parsed = {file.stem: parse_voc(file) for file in files}
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


def parse_voc(file: Path) -> ElementTree.Element:
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
