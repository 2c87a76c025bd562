"""Annotations in COCO's form: one JSON file for a split, images in a folder."""

import json
from pathlib import Path
from typing import Any

from eqco.detection.annotations import (
    AnnotatedImages,
    OnBadBoxes,
    UncheckedBox,
    UncheckedImage,
    check_annotations,
    list_faults,
)
from eqco.runtime.errors import InputError

__all__ = ["read_coco"]

REQUIRED = {
    "images": {"id", "file_name", "height", "width"},
    "annotations": {"image_id", "category_id", "bbox"},
    "categories": {"id", "name"},
}


def read_coco(file: Path, folder: Path, *, on_bad_boxes: OnBadBoxes = "error") -> AnnotatedImages:
    """A split of a data set in COCO's form.

    Labels are the categories in the order of their ids, 1 for the first. Regions marked `iscrowd`
    are kept for the evaluation, which passes them over.

    Args:
        file: JSON with `images`, `annotations` and `categories`; a box is left, top, width,
            height.
        folder: where `file_name` of an image is looked up.
        on_bad_boxes: refuse boxes with a fault, or leave them out.
    """
    content = parse(file)
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


def parse(file: Path) -> dict[str, Any]:
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
