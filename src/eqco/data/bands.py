"""Images of any number of bands and any depth, where Pillow's own end at 8-bit colour."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from eqco.runtime.errors import InputError

__all__ = [
    "COLOUR",
    "Bands",
    "Layout",
    "Refusal",
    "WrongBandsError",
    "array_layout",
    "from_array",
    "to_picture",
]


class Refusal(Exception):  # noqa: N818
    """Why an image is not used, before its name is known."""


class WrongBandsError(InputError):
    """Images that cannot be had with as many bands as are wanted: what they have instead."""

    def __init__(self, channels: int, fact: str):
        super().__init__(channels, fact)
        self.channels = channels
        self.fact = fact

    def __str__(self) -> str:
        return (
            f"channels={self.channels}, but {self.fact}. Give images of that many bands, or other "
            f"--channels (eqco train needs none)."
        )

    def of_network(self, name: str) -> InputError:
        """The error where it is a network, not --channels, that wants so many bands."""
        bands = f"{self.channels} band{'s' * (self.channels != 1)}"
        return InputError(
            f"{name} takes images of {bands}, but {self.fact}. Give images like those it was "
            f"trained on."
        )


@dataclass(frozen=True)
class Layout:
    """What all images of a set have in common: the number of bands, and their depth."""

    channels: int
    deep: bool = False  # 16 bits or floating point, computed in float32; else 8 bits

    def __post_init__(self) -> None:
        if self.channels < 1:
            raise InputError(f"channels={self.channels}; an image has at least 1.")

    def __str__(self) -> str:
        depth = "16 bits or floating point" if self.deep else "8 bits"
        return f"{self.channels} band{'s' * (self.channels > 1)} of {depth}"


COLOUR = Layout(3)


class Bands:
    """An image that Pillow has no mode for: uint8, or float32 in [0, 1]; (H, W, C).

    Crops and resizes as a Pillow image does, band by band with Pillow's own filter.
    """

    def __init__(self, pixels: np.ndarray):
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]
        self.size = self.width, self.height

    def crop(self, box: tuple[int, int, int, int]) -> "Bands":
        """The part between left, top, right and bottom."""
        left, top, right, bottom = box
        return Bands(self.pixels[top:bottom, left:right])

    def resize(self, size: tuple[int, int], resample: Image.Resampling) -> "Bands":
        """Every band resized to that width and height."""
        bands = np.moveaxis(self.pixels, 2, 0)
        pictures = [Image.fromarray(np.ascontiguousarray(each)) for each in bands]
        resized = [np.asarray(picture.resize(size, resample)) for picture in pictures]
        return Bands(np.stack(resized, axis=2))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.pixels, dtype=dtype)


def array_layout(array: np.ndarray) -> Layout:
    """The layout of pixels (H, W) or (H, W, C); refuses other shapes and types."""
    if array.ndim not in (2, 3) or not array.size:
        raise Refusal(
            f"its shape is {array.shape}; it must be (height, width) or (height, width, bands)"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize <= 2:
        deep = array.dtype.itemsize == 2
    elif array.dtype.kind == "f":
        deep = True
    else:
        raise Refusal(
            f"its type is {array.dtype}; it must be uint8, uint16, or floating point in [0, 1]"
        )
    return Layout(array.shape[2] if array.ndim == 3 else 1, deep)


def from_array(array: np.ndarray) -> "Image.Image | Bands":
    """An image of pixels (H, W) or (H, W, C): 3 bands of 8 bits are RGB.

    16 bits are divided by 65535; floating point is taken as it is and must lie in [0, 1].

    >>> np.asarray(from_array(np.array([[0, 13107, 65535]], dtype=np.uint16))).ravel().tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    layout = array_layout(array)
    if layout == COLOUR:
        return Image.fromarray(np.array(array, order="C"))
    if array.ndim == 2:
        array = array[:, :, None]
    if not layout.deep:
        return Bands(np.array(array))
    if array.dtype.kind == "u":
        return Bands(array.astype(np.float32) / np.float32(65535))
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):  # also where one is not a number
        remedy = (
            "Scale all images by the same numbers, such as the sensor's range, or save them as "
            "uint16"
        )
        if low >= 0 and high <= 255:
            remedy = "Divide by 255, or give uint8"
        raise Refusal(
            f"its values go from {low:g} to {high:g}; floating point must lie in [0, 1]. {remedy}"
        )
    return Bands(array.astype(np.float32))


def to_picture(image: "Image.Image | Bands") -> Image.Image:
    """A picture to look at: bands 1 to 3 as red, green and blue; of fewer, the first as grey."""
    if isinstance(image, Image.Image):
        return image
    pixels = image.pixels[:, :, : 3 if image.pixels.shape[2] >= 3 else 1]
    if pixels.dtype != np.uint8:
        pixels = (pixels * 255).round().astype(np.uint8)
    return Image.fromarray(
        np.ascontiguousarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    ).convert("RGB")
