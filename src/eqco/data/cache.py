"""Images on disk, decoded and shrunk once: files of pixels that every epoch reads from.

A view is a random crop, resized. A square crop of the smallest share of the image, a, has √a of
its side, so an image whose shorter side is size / √a still gives that crop `size` pixels: it need
not be enlarged. Larger images are shrunk to that side; others are kept as they are, and give the
very same views.
"""

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from eqco.data.bands import Bands, from_array
from eqco.data.decoding import UnreadableImageError
from eqco.data.images import Images, StoredImages
from eqco.data.scanning import identity, progress
from eqco.data.views import ViewSpec
from eqco.runtime import processes
from eqco.runtime.atomic_files import atomic_write, unwritable_error, write_text
from eqco.runtime.cores import usable_threads
from eqco.runtime.devices import iterate
from eqco.runtime.errors import InputError

__all__ = ["CachedImages", "cached_side", "fill_cache", "fits_cache"]

CHUNK = 256  # images per file: what is decoded again at most after a stop
CHECKSUM = 8  # bytes that a file begins with: the CRC-32 of the others, as int64
SAMPLE = 1000  # headers that are read to know how large all will be
FORMAT = 2  # of the files: those of another are written anew
OWN = re.compile(r"(plan\.json|\d+\.pixels)(\.\d+\.partial)?")  # names of what a cache writes


def cached_side(views: Sequence[ViewSpec]) -> int:
    """The shorter side, in pixels, that the smallest crops of these views need.

    >>> from eqco.data.pipelines import MOCO_V2, SIMCLR
    >>> cached_side([ViewSpec(MOCO_V2, 32)]), cached_side([ViewSpec(SIMCLR, 32)])
    (72, 114)
    """
    return max(math.ceil(view.size / math.sqrt(view.pipeline.crop_scale[0])) for view in views)


class CachedImages(Images):
    """Stored images, of which the pixels lie in a folder once `fill_cache` has written them.

    An image that cannot be read is none in the cache either: its error is the file's own.
    """

    def __init__(
        self, files: StoredImages, folder: Path, side: int, numbers: Sequence[int] | None = None
    ):
        self.files = files
        self.folder = folder
        self.side = side
        self.layout = files.layout
        self.numbers = np.arange(len(files)) if numbers is None else np.asarray(numbers)
        self.chunks: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"chunks": {}}  # a worker process maps the files itself

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, number: int) -> Image.Image | Bands:
        """The pixels, from the cache."""
        chunk, place = divmod(int(self.numbers[number]), CHUNK)
        if chunk not in self.chunks:
            self.chunks[chunk] = self.open_chunk(chunk)
        sides, ends, pixels = self.chunks[chunk]
        height, width = sides[place]
        if not height:
            return self.files.read(int(self.numbers[number]))  # which says what is wrong with it
        start = ends[place] - height * width * self.channels
        return from_array(pixels[start : ends[place]].reshape(height, width, self.channels))

    def name(self, number: int) -> str:
        """The path of the file."""
        return self.files.name(int(self.numbers[number]))

    def subset(self, numbers: Sequence[int]) -> "CachedImages":
        """Those images."""
        return CachedImages(
            self.files, self.folder, self.side, self.numbers[list(numbers)].tolist()
        )

    @property
    def dtype(self) -> np.dtype:
        """Of the pixels in the files."""
        return np.dtype(np.float32 if self.layout.deep else np.uint8)

    def chunk_file(self, chunk: int) -> Path:
        """Where a chunk lies: a checksum, heights and widths as int64 (n, 2), then all pixels."""
        return self.folder / f"{chunk:06d}.pixels"

    def chunk_length(self, chunk: int) -> int:
        """The images of a chunk."""
        return min(CHUNK, len(self.files) - chunk * CHUNK)

    def open_chunk(self, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Heights and widths, where each image ends, and all pixels, which stay on disk."""
        file, table = self.chunk_file(chunk), 16 * self.chunk_length(chunk)
        content = np.memmap(file, dtype=np.uint8, mode="r")[CHECKSUM:]
        if len(content) < table:
            raise ValueError(f"{file} is damaged")
        sides = np.array(content[:table]).view(np.int64).reshape(-1, 2)
        ends = np.cumsum(sides.prod(axis=1) * self.channels)
        if len(content) != table + ends[-1] * self.dtype.itemsize:
            raise ValueError(f"{file} is damaged")
        return sides, ends, content[table:].view(self.dtype)

    def has_chunk(self, chunk: int) -> bool:
        """Whether a chunk is there, and as it was written."""
        try:
            self.open_chunk(chunk)
            content = np.memmap(self.chunk_file(chunk), dtype=np.uint8, mode="r")
        except (OSError, ValueError):
            return False
        return checksum(content[CHECKSUM:].data) == content[:CHECKSUM].tobytes()


def checksum(content: bytes | memoryview) -> bytes:
    """The bytes that a file of this content begins with."""
    return zlib.crc32(content).to_bytes(CHECKSUM, "little")


def shrunk_sides(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width with the shorter one brought down to `side`, if it is longer.

    >>> shrunk_sides(375, 500, 72), shrunk_sides(60, 500, 72)
    ((72, 96), (60, 500))
    """
    short = min(height, width)
    if short <= side:
        return height, width
    return round(height * side / short), round(width * side / short)


def shrink(image: Image.Image | Bands, side: int) -> Image.Image | Bands:
    """The image with its shorter side brought down to `side`, if it is longer."""
    height, width = shrunk_sides(image.height, image.width, side)
    if (height, width) == (image.height, image.width):
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR)


def estimate_bytes(files: StoredImages, side: int) -> int:
    """About how much the cache will hold, from the headers of up to a thousand images."""
    sizes = []
    for number in range(0, len(files), -(-len(files) // SAMPLE)):
        try:
            height, width = shrunk_sides(*files.size_of(number), side)
        except UnreadableImageError:
            continue
        sizes.append(height * width)
    depth = files.channels * (4 if files.layout.deep else 1)
    return round(depth * len(files) * sum(sizes) / max(1, len(sizes)))


def fits_cache(files: StoredImages, side: int, gib: float) -> bool:
    """Whether they take at most so many GiB, by an estimate; without a limit none is made."""
    return gib == math.inf or estimate_bytes(files, side) <= gib * 2**30


def fill_cache(images: CachedImages, *, workers: int | None = None) -> None:
    """Decode and shrink what is not in the cache yet.

    Chunks that an earlier call has left are taken if they belong to the same files, by name, size
    and time of change, and to the same side; else all is written anew. Of several processes the
    first writes, and the others wait for chunk after chunk.

    Args:
        images: all images of the cache, not a subset.
        workers: processes that decode; all cores by default.
    """
    numbers = range(-(-len(images.files) // CHUNK))
    chunks: Iterable[int] = numbers
    if processes.is_writer():
        title = f"decoding {len(images.files)} images once"
        chunks = progress(write_chunks(images, numbers, workers), title, total=len(numbers))
    for _ in chunks:
        processes.any_of(False)  # nobody reads before the writer comes here


def write_chunks(images: CachedImages, chunks: range, workers: int | None) -> Iterator[int]:
    """Write the chunks that are missing; gives the number of each that is there."""
    plan, ours = images.folder / "plan.json", cache_plan(images)
    if not plan.exists() or plan.read_text() != ours:
        with explain_failure(images.folder):
            for file in own_files(images.folder):
                file.unlink()
            write_text(plan, ours)
    there = [chunk for chunk in chunks if images.has_chunk(chunk)]
    yield from there
    missing = [chunk for chunk in chunks if chunk not in set(there)]
    workers = len(usable_threads()) if workers is None else workers
    loader = DataLoader(
        MissingChunks(images, missing),
        batch_size=None,
        num_workers=workers if len(missing) > 1 else 0,
        collate_fn=identity,
        generator=torch.Generator(),  # the training must not draw otherwise after it
    )
    for chunk, content in zip(missing, iterate(loader), strict=True):
        with explain_failure(images.folder), atomic_write(images.chunk_file(chunk)) as partial:
            partial.write_bytes(content)
        yield chunk


def own_files(folder: Path) -> list[Path]:
    """What a cache has written to a folder; one that holds anything else is refused."""
    there = list(folder.iterdir()) if folder.exists() else []
    strangers = [file.name for file in there if not OWN.fullmatch(file.name)]
    if strangers:
        raise InputError(
            f"{folder} holds {min(strangers)}, which is not of a cache of decoded images. Move it "
            f"away, choose another --out, or start a new run with --cache-gib 0 to decode every "
            f"image in every epoch."
        )
    return there


@contextmanager
def explain_failure(folder: Path) -> Iterator[None]:
    """A full disk, or a folder that must not be written: say so, and how to do without."""
    try:
        yield
    except OSError as error:
        remedy = "or start a new run with --cache-gib 0 to decode every image in every epoch."
        raise unwritable_error(folder, error, remedy) from error


def cache_plan(images: CachedImages) -> str:
    """What decides the content of the cache, as text."""
    plan = {
        "format": FORMAT,
        "images": len(images.files),
        "layout": str(images.layout),
        "side": images.side,
        "files": images.files.digest(),
    }
    return json.dumps(plan, indent=1) + "\n"


class MissingChunks(Dataset):
    """Item i is the content of the i-th of some chunks."""

    def __init__(self, images: CachedImages, chunks: Sequence[int]):
        self.images = images
        self.chunks = chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, item: int) -> bytes:
        files, chunk = self.images.files, self.chunks[item]
        sides: list[tuple[int, int]] = []
        pixels: list[bytes] = []
        for place in range(self.images.chunk_length(chunk)):
            try:
                image = shrink(files.read(chunk * CHUNK + place), self.images.side)
            except UnreadableImageError:
                sides.append((0, 0))
                continue
            sides.append((image.height, image.width))
            pixels.append(np.asarray(image).tobytes())
        content = np.array(sides, dtype=np.int64).tobytes() + b"".join(pixels)
        return checksum(content) + content
