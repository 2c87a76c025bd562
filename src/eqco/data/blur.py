"""Gaussian blur of a whole batch, each image with its own σ."""

import math

import torch
from torch import Tensor

__all__ = ["gaussian_blur_", "gaussian_taps", "needed_radius"]

# Beyond 4σ a Gaussian has 6e-5 of its mass: a sixtieth of a grey level, and not looked at.
REACH = 4.0


def gaussian_taps(sigma: Tensor, radius: int) -> Tensor:
    r"""Half of each kernel, (N, radius + 1): the centre and the taps on one side.

    .. math:: k_j \propto e^{-j^2 / 2\sigma^2}, \qquad k_0 + 2 \sum_{j=1}^{radius} k_j = 1

    >>> gaussian_taps(torch.tensor([1.0]), 1)
    tensor([[0.4519, 0.2741]])
    """
    place = torch.arange(-radius, radius + 1, device=sigma.device)
    kernel = torch.softmax(-0.5 * (place / sigma[:, None]) ** 2, dim=1)
    return kernel[:, radius:]


def needed_radius(sigma: float, radius: int) -> int:
    """The taps worth computing for this σ, of `radius`."""
    return min(radius, math.ceil(REACH * sigma))


def gaussian_blur_(images: Tensor, taps: Tensor) -> None:
    """In place: separable blur of (N, C, H, W), reflected at the border.

    The taps are of `gaussian_taps`, (N, R + 1), of which the last may be left off; R < H, W.
    """
    taps = taps[:, :, None, None, None]
    radius = taps.shape[1] - 1
    both = torch.empty_like(images)
    for axis in (2, 3):
        size = images.shape[axis]
        before = images.narrow(axis, 1, radius).flip(axis)
        after = images.narrow(axis, size - 1 - radius, radius).flip(axis)
        padded = torch.cat([before, images, after], dim=axis)
        images.mul_(taps[:, 0])
        for place in range(1, radius + 1):
            left, right = (padded.narrow(axis, radius + shift, size) for shift in (-place, place))
            images.addcmul_(torch.add(left, right, out=both), taps[:, place])
