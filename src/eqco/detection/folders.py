"""A folder of annotated images, in COCO's or Pascal VOC's form, split by split."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from eqco.detection.annotations import AnnotatedImages, OnBadBoxes
from eqco.detection.coco import read_coco
from eqco.detection.voc import read_voc
from eqco.runtime.errors import InputError

__all__ = ["open_annotated", "splits_of"]

FORMS = (
    "COCO: instances_SPLIT.json here or in annotations/, images in SPLIT/ (or images/SPLIT/); or "
    "SPLIT/_annotations.coco.json beside its images. Pascal VOC: Annotations/, JPEGImages/ and "
    "ImageSets/Main/SPLIT.txt"
)
Reader = Callable[..., AnnotatedImages]


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
