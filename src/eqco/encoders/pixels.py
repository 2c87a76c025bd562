"""Pixels and colours in place of features: what every encoder must beat."""

import torch
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["ColourHistogram", "Pixels"]


class Pixels(nn.Module):
    """A backbone that does nothing: (N, channels, size, size) -> (N, channels·size²).

    >>> Pixels(8).feature_dim
    192
    """

    def __init__(self, size: int, channels: int = 3) -> None:
        super().__init__()
        if size < 1:
            raise InputError(f"pixels of image_size={size}; it must be 1 or more.")
        self.in_channels: int = channels
        self.feature_dim: int = channels * size * size

    def forward(self, images: Tensor) -> Tensor:
        """The pixels of each image in a row."""
        return images.flatten(1)


class ColourHistogram(nn.Module):
    """How often each colour occurs: (N, channels, H, W) -> (N, bins^channels), square roots.

    Red, green and blue are counted together, 8 × 8 × 8 colours; other bands one by one, 32 steps
    each. Square roots, so that the inner product of two images is Bhattacharyya's coefficient.
    `mean` and `std` are those that the images were normalised by.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.in_channels: int = len(mean)
        self.bins: int = 8 if self.in_channels == 3 else 32
        self.feature_dim: int = 512 if self.in_channels == 3 else 32 * self.in_channels
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Square roots of the share of each colour among the pixels."""
        levels = (images * self.std + self.mean).mul(self.bins).long().clamp(0, self.bins - 1)
        if self.in_channels == 3:
            places = (levels[:, 0] * self.bins + levels[:, 1]) * self.bins + levels[:, 2]
            places = places.flatten(1)
        else:
            offsets = torch.arange(self.in_channels, device=images.device).view(-1, 1, 1)
            places = (levels + offsets * self.bins).flatten(1)
        counts = images.new_zeros(len(images), self.feature_dim)
        counts.scatter_add_(1, places, torch.ones_like(places, dtype=counts.dtype))
        return (counts / places.shape[1]).sqrt()
