"""Where the pixels of a split come from: memory, files, or a Dataset of the user's."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eqco.data.bands import COLOUR, Bands, Layout, Refusal, array_layout, from_array
from eqco.data.decoding import (
    Header,
    UnreadableImageError,
    decode_bytes,
    from_pillow,
    named_errors,
    natural_layout,
    pillow_header,
    read_header,
    read_header_bytes,
    read_image,
    require_layout,
)
from eqco.runtime.errors import InputError

__all__ = [
    "DatasetImages",
    "EncodedImages",
    "FileImages",
    "Images",
    "MemoryImages",
    "StoredImages",
    "common_layout",
    "files_digest",
    "image_in",
    "load_picture",
    "read_value",
    "value_layout",
]

HEAD = 1 << 17  # bytes that hold the header of almost every image


class Images(ABC):
    """A numbered collection of images, all of one layout."""

    layout: Layout

    @property
    def channels(self) -> int:
        """The bands that every image has: 3 of colour."""
        return self.layout.channels

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, number: int) -> Image.Image | Bands:
        """The image: RGB where there are 3 bands of 8 bits, else its bands.

        `UnreadableImageError` names it if it cannot be had.
        """

    @abstractmethod
    def name(self, number: int) -> str:
        """What to call the image in front of the user."""

    @abstractmethod
    def subset(self, numbers: Sequence[int]) -> "Images":
        """Those images, in that order."""


@final
class MemoryImages(Images):
    """Decoded images of one size: `pixels` is uint8, or float32 in [0, 1]; (n, C, H, W)."""

    def __init__(self, pixels: Tensor, label: str = "image"):
        if pixels.dtype not in (torch.uint8, torch.float32) or pixels.dim() != 4:
            raise InputError(
                f"pixels of type {pixels.dtype} and shape {tuple(pixels.shape)}; they must be "
                f"uint8, or float32 in [0, 1], of shape (n, channels, height, width)."
            )
        if pixels.is_floating_point() and len(pixels):
            low, high = (float(each) for each in pixels.aminmax())
            if not (low >= 0 and high <= 1):  # also where one is not a number
                raise InputError(
                    f"pixels from {low:g} to {high:g}; floating point must lie in [0, 1]. Scale "
                    f"them, or give uint8."
                )
        self.layout = Layout(pixels.shape[1], deep=pixels.is_floating_point())
        self.pixels = pixels
        self.label = label

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, number: int) -> Image.Image | Bands:
        """A copy of the image."""
        return from_array(self.pixels[number].permute(1, 2, 0).numpy())

    def name(self, number: int) -> str:
        """Its number."""
        return f"{self.label} {number}"

    def subset(self, numbers: Sequence[int]) -> "MemoryImages":
        """A copy of those images."""
        return MemoryImages(self.pixels[torch.as_tensor(numbers)], self.label)


class StoredImages(Images):
    """Images in files, decoded when they are asked for."""

    @abstractmethod
    def header(self, number: int, layout: Layout | None = None) -> Header:
        """The header of the image, refused where it cannot be had in that layout."""

    @abstractmethod
    def digest(self) -> str:
        """Another one where the content of the files may be another."""

    def size_of(self, number: int) -> tuple[int, int]:
        """Height and width of the upright image, from its header alone."""
        header = self.header(number, self.layout)
        return header.height, header.width


def common_layout(parts: Iterable[StoredImages], channels: int | None) -> Layout:
    """What the images of a set have: the first readable one decides, as in `find_layout`."""
    for images in parts:
        for number in range(len(images)):
            try:
                return natural_layout(images.header(number), channels, images.name(number))
            except UnreadableImageError:
                continue
    return COLOUR if channels is None else Layout(channels)


def files_digest(paths: Iterable[str]) -> str:
    """Of names, sizes and times of change of files; the same from any folder."""
    text = "\0".join(f"{os.path.abspath(path)}\0{file_stamp(path)}" for path in paths)
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def file_stamp(path: str | bytes) -> str:
    """Size and time of change of a file."""
    try:
        status = os.stat(path)
    except OSError:
        return "gone"
    return f"{status.st_size} {status.st_mtime_ns}"


class EncodedImages(StoredImages):
    """Encoded images that lie in larger files, such as archives."""

    @abstractmethod
    def encoded(self, number: int, limit: int | None = None) -> bytes:
        """The bytes of an image, or the first of them."""

    def read(self, number: int) -> Image.Image | Bands:
        """Decode the bytes."""
        return decode_bytes(self.encoded(number), self.name(number), self.layout)

    def header(self, number: int, layout: Layout | None = None) -> Header:
        """The header, mostly from the first bytes."""
        name = self.name(number)
        data = self.encoded(number, HEAD)
        try:
            return read_header_bytes(data, name, layout)
        except UnreadableImageError:
            if len(data) < HEAD:
                raise
        return read_header_bytes(self.encoded(number), name, layout)


@final
class FileImages(StoredImages):
    """Image files."""

    def __init__(self, paths: Sequence[str], layout: Layout = COLOUR):
        # one array of bytes: small, and shared by workers without a copy
        self.paths = np.array([os.fsencode(path) for path in paths])
        self.layout = layout

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> Image.Image | Bands:
        """Decode the file."""
        return read_image(self.name(number), self.layout)

    def name(self, number: int) -> str:
        """The path."""
        return os.fsdecode(self.paths[number])

    def header(self, number: int, layout: Layout | None = None) -> Header:
        """The header of the file."""
        return read_header(self.name(number), layout)

    def digest(self) -> str:
        """Of names, sizes and times of change; the same from any folder."""
        digest, here = hashlib.sha256(), os.getcwdb() + b"/"
        for path in self.paths.tolist():
            whole = path if path.startswith(b"/") else here + path
            digest.update(whole + b"\0" + file_stamp(path).encode() + b"\0")
        return digest.hexdigest()

    def subset(self, numbers: Sequence[int]) -> "FileImages":
        """Those files."""
        return FileImages([self.name(number) for number in numbers], self.layout)


@final
class DatasetImages(Images):
    """A map-style Dataset: items are images, tuples that begin with one, or dicts with an "image".

    An image is a PIL image, or pixels of shape (C, H, W) as a tensor or (H, W, C) as an array:
    uint8, uint16, or floating point in [0, 1]. The Dataset must not transform: cropping and colours
    are this library's work.

    The first readable item decides the layout of all, as `find_layout` does for files; arrays and
    tensors are taken as they are.
    """

    def __init__(
        self,
        dataset: Any,
        numbers: Sequence[int] | None = None,
        *,
        channels: int | None = None,
        layout: Layout | None = None,
    ):
        self.dataset = dataset
        self.numbers = list(range(len(dataset))) if numbers is None else list(numbers)
        self.layout = self.first_layout(channels) if layout is None else layout

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, number: int) -> Image.Image | Bands:
        """Take the item out of the Dataset."""
        return read_value(self.value(number), self.layout, self.name(number))

    def value(self, number: int) -> Any:
        """The image of an item, as the Dataset gives it."""
        try:
            item = self.dataset[self.numbers[number]]
        except Exception as error:
            raise UnreadableImageError(self.name(number), repr(error)) from error
        return image_in(item)

    def first_layout(self, channels: int | None) -> Layout:
        """The layout of the first item that can be had."""
        for number in range(len(self)):
            try:
                value = self.value(number)
            except UnreadableImageError:
                continue
            return value_layout(value, channels, self.name(number))
        return COLOUR if channels is None else Layout(channels)

    def name(self, number: int) -> str:
        """Its number in the Dataset."""
        return f"item {self.numbers[number]} of {type(self.dataset).__name__}"

    def subset(self, numbers: Sequence[int]) -> "DatasetImages":
        """Those items."""
        chosen = [self.numbers[int(number)] for number in numbers]
        return DatasetImages(self.dataset, chosen, layout=self.layout)


def image_in(item: Any) -> Any:
    """The image of an item, which may be a tuple that begins with it or a dict that names it."""
    if isinstance(item, Mapping):
        return item.get("image", item.get("img", item))  # a row of the library `datasets`
    return item[0] if isinstance(item, (tuple, list)) and item else item


def value_layout(value: Any, channels: int | None, name: str) -> Layout:
    """The layout of a set that begins with this image; arrays and tensors are taken as they are."""
    try:
        if isinstance(value, Image.Image):
            return natural_layout(pillow_header(value), channels, name)
        layout = array_layout(as_array(value))
    except Refusal as error:
        raise unusable_error(value, name, error) from error
    if channels not in (None, layout.channels):
        raise InputError(f"channels={channels}, but {name} has {layout}; leave it out.")
    return layout


def read_value(value: Any, layout: Layout, name: str) -> Image.Image | Bands:
    """The pixels of a PIL image, an array or a tensor, in the layout of its set."""
    try:
        if isinstance(value, Image.Image):
            require_layout(pillow_header(value), layout)
            load_picture(value, name)
            return from_pillow(value, layout)
        array = as_array(value)
        if array_layout(array) != layout:
            raise Refusal(f"it has {array_layout(array)}, and its set has {layout}")
        return from_array(array)
    except Refusal as error:
        raise unusable_error(value, name, error) from error


def load_picture(image: Image.Image, name: str) -> None:
    """Read the pixels of a PIL image, which Pillow puts off until they are wanted."""
    with named_errors(name):
        try:
            image.load()
        except (AssertionError, AttributeError) as error:  # of Pillow, without a word
            if getattr(image, "fp", None) is not None:
                raise
            raise Refusal(
                "its file was closed before its pixels were read; call load() while it is open"
            ) from error


def as_array(value: Any) -> np.ndarray:
    """Pixels (H, W) or (H, W, C) of a tensor (H, W) or (C, H, W), or of an array."""
    try:
        if not isinstance(value, Tensor):
            return np.asarray(value)
        pixels = value.detach().cpu()
        if pixels.dtype == torch.bfloat16:  # which numpy has not
            pixels = pixels.float()
        return (pixels.permute(1, 2, 0) if pixels.dim() == 3 else pixels).numpy()
    except MemoryError:  # of this machine, and no fault of the image's
        raise
    # lists of unequal lengths, types that numpy has not, arrays of other libraries on a device
    except Exception as error:
        raise Refusal(f"numpy cannot make an array of it ({str(error).rstrip('.')})") from error


def unusable_error(value: Any, name: str, refusal: Refusal) -> InputError:
    """The error of an item that is no image, or not one of its set's."""
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        kind += f" of type {value.dtype} and shape {tuple(value.shape)}"
    return InputError(
        f"{name} is {kind}: {refusal}. Give PIL images, or pixels that are uint8, uint16 or "
        f"floating point in [0, 1], without transforms."
    )
