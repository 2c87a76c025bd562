"""What the data hand to the methods."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Views"]


@dataclass(frozen=True)
class Views:
    """Two views of each of N images."""

    first: Tensor  # (N, C, H, W)
    second: Tensor  # (N, C, H, W)
    index: Tensor  # (N,) number of each image in its split
