"""A folder of images, with splits and classes as its subfolders say."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eqco.data.decoding import EXTENSIONS
from eqco.data.images import FileImages
from eqco.data.sources import Source, Split
from eqco.data.stored import ALL, SPLIT_NAMES, Opening, source_of_splits
from eqco.runtime.errors import InputError

__all__ = ["open_folder"]

LOOKED_FOR = f"images ({' '.join(EXTENSIONS)})"


@dataclass(frozen=True)
class Listing:
    """The files of one split, before any is opened."""

    name: str
    paths: tuple[str, ...]
    labels: tuple[int, ...] | None
    classes: tuple[str, ...]


def open_folder(folder: Path, how: Opening) -> Source:
    """A data set out of a folder.

    Folders named train, val, test or unlabelled are splits, also by other usual names (training;
    valid, validation, dev; testing; unlabeled); folders in them, or in `folder` itself, are
    classes. Classes without splits are divided by a seed; images without folders, or in one
    alone, are one unlabelled split for pre-training. `notes` of the source say what was taken how.
    """
    if not folder.exists():
        raise InputError(f"{folder} does not exist; looked for a folder of {LOOKED_FOR}.")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give the folder that holds the images.")
    ignored: list[str] = []
    notes: list[str] = []
    listings = list_splits(folder, how.unlabelled, ignored, notes)
    splits = [
        Split(
            listing.name,
            FileImages(listing.paths),
            None if listing.labels is None else torch.tensor(listing.labels),
            listing.classes,
        )
        for listing in listings
    ]
    return source_of_splits(str(folder), splits, how, ignored=ignored, notes=notes)


def list_splits(
    folder: Path, unlabelled: bool, ignored: list[str], notes: list[str]
) -> list[Listing]:
    """The splits that the folder's structure defines; "all" stands for classes to be divided.

    Files that are no images by their name join `ignored`; what a user might not expect, `notes`.
    """
    subfolders = visible_folders(folder)
    named = [name for name in subfolders if name.lower() in SPLIT_NAMES]
    if not any(SPLIT_NAMES[name.lower()] in ("train", "unlabelled") for name in named):
        # beside no training images, dev and alike may well be classes
        named = [name for name in named if name.lower() in SPLIT_NAMES.values()]
    if unlabelled or not subfolders:
        paths = files_below(folder, ignored)
        require_images(paths, folder)
        return [Listing("train", paths, None, ())]
    if not named:
        listing = list_classes(folder, ALL, (), ignored, notes)
        return [listing if listing.labels is not None else replace(listing, name="train")]
    unused = [name for name in subfolders if name not in named]
    if unused:
        notes.append(f"not used, since there are splits beside: {', '.join(unused)}")
    listings: list[Listing] = []
    classes: tuple[str, ...] = ()
    # train first: its classes number those of the others
    for name in sorted(named, key=lambda name: list(SPLIT_NAMES).index(name.lower())):
        split = SPLIT_NAMES[name.lower()]
        inside = folder / name
        if split != name.lower():
            notes.append(f"the folder {name} is taken as the split {split}")
        if any(listing.name == split for listing in listings):
            raise InputError(f"{folder} has two folders for the split {split!r}; keep one.")
        if split == "unlabelled" or not visible_folders(inside):
            paths = files_below(inside, ignored)
            require_images(paths, inside)
            listings.append(Listing(split, paths, None, ()))
        else:
            listings.append(list_classes(inside, split, classes, ignored, notes))
            classes = classes or listings[-1].classes
    return listings


def list_classes(
    folder: Path, split: str, known: tuple[str, ...], ignored: list[str], notes: list[str]
) -> Listing:
    """The classes of one split; `known` are the classes of the split before.

    One class tells nothing apart: its images are taken without, which pre-training needs not.
    """
    names = visible_folders(folder)
    loose = [entry.name for entry in os.scandir(folder) if is_image(entry)]
    if loose:
        raise InputError(
            f"{folder} holds images ({loose[0]}) beside folders ({names[0]}), so that it is not "
            f"clear what the classes are. Move the images, or pass --unlabelled to use all of them "
            f"without classes."
        )
    found = {name: files_below(folder / name, ignored) for name in names}
    if not any(found.values()):
        require_images((), folder)
    for name, paths in found.items():
        if not paths:
            raise InputError(f"{folder / name} holds no {LOOKED_FOR}; fill or remove that folder.")
    if len(names) == 1 and not known:
        notes.append(f"{folder} has one folder, {names[0]}: its images are taken without classes")
        return Listing(split, found[names[0]], None, ())
    unknown = set(names) - set(known)
    if known and unknown:
        raise InputError(
            f"{folder} has a class {min(unknown)!r} that the training split does not have; "
            f"rename or remove it."
        )
    classes = known or tuple(names)
    paths = tuple(path for name in names for path in found[name])
    numbers = {name: number for number, name in enumerate(classes)}
    labels = tuple(numbers[name] for name in names for _ in found[name])
    return Listing(split, paths, labels, classes)


def visible_folders(folder: Path) -> list[str]:
    """Names of the folders inside, sorted, hidden ones left out."""
    entries = os.scandir(folder)
    return sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] != ".")


def is_image(entry: os.DirEntry[str]) -> bool:
    """Whether the name is that of an image file."""
    return entry.is_file() and entry.name[0] != "." and entry.name.lower().endswith(EXTENSIONS)


def files_below(folder: Path, ignored: list[str]) -> tuple[str, ...]:
    """Paths of all image files below, sorted; the others join `ignored`."""
    paths: list[str] = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in sorted(files):
            if name[0] == ".":
                continue
            images = name.lower().endswith(EXTENSIONS)
            (paths if images else ignored).append(os.path.join(parent, name))
    return tuple(paths)


def require_images(paths: Sequence[str], folder: Path) -> None:
    """Refuse a folder without images."""
    if not paths:
        raise InputError(f"{folder} holds no images; looked for {LOOKED_FOR} in it and below.")
