"""Features of a frozen encoder, in the order of the images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from eqco.data import EvaluationLoader, Split
from eqco.runtime.errors import InputError

__all__ = ["Features", "extract_features", "pixel_features"]


@dataclass(frozen=True)
class Features:
    """Features and labels of a split: values (N, D), labels (N,)."""

    values: Tensor
    labels: Tensor


@torch.no_grad()
def extract_features(
    encode: Callable[[Tensor], Tensor],
    split: Split,
    *,
    size: int,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    on_unreadable: Literal["error", "skip"] = "error",
) -> Features:
    """What `encode` makes of every image, seen through the evaluation pipeline.

    Args:
        encode: images (n, 3, size, size) to features (n, D); an encoder in eval mode.
        split: labelled images.
        size: pixels along each side.
        batch_size: images at a time.
        device: where to compute.
        on_unreadable: stop at an image that cannot be read, or leave it out.
    """
    if split.labels is None:
        raise InputError(f"split {split.name!r} has no labels; a probe needs them.")
    loader = EvaluationLoader(
        split, size=size, batch_size=batch_size, device=device, on_unreadable=on_unreadable
    )
    seen = [(encode(images).float().cpu(), labels.cpu()) for images, labels in loader]
    values, labels = zip(*seen, strict=True)
    return Features(torch.cat(values), torch.cat(labels))


def pixel_features(split: Split, *, size: int = 32) -> Features:
    """The pixels themselves as features: what an encoder must beat."""
    return extract_features(lambda images: images.flatten(1), split, size=size)
