"""Scan many files in parallel: sizes, what cannot be read, and pixels if memory allows."""

import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eqco.data.decoding import UnreadableImageError, image_size
from eqco.data.images import FileImages, Images

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
) -> Scan:
    """Scan every image once, in parallel.

    Decodes all if they are to be kept in memory: when all have one size, take at most `memory_gib`
    together, and their shorter side is at most `memory_side`, if that is given. Otherwise reads
    what `check` says: nothing, the headers (fast; misses damage further in), or everything.
    """
    height, width = first_sides(images) if memory_gib > 0 else (0, 0)
    size = height * width * images.channels * (4 if images.layout.deep else 1)
    fits = memory_gib > 0 and size * len(images) <= memory_gib * 2**30
    fits = fits and (memory_side is None or min(height, width) <= memory_side)
    if not fits and check == "none":
        return Scan(tuple(range(len(images))), (), {}, None)
    decoding = fits or check == "decode" or not isinstance(images, FileImages)
    loader = DataLoader(
        ScanChunks(images, decoding, fits),
        batch_size=None,
        num_workers=(available_cores() if workers is None else workers) if len(images) > FEW else 0,
        collate_fn=identity,
    )
    found: list[Found] = []
    kept: list[Tensor] | None = [] if fits else None
    for part, pixels in progress(loader, title, total=len(loader)):
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
    """Item i is what was found in the i-th chunk of images, with pixels if all have one size."""

    def __init__(self, images: Images, decoding: bool, keep: bool):
        self.images = images
        self.decoding = decoding
        self.keep = keep

    def __len__(self) -> int:
        return -(-len(self.images) // CHUNK)

    def __getitem__(self, chunk: int) -> tuple[list[Found], Tensor | None]:
        found: list[Found] = []
        arrays: list[np.ndarray] = []
        for number in range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(self.images))):
            try:
                if self.decoding:
                    image = self.images.read(number)
                    found.append((image.height, image.width))
                    if self.keep:
                        arrays.append(np.asarray(image))
                else:
                    found.append(image_size(self.images.name(number), self.images.layout))
            except UnreadableImageError as error:
                found.append(error)
        alike = len({array.shape for array in arrays}) == 1
        return found, torch.from_numpy(np.stack(arrays)) if alike else None


def identity(item: Any) -> Any:
    """Not collated."""
    return item


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def progress(items: Iterable[Any], title: str, total: int) -> Iterable[Any]:
    """The items, with a bar on a terminal while they come."""
    from rich.console import Console
    from rich.progress import track

    quiet = total < 2 or not sys.stderr.isatty()
    console = Console(stderr=True)
    return track(items, title, total=total, console=console, transient=True, disable=quiet)
