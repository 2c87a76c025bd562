"""Where the pixels of a split come from: memory, files, or a Dataset of the user's."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eqco.data.decoding import UnreadableImageError, decode, to_rgb
from eqco.runtime.errors import InputError

__all__ = ["DatasetImages", "FileImages", "Images", "MemoryImages"]


class Images(ABC):
    """A numbered collection of images."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, number: int) -> Image.Image:
        """The image as RGB; `UnreadableImageError` names it if it cannot be had."""

    @abstractmethod
    def name(self, number: int) -> str:
        """What to call the image in front of the user."""

    @abstractmethod
    def subset(self, numbers: Sequence[int]) -> "Images":
        """Those images, in that order."""


@final
class MemoryImages(Images):
    """Decoded images of one size: `pixels` is uint8, (n, 3, H, W)."""

    def __init__(self, pixels: Tensor, label: str = "image"):
        if pixels.dtype != torch.uint8 or pixels.dim() != 4 or pixels.shape[1] != 3:
            raise InputError(
                f"pixels of type {pixels.dtype} and shape {tuple(pixels.shape)}; "
                f"they must be uint8 of shape (n, 3, height, width)."
            )
        self.pixels = pixels
        self.label = label

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, number: int) -> Image.Image:
        """The image as RGB."""
        return Image.fromarray(self.pixels[number].permute(1, 2, 0).contiguous().numpy())

    def name(self, number: int) -> str:
        """Its number."""
        return f"{self.label} {number}"

    def subset(self, numbers: Sequence[int]) -> "MemoryImages":
        """A copy of those images."""
        return MemoryImages(self.pixels[torch.as_tensor(numbers)], self.label)


@final
class FileImages(Images):
    """Image files, decoded when they are asked for."""

    def __init__(self, paths: Sequence[str]):
        # one array of bytes: small, and shared by workers without a copy
        self.paths = np.array([os.fsencode(path) for path in paths])

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> Image.Image:
        """Decode the file."""
        return decode(self.name(number))

    def name(self, number: int) -> str:
        """The path."""
        return os.fsdecode(self.paths[number])

    def subset(self, numbers: Sequence[int]) -> "FileImages":
        """Those files."""
        return FileImages([self.name(number) for number in numbers])


@final
class DatasetImages(Images):
    """A map-style Dataset: items are images, or tuples that begin with one.

    An image is a PIL image, or uint8 of shape (C, H, W) as a tensor or (H, W, C) as an array. The
    Dataset must not transform: cropping and colours are this library's work.
    """

    def __init__(self, dataset: Any, numbers: Sequence[int] | None = None):
        self.dataset = dataset
        self.numbers = list(range(len(dataset))) if numbers is None else list(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, number: int) -> Image.Image:
        """Take the item out of the Dataset."""
        try:
            item = self.dataset[self.numbers[number]]
        except Exception as error:
            raise UnreadableImageError(self.name(number), repr(error)) from error
        return as_image(item[0] if isinstance(item, (tuple, list)) else item, self.name(number))

    def name(self, number: int) -> str:
        """Its number in the Dataset."""
        return f"item {self.numbers[number]} of {type(self.dataset).__name__}"

    def subset(self, numbers: Sequence[int]) -> "DatasetImages":
        """Those items."""
        return DatasetImages(self.dataset, [self.numbers[int(number)] for number in numbers])


def as_image(value: Any, name: str) -> Image.Image:
    """A PIL image of what a Dataset returned."""
    if isinstance(value, Image.Image):
        return to_rgb(value)
    array = value.permute(1, 2, 0).numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise InputError(
            f"{name} is {type(value).__name__} of type {array.dtype} and shape "
            f"{tuple(value.shape) if hasattr(value, 'shape') else array.shape}; return a PIL image "
            f"or uint8 pixels, without transforms."
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return to_rgb(Image.fromarray(np.ascontiguousarray(array)))
