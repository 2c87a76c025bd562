"""One image file, decoded to eight-bit RGB, or to the bands it has, or refused by name."""

import io
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps, features
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from eqco.data.bands import (
    COLOUR,
    Bands,
    Layout,
    Refusal,
    WrongBandsError,
    array_layout,
    from_array,
)
from eqco.runtime.errors import InputError

__all__ = [
    "EXTENSIONS",
    "MAX_PIXELS",
    "PICTURES",
    "UnreadableImageError",
    "decode",
    "decode_bytes",
    "find_layout",
    "from_pillow",
    "image_size",
    "named_errors",
    "natural_layout",
    "pillow_header",
    "read_header",
    "read_header_bytes",
    "read_image",
    "require_layout",
]

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
NPY = ".npy"
# those that Pillow reads in some installations only; elsewhere they are named, not passed over
HEIC = (".heic", ".heif")
EXTENSIONS = (*PICTURES, ".avif", *HEIC, NPY)
# Pillow's own limit, at which it warns of a decompression bomb; here it refuses.
MAX_PIXELS = 89_478_485
MAX_VALUES = 16 * MAX_PIXELS  # of a TIFF of bands
# The bands of a mode as it is. What is missing here, such as a palette, can only become colour.
MODES = {"1": 1, "L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
# TIFF: the colours that each photometric interpretation has, beside which bands are extra
COLOURS = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4, 6: 3, 8: 3}
TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
SIZE, BITS, PHOTOMETRIC, SAMPLES, EXTRA, SAMPLE_FORMAT = (256, 257), 258, 262, 277, 338, 339
ALPHA = (1, 2)  # of EXTRA
REMEDY = (
    "Replace or remove it. Commands that read a whole folder can leave such files out and list "
    "them: eqco train with --data.on-unreadable skip, others with --on-unreadable skip."
)


class UnreadableImageError(InputError):
    """An image that cannot be used: which one, why, and what to do."""

    def __init__(self, name: str, reason: str, remedy: str = REMEDY):
        super().__init__(name, reason, remedy)
        self.name = name
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.name} cannot be read: {self.reason}. {self.remedy}"


@dataclass(frozen=True)
class Header:
    """What a file says of its image before the pixels are read."""

    height: int
    width: int
    layout: Layout | None  # as it is; None: a palette or alike, which can only become colour
    picture: bool  # whether it can become colour

    def __str__(self) -> str:
        return "colours of another kind" if self.layout is None else str(self.layout)


def decode(path: str | os.PathLike[str]) -> Image.Image:
    """The image of a file as RGB, turned upright by its EXIF orientation."""
    image = read_image(path, COLOUR)
    assert isinstance(image, Image.Image)
    return image


def read_image(path: str | os.PathLike[str], layout: Layout) -> Image.Image | Bands:
    """The image of a file, turned upright by its EXIF orientation.

    Args:
        path: a picture, a TIFF of any number of bands, or an npy of (H, W) or (H, W, C).
        layout: what the set has. Every picture becomes RGB where that is 3 bands of 8 bits;
            anything else must have that layout itself.

    Raises:
        UnreadableImageError: whatever is wrong with the file.
    """
    name = os.fspath(path)
    try:
        if name.lower().endswith(NPY):
            with open(path, "rb"):  # what is not there, or may not be read, is said as of others
                return decode_npy(name, layout)
        data = Path(path).read_bytes()
    except OSError as error:
        raise UnreadableImageError(name, error.strerror or str(error)) from error
    return decode_bytes(data, name, layout)


def decode_npy(name: str, layout: Layout) -> Image.Image | Bands:
    """The image in an npy file."""
    with named_errors(name):
        array = np.lib.format.open_memmap(name, mode="r")
        require_layout(array_header(array), layout)
        return from_array(array)


def decode_bytes(data: bytes, name: str, layout: Layout = COLOUR) -> Image.Image | Bands:
    """The image in these bytes; `name` is what an error calls it."""
    with named_errors(name, len(data)):
        if name.lower().endswith(HEIC):
            register_heic()
        if name.lower().endswith(NPY):
            array = read_npy(data)
            require_layout(array_header(array), layout)
            return from_array(array)
        tags = tiff_tags(io.BytesIO(data))
        if tags is not None and has_extra_bands(tags):
            require_layout(tiff_header(tags), layout)
            return from_array(read_tiff(data))
        with open_checked(io.BytesIO(data), layout) as image:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return from_pillow(image, layout)


@contextmanager
def named_errors(name: str, size: int | None = None) -> Iterator[None]:
    """Raise whatever is wrong with a file, of `size` bytes, as an error that names it."""
    try:
        yield
    except Refusal as error:
        raise UnreadableImageError(name, str(error)) from error
    except MemoryError:  # of this machine, and no fault of the file's
        raise
    # Pillow answers damage with almost any exception: OSError, SyntaxError, struct.error, …
    except Exception as error:
        reason = str(error).rstrip(".") or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = missing_decoder(name) or "its content is not that of an image"
        if size == 0 or (size is None and os.path.exists(name) and not os.path.getsize(name)):
            reason = "the file is empty"
        raise UnreadableImageError(name, reason) from error


def read_npy(data: bytes) -> np.ndarray:
    """The array of an npy in these bytes; memory is taken only for what they can hold."""
    file = io.BytesIO(data)
    first = np.lib.format.read_magic(file) == (1, 0)
    read_start = (
        np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_start(file)
    needed = math.prod(shape) * dtype.itemsize
    if needed > len(data) - file.tell():
        raise Refusal(f"{needed:,} bytes of pixels are announced, {len(data) - file.tell():,} came")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def missing_decoder(name: str) -> str:
    """What is missing to read a file of that name; empty if nothing is.

    >>> missing_decoder("a.jpg")
    ''
    """
    if name.lower().endswith(HEIC) and not register_heic():
        return (
            "Pillow reads HEIC with the package pillow-heif alone (pip install pillow-heif); "
            "install it, or save the image as JPEG"
        )
    if name.lower().endswith(".avif") and not features.check("avif"):
        return "this Pillow reads no AVIF (11.3 and later do); update it, or save the image as JPEG"
    return ""


@cache
def register_heic() -> bool:
    """Let Pillow read HEIC, where the package for it is installed."""
    try:
        import pillow_heif
    except ModuleNotFoundError:
        return False
    pillow_heif.register_heif_opener()
    return True


def image_size(path: str | os.PathLike[str], layout: Layout = COLOUR) -> tuple[int, int]:
    """Height and width of an upright image, from the file's header alone."""
    header = read_header(path, layout)
    return header.height, header.width


def read_header(path: str | os.PathLike[str], layout: Layout | None = None) -> Header:
    """The header of an upright image, refused where it cannot be had in that layout."""
    name = os.fspath(path)
    with named_errors(name):
        header = header_of(name)
        if layout is not None:
            require_layout(header, layout)
    return header


def read_header_bytes(data: bytes, name: str, layout: Layout | None = None) -> Header:
    """The same of an image in these bytes, of which the first may do."""
    with named_errors(name, len(data)):
        if name.lower().endswith(NPY):
            array = read_npy(data)
            header = array_header(array)
        else:
            header = stream_header(io.BytesIO(data), name)
        if layout is not None:
            require_layout(header, layout)
    return header


def header_of(name: str) -> Header:
    """The header of a file, whatever kind it is."""
    if name.lower().endswith(NPY):
        return array_header(np.lib.format.open_memmap(name, mode="r"))
    with open(name, "rb") as file:
        return stream_header(file, name)


def stream_header(file: IO[bytes], name: str) -> Header:
    """The header of a picture or TIFF that is open."""
    if name.lower().endswith(HEIC):
        register_heic()
    tags = tiff_tags(file)
    if tags is not None and has_extra_bands(tags):
        return tiff_header(tags)
    file.seek(0)
    with open_checked(file) as image:
        header = pillow_header(image)
        sideways = image.getexif().get(0x0112, 1) >= 5
    if sideways:
        return Header(header.width, header.height, header.layout, header.picture)
    return header


def find_layout(paths: Iterable[str], channels: int | None = None) -> Layout:
    """What the images of a set have: the first readable file decides.

    A picture of 8 bits, grey or colour, makes a set of colour. 16-bit and floating point grey, npy
    and TIFFs with bands beside colour and transparency are taken as they are.

    Args:
        paths: the files.
        channels: the bands that are wanted: 3 makes colour of every picture, others keep the bands
            that a picture has (1 of grey, 2 of grey with transparency, 4 of colour with it).
    """
    for path in paths:
        try:
            return natural_layout(read_header(path), channels, path)
        except UnreadableImageError:
            continue
    return COLOUR if channels is None else Layout(channels)


def natural_layout(header: Header, channels: int | None, name: str) -> Layout:
    """The layout of a set that this image belongs to."""
    own = header.layout
    if header.picture and (channels == 3 or (channels is None and (own is None or not own.deep))):
        return COLOUR
    if own is not None and channels in (None, own.channels):
        return own
    if channels is None:
        raise Refusal("its pixels are 32-bit numbers; give it with 8 or 16 bits")
    raise WrongBandsError(channels, f"{name} has {header}")


def require_layout(header: Header, layout: Layout) -> None:
    """Refuse an image that cannot be had in the layout of its set."""
    if header.layout == layout or (header.picture and layout == COLOUR):
        return
    remedy = "; to take all as colour, pass --channels 3" * header.picture
    raise Refusal(f"it has {header}, and its set has {layout}{remedy}")


def open_checked(file: IO[bytes], layout: Layout | None = None) -> Image.Image:
    """Read the header; refuse bombs, animations and kinds of pixel without a place in `layout`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(file)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Refusal(too_large()) from error
    if image.width * image.height > MAX_PIXELS:
        raise Refusal(too_large())
    # MPO is a JPEG with a preview or a gain map behind the photo, as phones write: no animation
    if getattr(image, "is_animated", False) and image.format != "MPO":
        frames = getattr(image, "n_frames", "several")
        if image.format == "TIFF":
            raise Refusal(
                f"it has {frames} pages, save one of them as an image; bands belong on one page, "
                f"as its samples, or into an npy of (height, width, bands)"
            )
        raise Refusal(f"it is an animation of {frames} frames, save one of them as an image")
    if image.mode == "I" or (image.mode == "F" and layout == COLOUR):
        raise Refusal(
            f"its pixels are 32-bit numbers (mode {image.mode}), save it with 8 or 16 bits"
        )
    if layout is not None:
        require_layout(pillow_header(image), layout)
    return image


def too_large() -> str:
    """Why an image is too large."""
    return f"it has more than {MAX_PIXELS:,} pixels (a decompression bomb?), make it smaller"


def pillow_header(image: Image.Image) -> Header:
    """The header that Pillow reads of an image, as it lies in the file."""
    if image.mode == "F" or image.mode.startswith("I;16"):
        layout: Layout | None = Layout(1, deep=True)
    else:
        layout = Layout(MODES[image.mode]) if image.mode in MODES else None
    return Header(image.height, image.width, layout, picture=image.mode not in ("I", "F"))


def from_pillow(image: Image.Image, layout: Layout) -> Image.Image | Bands:
    """The image in that layout, which it can be had in (see `require_layout`)."""
    if layout == COLOUR:
        return to_rgb(image)
    return from_array(np.asarray(image.convert("L") if image.mode == "1" else image))


def array_header(array: np.ndarray) -> Header:
    """The header of pixels (H, W) or (H, W, C)."""
    layout = array_layout(array)
    height, width = array.shape[:2]
    if height * width > MAX_PIXELS:
        raise Refusal(too_large())
    if height < width and height < layout.channels:
        raise Refusal(
            f"its shape is {array.shape}, which looks like (bands, height, width); save it as "
            f"(height, width, bands): numpy.moveaxis(array, 0, 2). If it is meant so, give a "
            f"Dataset of tensors (bands, height, width) in Python"
        )
    return Header(height, width, layout, picture=layout == COLOUR)


def tiff_tags(file: IO[bytes]) -> Mapping[int, Any] | None:
    """The tags of a TIFF's first page; None of other files, and of damaged ones."""
    head = file.read(8)
    if head[:4] not in TIFF_MAGIC:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tags = ImageFileDirectory_v2(head + file.read(8) if b"+" in head[2:4] else head)
            file.seek(tags.next)
            tags.load(file)
            return dict(tags)
    except Exception:  # Pillow, which reads it next, says what is wrong
        return None


def has_extra_bands(tags: Mapping[int, Any]) -> bool:
    """Whether a TIFF has bands beside colours and transparency, which Pillow leaves out."""
    extra = as_tuple(tags.get(EXTRA, ()))
    colours = tags.get(SAMPLES, 1) - len(extra)
    expected = COLOURS.get(tags.get(PHOTOMETRIC, 1), colours)
    return colours != expected or any(kind not in ALPHA for kind in extra)


def tiff_header(tags: Mapping[int, Any]) -> Header:
    """The header of a TIFF of bands."""
    width, height = (int(tags[side]) for side in SIZE)
    channels = int(tags[SAMPLES])
    if height * width > MAX_PIXELS or height * width * channels > MAX_VALUES:
        raise Refusal(too_large())
    try:
        import tifffile  # noqa: F401
    except ModuleNotFoundError as error:
        raise Refusal(
            f"it has {channels} bands, which the package tifffile reads and Pillow does not. "
            f'Install it from the folder of eqco: pip install ".[tiff]"'
        ) from error
    bits, kinds = (set(as_tuple(tags.get(tag, 1))) for tag in (BITS, SAMPLE_FORMAT))
    if kinds != {3} and (kinds != {1} or bits not in ({8}, {16})):
        raise Refusal(
            f"its samples have {min(bits)} bits of format {min(kinds)}; they must be unsigned of 8 "
            f"or 16 bits, or floating point"
        )
    layout = Layout(channels, deep=kinds == {3} or bits == {16})
    return Header(height, width, layout, picture=False)


def read_tiff(data: bytes) -> np.ndarray:
    """The pixels of a TIFF of bands, (H, W, C)."""
    import tifffile

    with tifffile.TiffFile(io.BytesIO(data)) as file:
        if len(file.pages) > 1:
            raise Refusal(f"it has {len(file.pages)} pages, save one of them as an image")
        page = file.pages[0]
        array: np.ndarray = page.asarray()
        if page.axes == "SYX":
            return np.moveaxis(array, 0, 2)
        if page.axes != "YXS":
            raise Refusal(f"its axes are {page.axes}; they must be height, width and bands")
        return array


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tag's values, of which Pillow gives a single one bare."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


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
