"""Images with boxes around their objects, and the refusal of boxes that cannot be meant."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from eqco.runtime.errors import InputError

__all__ = ["AnnotatedImages", "GivenBox", "GivenImage", "Objects", "annotated", "refuse"]

OnBadBoxes = Literal["error", "skip"]

# Rounding, and coordinates that count from 1, put boxes this many pixels over an edge. They are
# cut there; what reaches farther is a fault.
OVERHANG = 1.0
NAMED = 5  # faults that a refusal names; the others are counted


class Objects(NamedTuple):
    """What is in one image."""

    boxes: Tensor
    """Left, top, right, bottom in pixels, (n, 4)."""
    labels: Tensor
    """1 for the first class, (n,)."""
    areas: Tensor
    """Pixels of the object, by which COCO calls it small, medium or large, (n,)."""
    crowd: Tensor
    """Whether it is neither trained on nor counted, (n,) bool."""


@dataclass(frozen=True, kw_only=True)
class AnnotatedImages:
    """Files of images and the objects in them; the objects of all images in one table."""

    name: str
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    sizes: tuple[tuple[int, int], ...]
    """Height and width of each, as its annotation says."""
    table: Objects
    first: tuple[int, ...]
    """Where the objects of each image begin in the table; the last entry is its length."""
    left_out: int = 0
    """Boxes with a fault that were left out on request."""

    def __len__(self) -> int:
        return len(self.files)

    def objects(self, number: int) -> Objects:
        """The objects of one image."""
        rows = slice(self.first[number], self.first[number + 1])
        return Objects(*(column[rows] for column in self.table))


class GivenBox(NamedTuple):
    """One box as a file tells it, unchecked."""

    name: str
    """What a refusal calls it."""
    corners: tuple[float, float, float, float]
    label: int
    area: float
    crowd: bool


class GivenImage(NamedTuple):
    """One image as a file tells it."""

    file: Path
    height: int
    width: int
    boxes: list[GivenBox]


def annotated(
    name: str,
    classes: Sequence[str],
    images: Sequence[GivenImage],
    *,
    on_bad_boxes: OnBadBoxes = "error",
) -> AnnotatedImages:
    """Checked images and boxes as one value.

    Args:
        name: the file or folder they come from.
        classes: names; label 1 is the first.
        images: in the order in which they are numbered from 0. One without boxes is as good as any.
        on_bad_boxes: refuse them all if a box is empty, inverted or outside its image, or leave
            such boxes out.
    """
    if not images:
        raise InputError(f"{name} has no images.")
    missing = [str(image.file) for image in images if not image.file.is_file()]
    if missing:
        raise InputError(
            f"{name}: {refuse(missing, 'image', 'missing')}. Put the files there, or remove the "
            f"images from the annotations."
        )
    bad: dict[str, list[str]] = {"empty or inverted": [], "outside the image": []}
    table: list[GivenBox] = []
    first = [0]
    for image in images:
        for box in image.boxes:
            fault = fault_of(box.corners, image.height, image.width)
            if fault is None:
                table.append(box._replace(corners=cut(box.corners, image.height, image.width)))
            else:
                bad[fault].append(f"{box.name} of {image.file.name} {list(box.corners)}")
        first.append(len(table))
    if any(bad.values()) and on_bad_boxes == "error":
        told = "; ".join(refuse(names, "box", fault) for fault, names in bad.items() if names)
        raise InputError(
            f"{name}: {told} (left, top, right, bottom). Mend them, or leave them out with "
            f"--on-bad-boxes skip."
        )
    return AnnotatedImages(
        name=name,
        classes=tuple(classes),
        files=tuple(image.file for image in images),
        sizes=tuple((image.height, image.width) for image in images),
        table=Objects(
            torch.tensor([box.corners for box in table], dtype=torch.float32).reshape(-1, 4),
            torch.tensor([box.label for box in table], dtype=torch.int64),
            torch.tensor([box.area for box in table], dtype=torch.float32),
            torch.tensor([box.crowd for box in table], dtype=torch.bool),
        ),
        first=tuple(first),
        left_out=sum(map(len, bad.values())),
    )


def fault_of(corners: tuple[float, ...], height: int, width: int) -> str | None:
    """What is wrong with a box in an image of this size, or None.

    >>> fault_of((0, 0, 10, 5), 5, 10), fault_of((3, 0, 3, 5), 5, 10)
    (None, 'empty or inverted')
    >>> fault_of((0, 0, 12, 5), 5, 10)
    'outside the image'
    """
    left, top, right, bottom = corners
    if not (right > left and bottom > top):  # NaN too
        return "empty or inverted"
    if left < -OVERHANG or top < -OVERHANG:
        return "outside the image"
    if right > width + OVERHANG or bottom > height + OVERHANG:
        return "outside the image"
    left, top, right, bottom = cut((left, top, right, bottom), height, width)
    return None if right > left and bottom > top else "outside the image"


def cut(
    corners: tuple[float, float, float, float], height: int, width: int
) -> tuple[float, float, float, float]:
    """The part of a box that is in the image."""
    left, top, right, bottom = corners
    return max(left, 0), max(top, 0), min(right, width), min(bottom, height)


def refuse(names: Sequence[str], noun: str, fault: str) -> str:
    """How many have a fault, and the first of them by name.

    >>> refuse(["a.jpg", "b.jpg"], "image", "missing")
    '2 images are missing: a.jpg, b.jpg'
    """
    plural = {"box": "boxes", "category": "categories"}.get(noun, f"{noun}s")
    count = f"1 {noun} is" if len(names) == 1 else f"{len(names)} {plural} are"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{count} {fault}: {', '.join(names[:NAMED])}{more}"
