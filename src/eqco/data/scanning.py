"""Scan many files in parallel: sizes, what cannot be read, and pixels if memory allows."""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eqco.data.decoding import UnreadableImageError
from eqco.data.images import Images, StoredImages
from eqco.data.index import ScanIndex
from eqco.runtime.cores import usable_threads
from eqco.runtime.devices import iterate

__all__ = ["Check", "Scan", "scan"]

Check = Literal["none", "header", "decode"]
Found = tuple[int, int] | UnreadableImageError  # height and width, or what is wrong
CHUNK = 256  # files per message between processes
FEW = 4 * CHUNK  # not worth the start of processes


@dataclass(frozen=True)
class Scan:
    """What was found in a collection of images."""

    readable: tuple[int, ...]  # their numbers
    unreadable: tuple[UnreadableImageError, ...]
    sizes: dict[tuple[int, int], int]  # (height, width): how many
    pixels: Tensor | None  # of the readable ones, as in `MemoryImages`, if they were kept


def scan(
    images: Images,
    *,
    check: Check = "header",
    memory_gib: float = 2.0,
    memory_side: int | None = None,
    workers: int | None = None,
    title: str = "reading images",
    index: ScanIndex | None = None,
) -> Scan:
    """Scan every image once, in parallel.

    Decodes all if they are to be kept in memory: when all have one size, take at most `memory_gib`
    together, and their shorter side is at most `memory_side`, if that is given. The first image is
    a guess at that size; nothing is kept of a chunk from an image of another size on. Otherwise
    reads what `check` says: nothing, the headers (fast; misses damage further in), or everything.
    What an `index` knows of the same files is not read again.
    """
    height, width = first_sides(images) if memory_gib > 0 else (0, 0)
    size = height * width * images.channels * (4 if images.layout.deep else 1)
    fits = memory_gib > 0 and size * len(images) <= memory_gib * 2**30
    fits = fits and (memory_side is None or min(height, width) <= memory_side)
    if not fits and check == "none":
        return Scan(tuple(range(len(images))), (), {}, None)
    expected = (height, width) if fits else None
    if index is None or not isinstance(images, StoredImages):
        return look(images, check == "decode", expected, workers, title)
    key = f"{check} {images.layout} {images.digest()}"
    known = index.get(key)
    if known is not None and not (fits and len(known["sizes"]) == 1):
        return from_arrays(known, images)
    found = look(images, check == "decode", expected, workers, title)
    if found.pixels is None:
        index.keep(key, as_arrays(found))
    return found


def look(
    images: Images,
    decoding: bool,
    expected: tuple[int, int] | None,
    workers: int | None,
    title: str,
) -> Scan:
    """Read every image, or its header, and keep the pixels if all have the expected size."""
    workers = len(usable_threads()) if workers is None else workers
    loader = DataLoader(
        ScanChunks(images, decoding, expected),
        batch_size=None,
        num_workers=workers if len(images) > FEW else 0,
        collate_fn=identity,
        generator=torch.Generator(),  # else the torch-wide one is drawn from
    )
    found: list[Found] = []
    kept: list[Tensor] | None = [] if expected else None
    for part, pixels in progress(iterate(loader), title, total=len(loader)):
        found += part
        kept = None if kept is None or pixels is None else [*kept, pixels]
    sizes = Counter(each for each in found if not isinstance(each, UnreadableImageError))
    together = kept is not None and len(sizes) == 1
    return Scan(
        readable=tuple(i for i, each in enumerate(found) if isinstance(each, tuple)),
        unreadable=tuple(each for each in found if isinstance(each, UnreadableImageError)),
        sizes=dict(sizes),
        pixels=torch.cat(kept).permute(0, 3, 1, 2).contiguous() if together and kept else None,
    )


def as_arrays(scan: Scan) -> dict[str, np.ndarray]:
    """What was found, for an index: sizes with their counts, and what is wrong with which."""
    broken = sorted(set(range(len(scan.readable) + len(scan.unreadable))) - set(scan.readable))
    return {
        "sizes": np.array([(*size, n) for size, n in scan.sizes.items()], np.int64).reshape(-1, 3),
        "broken": np.array(broken, dtype=np.int64),
        "reasons": np.array([error.reason for error in scan.unreadable], dtype=np.str_),
    }


def from_arrays(found: dict[str, np.ndarray], images: Images) -> Scan:
    """The same out of an index."""
    broken, reasons = found["broken"].tolist(), found["reasons"].tolist()
    without = set(broken)
    return Scan(
        readable=tuple(number for number in range(len(images)) if number not in without),
        unreadable=tuple(
            UnreadableImageError(images.name(number), reason)
            for number, reason in zip(broken, reasons, strict=True)
        ),
        sizes={(height, width): count for height, width, count in found["sizes"].tolist()},
        pixels=None,
    )


def first_sides(images: Images) -> tuple[int, int]:
    """Height and width of the first readable image: a guess at the others."""
    for number in range(len(images)):
        try:
            width, height = images.read(number).size
        except UnreadableImageError:
            continue
        return height, width
    return 0, 0


class ScanChunks(Dataset):
    """Item i is what was found in the i-th chunk of images, with pixels if all have `expected`,
    height and width. From the first other size on, headers do unless all are to be decoded.
    """

    def __init__(self, images: Images, decoding: bool, expected: tuple[int, int] | None):
        self.images = images
        self.decoding = decoding
        self.expected = expected

    def __len__(self) -> int:
        return -(-len(self.images) // CHUNK)

    def __getitem__(self, chunk: int) -> tuple[list[Found], Tensor | None]:
        found: list[Found] = []
        arrays: list[np.ndarray] = []
        keeping = self.expected is not None
        for number in range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(self.images))):
            try:
                if isinstance(self.images, StoredImages) and not (self.decoding or keeping):
                    found.append(self.images.size_of(number))
                    continue
                image = self.images.read(number)
                found.append((image.height, image.width))
                keeping = keeping and found[-1] == self.expected
                if keeping:
                    arrays.append(np.asarray(image))
                else:
                    arrays.clear()
            except UnreadableImageError as error:
                found.append(error)
        return found, torch.from_numpy(np.stack(arrays)) if arrays else None


def identity(item: Any) -> Any:
    """Not collated."""
    return item


def progress(items: Iterable[Any], title: str, total: int) -> Iterable[Any]:
    """The items, with a bar on a terminal while they come."""
    from rich.console import Console
    from rich.progress import track

    quiet = total < 2 or not sys.stderr.isatty()
    console = Console(stderr=True)
    return track(items, title, total=total, console=console, transient=True, disable=quiet)
