"""Shards as WebDataset writes them: tar files of images, reached one by one through an index.

A tar file keeps each member in one piece, so that where it begins and how long it is suffice to
read it. With that of all members known, shards are a numbered collection like any other: order is
a function of (seed, step), on any number of processes, and training resumes in the middle of an
epoch.
"""

import glob
import hashlib
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eqco.data.bands import COLOUR, Layout
from eqco.data.decoding import EXTENSIONS, UnreadableImageError
from eqco.data.images import EncodedImages, files_digest
from eqco.data.index import ScanIndex
from eqco.data.scanning import identity, progress
from eqco.data.sources import Source, Split
from eqco.data.stored import (
    ALL,
    SPLIT_NAMES,
    Opening,
    file_split_name,
    number_classes,
    source_of_splits,
)
from eqco.runtime.cores import usable_threads
from eqco.runtime.devices import iterate
from eqco.runtime.errors import InputError

__all__ = ["ShardImages", "expand_braces", "is_shards", "open_shards"]

LABEL = "cls"  # the member that holds the class of a sample
# the key of a sample and what the member is of it, as WebDataset cuts a name: at the first dot
MEMBER = re.compile(r"(?P<key>(?:.*/|)[^./][^.]*)\.(?P<part>[^/]+)")
FEW = 8  # shards that are not worth the start of processes


def is_shards(name: str) -> bool:
    """Whether this names tar files, by itself or as a pattern.

    >>> is_shards("shards/train-{0000..0031}.tar"), is_shards("photos")
    (True, False)
    """
    return name.endswith((".tar", ".tar.gz", ".tgz"))


def expand_braces(pattern: str) -> list[str]:
    """All names that a pattern with {0000..0031} or {train,val} stands for, in order.

    >>> expand_braces("{a,b}-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", found[1])
    if numbers is None:
        choices = found[1].split(",")
    else:
        first, last = numbers.groups()
        choices = [f"{each:0{len(first)}d}" for each in range(int(first), int(last) + 1)]
    return [each for choice in choices for each in expand_braces(f"{before}{choice}{after}")]


class ShardImages(EncodedImages):
    """Images in tar files.

    Args:
        shards: the files.
        places: number of the shard, first byte and length of each image, (n, 3).
        names: of the members.
        layout: of all.
    """

    def __init__(
        self,
        shards: Sequence[str],
        places: np.ndarray,
        names: np.ndarray,
        layout: Layout = COLOUR,
    ):
        self.shards = list(shards)
        self.places = places
        self.names = names
        self.layout = layout

    def __len__(self) -> int:
        return len(self.places)

    def encoded(self, number: int, limit: int | None = None) -> bytes:
        """The bytes of a member."""
        shard, start, size = self.places[number].tolist()
        wanted = size if limit is None else min(size, limit)
        try:
            file = os.open(self.shards[shard], os.O_RDONLY)
            try:
                data = os.pread(file, wanted, start)
            finally:
                os.close(file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnreadableImageError(self.name(number), reason) from error
        if len(data) < wanted:
            raise UnreadableImageError(self.name(number), "the shard ends before it")
        return data

    def name(self, number: int) -> str:
        """The shard, and the member in it."""
        return f"{self.shards[self.places[number, 0]]}/{os.fsdecode(self.names[number])}"

    def digest(self) -> str:
        """Of the shards' names, sizes and times of change, and of which members are taken."""
        digest = hashlib.sha256(files_digest(self.shards).encode())
        digest.update(np.ascontiguousarray(self.places).tobytes())
        return digest.hexdigest()

    def subset(self, numbers: Sequence[int]) -> "ShardImages":
        """Those members."""
        chosen = np.asarray(numbers, dtype=np.int64)
        return ShardImages(self.shards, self.places[chosen], self.names[chosen], self.layout)


def open_shards(pattern: str, how: Opening) -> Source:
    """A data set out of tar files that a path, {0000..0031}, {train,val} or * stands for.

    A sample is what the names of its members have before the first dot: an image (`0001.jpg`), and
    its class where there is one (`0001.cls`, a number or a word). Shards with the name of a split
    in theirs, or in their folder's, belong to it.
    """
    shards = list_shards(pattern)
    index = ScanIndex() if how.index is None else how.index
    key = files_digest(shards)
    found = index.get(key)
    if found is None:
        found = index_shards(shards)
        index.keep(key, found)
    places, names, labels = found["places"], found["names"], found["labels"]
    if not len(places):
        raise InputError(
            f"{pattern} holds no images; looked for members that end in {' '.join(EXTENSIONS)}."
        )
    notes: list[str] = []
    split_names = [ALL if how.unlabelled else split_of(path, notes) for path in shards]
    splits: list[Split] = []
    classes: tuple[str, ...] = ()
    # train first: its classes number those of the others
    for name in sorted(set(split_names), key=[ALL, *SPLIT_NAMES].index):
        members = np.isin(places[:, 0], [i for i, s in enumerate(split_names) if s == name])
        numbers: Tensor | None = None
        if name != "unlabelled" and not how.unlabelled:
            own = [os.fsdecode(each) for each in labels[members].tolist()]
            numbers, classes = labels_of(own, classes, where=f"{pattern} ({name})")
        images = ShardImages(shards, places[members], names[members])
        splits.append(Split(name, images, numbers, () if numbers is None else classes))
    other = Counter(os.fsdecode(each) for each in found["others"].tolist())
    if other:
        kinds = ", ".join(f"{count} .{part}" for part, count in other.most_common(5))
        notes.append(f"members of the shards that are not used: {kinds}")
    return source_of_splits(pattern, splits, how, notes=tuple(dict.fromkeys(notes)))


def labels_of(
    labels: Sequence[str], known: tuple[str, ...], *, where: str
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Class numbers of the images of a split; all or none must have a class."""
    missing = sum(not label for label in labels)
    if missing == len(labels):
        return None, known
    if missing:
        raise InputError(
            f"{missing} of the {len(labels)} images of {where} have no .{LABEL} beside them. Give "
            f"every image its class, or pass --unlabelled to take all without."
        )
    return number_classes(labels, known, where=where)


def list_shards(pattern: str) -> list[str]:
    """The files that a pattern stands for; those that are missing are named."""
    named = [os.path.expanduser(each) for each in expand_braces(pattern)]
    found = [sorted(glob.glob(each)) if "*" in each else [each] for each in named]
    shards = [path for paths in found for path in paths]
    missing = [path for path in shards if not os.path.isfile(path)]
    remedy = "Give files on disk, quoted, as in 'shards/train-{0000..0031}.tar'."
    if not shards:
        raise InputError(f"{pattern} names no file that exists. {remedy}")
    if missing:
        raise InputError(
            f"{len(missing)} of the {len(shards)} shards of {pattern} are not there, the first is "
            f"{missing[0]}. {remedy}"
        )
    packed = [path for path in shards if not path.endswith(".tar")]
    if packed:
        raise InputError(
            f"{packed[0]} is compressed, so that an image in it cannot be reached without all "
            f"before it. Unpack it (gunzip {packed[0]}); images are compressed themselves."
        )
    return shards


def split_of(path: str, notes: list[str]) -> str:
    """The split that a shard belongs to by its name or its folder's; a synonym joins `notes`."""
    name = file_split_name(Path(path))
    if name is None:
        return ALL
    split = SPLIT_NAMES[name.lower()]
    if split != name.lower():
        notes.append(f"shards named {name} are taken as the split {split}")
    return split


def index_shards(shards: Sequence[str]) -> dict[str, np.ndarray]:
    """Where the images of all shards are, what they are called, and their classes."""
    loader = DataLoader(
        ShardIndices(shards),
        batch_size=None,
        num_workers=len(usable_threads()) if len(shards) > FEW else 0,
        collate_fn=identity,
        generator=torch.Generator(),  # else the torch-wide one is drawn from
    )
    samples: list[tuple[int, int, int, bytes, bytes]] = []
    others: list[str] = []
    title = f"listing the images of {len(shards)} shards"
    for number, answer in enumerate(progress(iterate(loader), title, total=len(shards))):
        if isinstance(answer, InputError):
            raise answer
        own, rest = answer
        samples += [(number, *sample) for sample in own]
        others += rest
    places = np.array([sample[:3] for sample in samples], dtype=np.int64).reshape(-1, 3)
    return {
        "places": places,
        "names": np.array([sample[3] for sample in samples], dtype=np.bytes_),
        "labels": np.array([sample[4] for sample in samples], dtype=np.bytes_),
        "others": np.array([os.fsencode(each) for each in others], dtype=np.bytes_),
    }


class ShardIndices(Dataset):
    """Item i is the index of the i-th shard, or what is wrong with it."""

    def __init__(self, shards: Sequence[str]):
        self.shards = shards

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, number: int) -> Any:
        path = self.shards[number]
        try:
            return index_shard(path)
        except (tarfile.TarError, OSError) as error:
            return InputError(
                f"{path} cannot be read as a tar file ({error}). Write it again, or leave it out "
                f"of the pattern."
            )


def index_shard(path: str) -> tuple[list[tuple[int, int, bytes, bytes]], list[str]]:
    """First byte, length, name and class of each image in a tar file; what else members are."""
    images: dict[str, tuple[int, int, bytes]] = {}
    labels: dict[str, bytes] = {}
    others: list[str] = []
    with tarfile.open(path, "r:") as archive:
        for key, part, member in members_of(archive):
            if f".{part}" in EXTENSIONS and key not in images:
                images[key] = member.offset_data, member.size, os.fsencode(member.name)
            elif part == LABEL:
                content = archive.extractfile(member)
                assert content is not None
                labels[key] = content.read().strip()
            else:
                others.append(part)
    return [(*image, labels.get(key, b"")) for key, image in images.items()], others


def members_of(archive: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Key, part and header of each file that belongs to a sample."""
    for member in archive:
        cut = MEMBER.fullmatch(member.name)
        if member.isfile() and cut is not None and not member.issparse():
            yield cut["key"], cut["part"].lower(), member
