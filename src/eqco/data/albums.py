"""Images of any layout with their names, and labels where the layout defines them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eqco.data.decoding import find_layout
from eqco.data.folders import files_below, list_splits, require_images
from eqco.data.images import FileImages, Images
from eqco.data.opening import DEFAULT_ROOT, NAMES, kind_of, open_source
from eqco.data.sources import Split
from eqco.runtime.errors import InputError

__all__ = ["Album", "open_album"]


@dataclass(frozen=True)
class Album:
    """Images in a fixed order: to be turned into vectors, not to be trained on."""

    images: Images
    names: tuple[str, ...]  # of files, below the folder; of a list, shards or a table as they are
    # named there; of a data set by name, SPLIT/NUMBER
    labels: Tensor | None  # (n,) int64; -1 where an image has none; None: nobody has
    classes: tuple[str, ...] = ()
    note: str = ""  # why there are no labels, where one might expect them

    def __len__(self) -> int:
        return len(self.images)


def open_album(data: str, *, root: Path = DEFAULT_ROOT, channels: int | None = None) -> list[Album]:
    """The images of a folder, whatever its layout, or of any other data: one album per split.

    A folder is one album, of all image files in it and below. `channels` as in `open_source`.
    """
    if kind_of(data) == "folder":
        return [folder_album(Path(data).expanduser(), channels)]
    if kind_of(data) == "name":
        source = open_source(data, root=root, channels=channels)
        return [
            album_of(split, [f"{split.name}/{number}" for number in range(len(split))])
            for split in source.splits.values()
        ]
    source = open_source(data, root=root, channels=channels, memory_gib=0)  # which keeps names
    return [
        album_of(split, [split.images.name(number) for number in range(len(split))])
        for split in source.splits.values()
    ]


def album_of(split: Split, names: Sequence[str]) -> Album:
    """A split with the names of its images."""
    return Album(split.images, tuple(names), split.labels, split.classes)


def folder_album(folder: Path, channels: int | None = None) -> Album:
    """All image files below a folder, sorted; labelled where its subfolders are classes."""
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder}. Give a folder of images, or a data set by name: "
            f"{', '.join(NAMES)}."
        )
    paths = files_below(folder, [])
    require_images(paths, folder)
    names = tuple(Path(path).relative_to(folder).as_posix() for path in paths)
    images = FileImages(paths, find_layout(paths, channels))
    try:
        listings = list_splits(folder, False, [], [])
    except InputError as error:  # a layout that is no data set is an album all the same
        return Album(images, names, None, note=str(error))
    labelled = [one for one in listings if one.labels is not None]
    known = {p: n for one in labelled for p, n in zip(one.paths, one.labels or (), strict=True)}
    if not known:
        return Album(images, names, None)
    labels = torch.tensor([known.get(path, -1) for path in paths])
    return Album(images, names, labels, labelled[0].classes)
