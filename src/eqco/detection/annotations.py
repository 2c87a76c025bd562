"""Images with boxes around their objects, and the refusal of boxes that cannot be meant."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from eqco.runtime.errors import InputError

__all__ = ["AnnotatedImages", "Objects", "check_annotations"]

OnBadBoxes = Literal["error", "skip"]

# Rounding, and coordinates that count from 1, put boxes this many pixels over an edge. They are
# clipped there; what reaches farther is a fault.
OVERHANG = 1.0
NAMED = 5  # faults that a refusal names; the others are counted


class Objects(NamedTuple):
    """What is in one image."""

    boxes: Tensor  # left, top, right, bottom in pixels, (n, 4)
    labels: Tensor  # 1 for the first class, (n,)
    areas: Tensor  # pixels of the object, by which COCO calls it small, medium or large, (n,)
    crowd: Tensor  # whether it is neither trained on nor counted, (n,) bool


@dataclass(frozen=True, kw_only=True)
class AnnotatedImages:
    """Files of images and the objects in them; the objects of all images in one table."""

    name: str
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    sizes: tuple[tuple[int, int], ...]  # height and width of each, as its annotation says
    table: Objects
    first: tuple[int, ...]  # where each image's objects begin in the table, and its length
    left_out: int = 0  # boxes with a fault that were left out on request

    def __len__(self) -> int:
        return len(self.files)

    def objects(self, number: int) -> Objects:
        """The objects of one image."""
        rows = slice(self.first[number], self.first[number + 1])
        return Objects(*(column[rows] for column in self.table))


class UncheckedBox(NamedTuple):
    """One box as a file has it."""

    name: str  # what an error calls it
    corners: tuple[float, float, float, float]
    label: int
    area: float
    crowd: bool


class UncheckedImage(NamedTuple):
    """One image as a file has it."""

    file: Path
    height: int
    width: int
    boxes: list[UncheckedBox]


def check_annotations(
    name: str,
    classes: Sequence[str],
    images: Sequence[UncheckedImage],
    *,
    on_bad_boxes: OnBadBoxes = "error",
) -> AnnotatedImages:
    """Checked images and boxes as one value; `name` is the file or folder they come from.

    Label 1 is the first of `classes`; images are numbered from 0, and may have no boxes. Boxes that
    are empty, inverted or outside their image are refused, or left out on request.
    """
    if not images:
        raise InputError(f"{name} has no images.")
    missing = [str(image.file) for image in images if not image.file.is_file()]
    if missing:
        raise InputError(
            f"{name}: {list_faults(missing, 'image', 'missing')}. Put the files there, or remove "
            f"the images from the annotations."
        )
    boxes = [box for image in images for box in image.boxes]
    owners = [number for number, image in enumerate(images) for _ in image.boxes]
    corners = torch.tensor([box.corners for box in boxes], dtype=torch.float64).reshape(-1, 4)
    sizes = torch.tensor([(images[n].width, images[n].height) for n in owners]).reshape(-1, 2)
    clipped, empty, outside = clip(corners, sizes)
    faults = {"empty or inverted": empty, "outside the image": outside}
    if on_bad_boxes == "error" and (empty | outside).any():
        found = "; ".join(
            list_faults(
                [
                    f"{boxes[n].name} of {images[owners[n]].file.name} {list(boxes[n].corners)}"
                    for n in bad.nonzero().flatten().tolist()
                ],
                "box",
                fault,
            )
            for fault, bad in faults.items()
            if bad.any()
        )
        raise InputError(
            f"{name}: {found} (left, top, right, bottom). Correct them, or leave them out with "
            f"--on-bad-boxes skip."
        )
    good = ~(empty | outside)
    counts = torch.tensor(owners, dtype=torch.int64)[good].bincount(minlength=len(images))
    return AnnotatedImages(
        name=name,
        classes=tuple(classes),
        files=tuple(image.file for image in images),
        sizes=tuple((image.height, image.width) for image in images),
        table=Objects(
            clipped[good].float(),
            torch.tensor([box.label for box in boxes], dtype=torch.int64)[good],
            torch.tensor([box.area for box in boxes], dtype=torch.float32)[good],
            torch.tensor([box.crowd for box in boxes], dtype=torch.bool)[good],
        ),
        first=(0, *counts.cumsum(0).tolist()),
        left_out=int((~good).sum()),
    )


def clip(corners: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes (n, 4) cut to their images of width and height (n, 2), and which are empty, outside.

    >>> boxes = torch.tensor([[0.0, 0, 10, 6], [3, 0, 3, 5], [0, 0, 12, 5]])
    >>> [found.tolist() for found in clip(boxes, torch.tensor([[10.0, 5]] * 3))[1:]]
    [[False, True, False], [False, False, True]]
    """
    low, high = corners.split(2, dim=1)
    inside = low.clamp(min=0), torch.minimum(high, sizes)
    empty = ~(high > low).all(1)  # NaN too
    near = ((low >= -OVERHANG) & (high <= sizes + OVERHANG) & (inside[1] > inside[0])).all(1)
    return torch.cat(inside, dim=1), empty, ~empty & ~near


def list_faults(names: Sequence[str], noun: str, fault: str) -> str:
    """How many have a fault, and the first of them by name.

    >>> list_faults(["a.jpg", "b.jpg"], "image", "missing")
    '2 images are missing: a.jpg, b.jpg'
    """
    plural = "boxes" if noun == "box" else f"{noun}s"
    count = f"1 {noun} is" if len(names) == 1 else f"{len(names)} {plural} are"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{count} {fault}: {', '.join(names[:NAMED])}{more}"
