"""Features of a frozen encoder, in the order of the images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from eqco.data import EvaluationLoader, Split
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["Features", "extract_features"]


@dataclass(frozen=True)
class Features:
    """Features and labels of a split: values (N, D), labels (N,), and the classes' names."""

    values: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()  # empty where they are not known


@torch.no_grad()
def extract_features(
    encode: Callable[[Tensor], Tensor],
    split: Split,
    *,
    size: int,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    workers: int = 0,
    on_unreadable: Literal["error", "skip"] = "error",
    advance: Callable[[int], None] = lambda count: None,
) -> Features:
    """What `encode` makes of every image, seen through the evaluation pipeline.

    Each image counts for itself: the features of `split.subset(…)` are those rows. Several
    processes see a share of the images each, and all get the features of all.

    Args:
        encode: images (n, C, size, size) to features (n, D); an encoder in eval mode.
        split: labelled images.
        size: pixels along each side.
        batch_size: images at a time.
        device: where to compute.
        workers: processes that decode images on disk.
        on_unreadable: stop at an image that cannot be read, or leave it out.
        advance: takes the number of images done since it was called last.
    """
    if split.labels is None:
        raise InputError(
            f"the split {split.name!r} has no labels, so that nothing can be tested. Give a folder "
            f"with a subfolder for each class."
        )
    loader = EvaluationLoader(
        own_share(split),
        size=size,
        batch_size=batch_size,
        device=device,
        workers=workers,
        on_unreadable=on_unreadable,
    )
    seen = []
    for images, truth in loader:
        seen.append((encode(images).float().cpu(), truth.cpu()))
        advance(len(truth))
    # a process whose images are all left out learns the size of a feature from the others
    size_of_one = seen[0][0].shape[1] if seen else 0
    size_of_one = int(processes.gather(torch.tensor([size_of_one])).max())
    if size_of_one == 0:
        raise InputError(f"none of the {len(split)} images of {split.name!r} can be read.")
    values = torch.cat([torch.empty(0, size_of_one), *(each for each, _ in seen)])
    labels = torch.cat([torch.empty(0, dtype=torch.long), *(each for _, each in seen)])
    if len(split) < processes.world_size():
        return Features(values, labels, split.classes)
    values, labels = processes.gather_uneven(values), processes.gather_uneven(labels)
    return Features(values, labels, split.classes)


def own_share(split: Split) -> Split:
    """The images of this process: as many as the others', or all if there are fewer than those."""
    count, number = processes.world_size(), processes.rank()
    if count == 1 or len(split) < count:
        return split
    first, last = (len(split) * place // count for place in (number, number + 1))
    return split.subset(range(first, last))
