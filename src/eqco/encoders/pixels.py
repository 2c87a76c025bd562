"""Pixels in place of features: what every encoder must beat."""

from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["Pixels"]


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
