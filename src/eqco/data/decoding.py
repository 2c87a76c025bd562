"""One image file, decoded to eight-bit RGB or refused by name."""

import io
import os
import warnings
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from eqco.runtime.errors import InputError

__all__ = ["EXTENSIONS", "MAX_PIXELS", "UnreadableImageError", "decode", "image_size", "to_rgb"]

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".gif",
    ".pgm",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
# Pillow's own limit, at which it warns of a decompression bomb; here it refuses.
MAX_PIXELS = 89_478_485


class UnreadableImageError(InputError):
    """An image that cannot be used: which one, and why."""

    def __init__(self, name: str, reason: str):
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.name} cannot be read: {self.reason}. Replace or remove it, "
            f"or pass --on-unreadable skip (in eqco train: --data.on-unreadable skip) to leave "
            f"such files out and list them."
        )


def decode(path: str | os.PathLike[str]) -> Image.Image:
    """The image of a file as RGB, turned upright by its EXIF orientation.

    Raises:
        UnreadableImageError: whatever is wrong with the file.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UnreadableImageError(str(path), error.strerror or str(error)) from error
    return decode_bytes(data, str(path))


def decode_bytes(data: bytes, name: str) -> Image.Image:
    """The image in these bytes; `name` is what an error calls it."""
    try:
        with open_checked(io.BytesIO(data)) as image:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return to_rgb(image)
    except Refusal as error:
        raise UnreadableImageError(name, str(error)) from error
    # Pillow answers damage with almost any exception: OSError, SyntaxError, struct.error, …
    except Exception as error:
        raise UnreadableImageError(name, reason_of(error, len(data))) from error


def image_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Height and width of an upright image, from the file's header alone.

    Raises:
        UnreadableImageError: the header is damaged, or tells of an image that is refused.
    """
    try:
        with open(path, "rb") as file, open_checked(file) as image:
            width, height = image.size
            sideways = image.getexif().get(0x0112, 1) >= 5
            return (width, height) if sideways else (height, width)
    except Refusal as error:
        raise UnreadableImageError(str(path), str(error)) from error
    except Exception as error:
        raise UnreadableImageError(str(path), reason_of(error, size_of(path))) from error


class Refusal(Exception):  # noqa: N818
    """An image that Pillow could read, and that is not used."""


def open_checked(file: IO[bytes]) -> Image.Image:
    """Read the header; refuse bombs, animations and kinds of pixel without a place in RGB."""
    bomb = f"it has more than {MAX_PIXELS:,} pixels (a decompression bomb?), make it smaller"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(file)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Refusal(bomb) from error
    if image.width * image.height > MAX_PIXELS:
        raise Refusal(bomb)
    if getattr(image, "is_animated", False):
        frames = getattr(image, "n_frames", "several")
        raise Refusal(f"it is an animation of {frames} frames, save one of them as an image")
    if image.mode in ("I", "F"):
        raise Refusal(
            f"its pixels are 32-bit numbers (mode {image.mode}), save it with 8 or 16 bits"
        )
    return image


def reason_of(error: Exception, size: int) -> str:
    """A damaged file, in a few words."""
    if size == 0:
        return "the file is empty"
    if isinstance(error, Image.UnidentifiedImageError):
        return "its content is not that of an image"
    return str(error) or type(error).__name__


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a file, -1 if there is none."""
    return os.path.getsize(path) if os.path.exists(path) else -1


def to_rgb(image: Image.Image) -> Image.Image:
    """Eight-bit RGB: grey repeated, 16 bits scaled to 8, palette looked up, no transparency."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips at 255
        deep = np.asarray(image.convert("I"), dtype=np.float32)
        return Image.fromarray((deep / 257).round().astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
