"""A data set as the trainer sees it: named splits of images, with labels or without."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eqco.data.decoding import UnreadableImageError
from eqco.data.images import DatasetImages, Images, MemoryImages
from eqco.data.parameters import STREAM_SPLIT
from eqco.data.scanning import Check, scan
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import counter_generator

__all__ = [
    "Source",
    "Split",
    "divide",
    "divided_numbers",
    "evaluation_split",
    "source_from_dataset",
    "with_fewer_images",
    "write_unreadable",
]


@dataclass(frozen=True, repr=False)
class Split:
    """Images that belong together: to train on, to test on.

    >>> Split("train", MemoryImages(torch.zeros(2, 3, 8, 8)), None)
    Split('train', 2 images, unlabelled)
    """

    name: str
    images: Images
    labels: Tensor | None  # (n,) int64, numbers of classes; None: unlabelled
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.images):
            raise InputError(
                f"split {self.name!r} has {len(self.images)} images and {len(self.labels)} labels; "
                f"there must be one label per image."
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        labels = f"{len(self.classes)} classes" if self.labels is not None else "unlabelled"
        return f"Split({self.name!r}, {len(self)} images, {labels})"

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width, if the images are in memory and hence all alike."""
        if isinstance(self.images, MemoryImages):
            height, width = self.images.pixels.shape[2:]
            return height, width
        return None

    def subset(self, numbers: Sequence[int], name: str | None = None) -> "Split":
        """Those images and labels, in that order."""
        chosen = torch.as_tensor(numbers, dtype=torch.long)
        labels = None if self.labels is None else self.labels[chosen]
        return Split(name or self.name, self.images.subset(numbers), labels, self.classes)

    def spread(self, most: int) -> "Split":
        """At most so many of the images, at equal distances from the first on.

        >>> split = Split("val", MemoryImages(torch.zeros(5, 3, 8, 8)), torch.arange(5))
        >>> split.spread(2).labels, split.spread(9) is split
        (tensor([0, 2]), True)
        """
        if len(self) <= most:
            return self
        return self.subset([place * len(self) // most for place in range(most)])


@dataclass(frozen=True, repr=False)
class Source:
    """A data set: its splits by name (train, val, test, unlabelled), and what was left out."""

    name: str
    splits: Mapping[str, Split]
    sizes: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (height, width): how many
    unreadable: tuple[UnreadableImageError, ...] = ()
    ignored: tuple[str, ...] = ()  # files that are no images by their name
    notes: tuple[str, ...] = ()  # how a folder was taken, where a user might not expect it

    def __getitem__(self, split: str) -> Split:
        if split not in self.splits:
            raise InputError(
                f"split={split!r}, but {self.name} has {', '.join(self.splits)}; choose one."
            )
        return self.splits[split]

    def __contains__(self, split: str) -> bool:
        return split in self.splits

    def __repr__(self) -> str:
        return f"Source({self.name!r}, {', '.join(map(repr, self.splits.values()))})"

    def __post_init__(self) -> None:
        layouts = {name: split.images.layout for name, split in self.splits.items()}
        if len(set(layouts.values())) > 1:
            found = ", ".join(f"{name} has {layout}" for name, layout in layouts.items())
            raise InputError(f"the splits of {self.name} differ: {found}; they must be alike.")

    @property
    def channels(self) -> int:
        """The bands of every image: 3 of colour."""
        return next(iter(self.splits.values())).images.channels

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, empty if nothing is labelled."""
        return next((split.classes for split in self.splits.values() if split.classes), ())


def evaluation_split(splits: Container[str]) -> str | None:
    """The split that is tested on where none is named: test, or val where test has no labels.

    >>> evaluation_split(["train", "val"]), evaluation_split(["train"])
    ('val', None)
    """
    return next((name for name in ("test", "val") if name in splits), None)


def divide(
    split: Split, *, val_fraction: float, test_fraction: float, seed: int
) -> dict[str, Split]:
    """Train, val and test out of one labelled split, class by class, by a seed.

    Every class keeps an image for training; a fraction of 0 makes no such split.
    """
    numbers = divided_numbers(split, val_fraction, test_fraction, seed)
    return {name: split.subset(own, name) for name, own in numbers.items() if own}


def divided_numbers(
    split: Split, val_fraction: float, test_fraction: float, seed: int
) -> dict[str, list[int]]:
    """Which images of a labelled split each part of it has, in order."""
    if min(val_fraction, test_fraction) < 0 or val_fraction + test_fraction >= 1:
        raise InputError(
            f"val_fraction={val_fraction} and test_fraction={test_fraction}; they must be 0 or "
            f"more and leave something to train on."
        )
    numbers: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for members in shuffled_members(split, seed):
        val = min(round(val_fraction * len(members)), len(members) - 1)
        test = min(round(test_fraction * len(members)), len(members) - 1 - val)
        numbers["val"] += members[:val].tolist()
        numbers["test"] += members[val : val + test].tolist()
        numbers["train"] += members[val + test :].tolist()
    return {name: sorted(own) for name, own in numbers.items()}


def shuffled_members(split: Split, seed: int) -> list[Tensor]:
    """The numbers of the images of each class, in an order drawn by the seed."""
    assert split.labels is not None
    generator = counter_generator(seed, STREAM_SPLIT, 0)
    members = [(split.labels == label).nonzero()[:, 0] for label in range(len(split.classes))]
    return [torch.from_numpy(generator.permutation(each.numpy())) for each in members]


def with_fewer_images(source: Source, count: int, *, seed: int = 0) -> Source:
    """The source with so many of its training images, the same share of each class."""
    whole = source["train"]
    if not 0 < count < len(whole):
        raise InputError(
            f"{count:,} of the {len(whole):,} training images of {source.name} were asked for; "
            f"choose 1 to {len(whole) - 1:,}."
        )
    members = shuffled_members(whole, seed)
    shares = [count * len(each) / len(whole) for each in members]
    taken = [int(share) for share in shares]
    # what rounding down leaves goes to the classes that lose most by it
    by_loss = sorted(range(len(members)), key=lambda label: taken[label] - shares[label])
    for label in by_loss[: count - sum(taken)]:
        taken[label] += 1
    numbers = [each[:most].tolist() for each, most in zip(members, taken, strict=True)]
    part = whole.subset(sorted(chain(*numbers)), "train")
    return replace(source, splits={**source.splits, "train": part})


def source_from_dataset(
    dataset: Any,
    *,
    labels: Sequence[int] | Tensor | None = None,
    classes: Sequence[str] = (),
    split: str = "train",
    channels: int | None = None,
    memory_gib: float = 2.0,
    check: Check = "none",
) -> Source:
    """A map-style Dataset of the user's as a source with one split.

    Args:
        dataset: items are images, or tuples that begin with one; see `DatasetImages`.
        labels: a class number per item; `dataset.targets` if there is one and this is None.
        classes: their names; numbers if empty.
        split: what to call it.
        channels: bands of every image; by default what the first item has.
        memory_gib: kept decoded in memory up to this size, if all images have one size.
        check: "decode" to read every item now.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"{type(dataset).__name__} is no map-style Dataset: it needs __len__ and __getitem__."
        )
    if isinstance(dataset, Mapping):
        keys = [repr(key) for key in dataset]
        one = f"data[{keys[0] if keys else repr('train')}]"
        raise InputError(
            f"{type(dataset).__name__} is a collection of data sets ({', '.join(keys[:5])}). Give "
            f"one of them, such as {one}, or with labels eqco.data.source_from_dataset({one}, "
            f"labels=NUMBERS). What Hugging Face's datasets has saved is read with its splits and "
            f"labels as 'hf:PATH'."
        )
    if not len(dataset):
        raise InputError(f"{type(dataset).__name__} is empty; it must have at least one item.")
    labels = getattr(dataset, "targets", None) if labels is None else labels
    numbers = None if labels is None else torch.as_tensor(labels, dtype=torch.long)
    names = tuple(classes) or tuple(getattr(dataset, "classes", ()))
    if numbers is not None and not names:
        names = tuple(str(number) for number in range(int(numbers.max()) + 1))
    images: Images = DatasetImages(dataset, channels=channels)
    found = scan(images, check=check, memory_gib=memory_gib, workers=0)
    if found.unreadable:
        raise found.unreadable[0]
    if found.pixels is not None:
        images = MemoryImages(found.pixels)
    name = type(dataset).__name__
    return Source(name, {split: Split(split, images, numbers, names)}, found.sizes)


def write_unreadable(path: Path, unreadable: Sequence[UnreadableImageError]) -> None:
    """Add the names and reasons to a list in the run directory; nothing is written for none."""
    if unreadable:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{error.name}\t{error.reason}\n" for error in unreadable)
