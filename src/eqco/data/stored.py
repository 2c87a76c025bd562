"""From listed images to a source: one look at all of them, splits and classes by their names."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from eqco.data.decoding import UnreadableImageError
from eqco.data.images import MemoryImages, StoredImages, common_layout
from eqco.data.index import ScanIndex
from eqco.data.scanning import Check, scan
from eqco.data.sources import Source, Split, divided_numbers
from eqco.runtime.errors import InputError

__all__ = [
    "ALL",
    "SPLIT_NAMES",
    "OnUnreadable",
    "Opening",
    "file_split_name",
    "first_split_name",
    "number_classes",
    "source_of_splits",
]

OnUnreadable = Literal["error", "skip"]
# the names that a split may have
SPLIT_NAMES = {"train": "train", "training": "train", "val": "val", "valid": "val"}
SPLIT_NAMES |= {"validation": "val", "dev": "val", "testing": "test"}
SPLIT_NAMES |= {"test": "test", "unlabelled": "unlabelled", "unlabeled": "unlabelled"}
ALL = "all"  # a split whose name nobody gave: divided where it has classes


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How images are taken that lie on disk."""

    unlabelled: bool = False
    """Take all images as one split without classes."""
    channels: int | None = None
    """Bands of every image; None: what the first has (see `find_layout`)."""
    val_fraction: float = 0.1
    """Share of each class for val, if nothing says which images are."""
    test_fraction: float = 0.1
    """Share of each class for test, likewise."""
    split_seed: int = 0
    """Decides which."""
    memory_gib: float = 2.0
    """Keep images of one size decoded in memory up to this; 0 never."""
    memory_side: int | None = None
    """And none whose shorter side has more pixels; None: any."""
    check: Check = "header"
    """What to look at beforehand when they are not kept in memory; see `scan`."""
    on_unreadable: OnUnreadable = "error"
    """Refuse the set, or leave such images out and list them in the source."""
    workers: int | None = None
    """Processes that look; all cores by default."""
    index: ScanIndex | None = None
    """What an earlier look has found."""


def source_of_splits(
    name: str,
    splits: Sequence[Split],
    how: Opening,
    *,
    ignored: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Source:
    """A source out of listed images: looked at once, kept in memory if they fit.

    A split named "all" is divided by its classes, or is train where it has none.
    """
    images = [split.images for split in splits if isinstance(split.images, StoredImages)]
    layout = common_layout(images, how.channels)
    for each in images:
        each.layout = layout
    found: dict[str, Split] = {}
    sizes: Counter[tuple[int, int]] = Counter()
    unreadable: list[UnreadableImageError] = []
    for split in splits:
        if not len(split):
            raise InputError(f"{name} has no images in its split {split.name}.")
        looked = scan(
            split.images,
            check=how.check,
            memory_gib=how.memory_gib,
            memory_side=how.memory_side,
            workers=how.workers,
            title=f"reading {len(split):,} images of {split.name}",
            index=how.index,
        )
        if looked.unreadable and how.on_unreadable == "error":
            raise first_unreadable(looked.unreadable, name)
        if not looked.readable:
            raise InputError(
                f"none of the {len(split)} images of {name} can be read; "
                f"of the first: {looked.unreadable[0].reason}."
            )
        unreadable += looked.unreadable
        sizes.update(looked.sizes)
        listed = split
        if looked.unreadable:
            split = split.subset(looked.readable)
        if looked.pixels is not None:
            split = replace(split, images=MemoryImages(looked.pixels))
        if split.name == ALL:
            found |= divided(listed, split, looked.readable, how)
        else:
            found[split.name] = split
    return Source(name, found, sizes, tuple(unreadable), tuple(ignored), tuple(notes))


def divided(listed: Split, split: Split, readable: Sequence[int], how: Opening) -> dict[str, Split]:
    """Train, val and test of a split with classes; train of one without.

    All that is listed is divided and then those that cannot be read are left out, so that a closer
    look, which finds more of them, moves no image from one part to another.
    """
    if split.labels is None:
        return {"train": replace(split, name="train")}
    parts = divided_numbers(listed, how.val_fraction, how.test_fraction, how.split_seed)
    place = {number: place for place, number in enumerate(readable)}
    found = {name: [place[n] for n in own if n in place] for name, own in parts.items()}
    return {name: split.subset(own, name) for name, own in found.items() if own}


def first_unreadable(unreadable: Sequence[UnreadableImageError], name: str) -> UnreadableImageError:
    """The error of the first, which counts the others."""
    first = unreadable[0]
    if len(unreadable) == 1:
        return first
    more = len(unreadable) - 1
    others = f"{first.reason} (and {more} more file{'s' * (more > 1)} of {name}, see eqco data)"
    return UnreadableImageError(first.name, others)


def first_split_name(text: str) -> str | None:
    """The first word of a name that is the name of a split.

    >>> first_split_name("imagenet-Valid-000012"), first_split_name("trained")
    ('Valid', None)
    """
    words = re.split(r"[^A-Za-z]+", text)
    return next((word for word in words if word.lower() in SPLIT_NAMES), None)


def file_split_name(path: Path) -> str | None:
    """The name of a split in a file's name, or that its folder has.

    >>> file_split_name(Path("data/valid-0001.tar")), file_split_name(Path("dev/0001.tar"))
    ('valid', 'dev')
    >>> file_split_name(Path("test data/0001.tar"))
    """
    folder = path.parent.name
    return first_split_name(path.stem) or (folder if folder.lower() in SPLIT_NAMES else None)


def number_classes(
    labels: Sequence[str], known: Sequence[str] = (), *, where: str = ""
) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers of labels as words, and the classes: those known, or all there are, in order.

    Numbers are put in the order of numbers. A label that is not among those known is refused.

    >>> number_classes(["10", "9", "10"])
    (tensor([1, 0, 1]), ('9', '10'))
    """
    distinct = set(labels)
    numeric = all(label.lstrip("-").isdecimal() for label in distinct)
    classes = tuple(known) or tuple(sorted(distinct, key=int if numeric else str))
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = distinct - numbers.keys()
    if unknown:
        raise InputError(
            f"{where} has a class {min(unknown)!r} that the training split does not have; "
            f"rename or remove it."
        )
    return torch.tensor([numbers[label] for label in labels]), classes
