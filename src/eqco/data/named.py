"""Data sets by name: the embedded one, and torchvision's."""

import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eqco.data.folders import open_folder
from eqco.data.images import FileImages, MemoryImages
from eqco.data.sources import Source, Split
from eqco.data.stored import Opening
from eqco.runtime.errors import InputError

__all__ = ["EMBEDDED", "NAMED", "open_embedded", "open_named"]

EMBEDDED = ("groceries", "groceries-coarse", "signs")
GREY = ("fashion-mnist",)  # repeated to three channels, unless one is wanted


def open_embedded(name: str = "groceries") -> Source:
    """The photographs that come with the package, at 64 pixels: fruit of 14 classes (coarse: 5), or
    hands that sign one of ten digits.

    >>> source = open_embedded()
    >>> {name: len(split) for name, split in source.splits.items()}
    {'train': 675, 'val': 57, 'test': 661}
    """
    kind = "coarse" if name == "groceries-coarse" else "fine"
    file = "signs64.npz" if name == "signs" else "groceries64.npz"
    with np.load(Path(__file__).with_name(file)) as archive:
        stored = {key: archive[key] for key in archive.files}
    data, ends = stored["jpeg"].tobytes(), stored["offset"]
    arrays = [
        np.asarray(Image.open(io.BytesIO(data[first:last])))
        for first, last in itertools.pairwise(ends)
    ]
    pixels = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(stored[kind].astype(np.int64))
    classes = tuple(str(each) for each in stored[f"{kind}_names"])
    everything = Split("all", MemoryImages(pixels, "photograph"), labels, classes)
    splits = {}
    for number, split in enumerate(str(each) for each in stored["split_names"]):
        own = (stored["split"] == number).nonzero()[0].tolist()
        splits[split] = everything.subset(own, split)
    return Source(name, splits, {(64, 64): len(pixels)})


def memory_split(name: str, pixels: Any, labels: Any, classes: Any) -> Split:
    """A split out of the arrays that a torchvision data set holds."""
    array = torch.as_tensor(pixels)
    if array.dim() == 3:  # grey
        array = array[:, None].expand(-1, 3, -1, -1)
    elif array.shape[3] == 3:
        array = array.permute(0, 3, 1, 2)
    numbers: Tensor | None = torch.as_tensor(np.asarray(labels), dtype=torch.long)
    if numbers is not None and bool((numbers < 0).any()):  # STL-10 marks its unlabelled split
        numbers = None
    names = () if numbers is None else tuple(str(each) for each in classes)
    return Split(name, MemoryImages(array.contiguous()), numbers, names)


def open_train_and_test(name: str, root: Path, download: bool) -> dict[str, Split]:
    """CIFAR-10, CIFAR-100, and Fashion-MNIST with grey repeated to three channels."""
    from torchvision import datasets

    kinds = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}
    kind = kinds.get(name, datasets.FashionMNIST)
    splits = {}
    for split in ("train", "test"):
        found = kind(root, train=split == "train", download=download)
        splits[split] = memory_split(split, found.data, found.targets, found.classes)
    return splits


def open_stl10(name: str, root: Path, download: bool) -> dict[str, Split]:
    """STL-10 with its 100,000 unlabelled images."""
    from torchvision import datasets

    splits = {}
    for split, stored in (("train", "train"), ("test", "test"), ("unlabelled", "unlabeled")):
        found = datasets.STL10(root, split=stored, download=download)
        splits[split] = memory_split(split, found.data, found.labels, found.classes)
    return splits


def open_imagenet(name: str, root: Path, download: bool) -> dict[str, Split]:
    """ImageNet from its archives in `root`, which torchvision unpacks but does not download."""
    from torchvision import datasets

    splits = {}
    for split in ("train", "val"):
        found = datasets.ImageNet(root, split=split)
        classes = tuple(", ".join(names) for names in found.classes)
        paths = [path for path, _ in found.samples]
        splits[split] = Split(split, FileImages(paths), torch.tensor(found.targets), classes)
    return splits


NAMED: dict[str, Callable[[str, Path, bool], dict[str, Split]]] = {
    "cifar10": open_train_and_test,
    "cifar100": open_train_and_test,
    "stl10": open_stl10,
    "fashion-mnist": open_train_and_test,
    "imagenet": open_imagenet,
}


def open_named(name: str, root: Path, how: Opening, *, download: bool = True) -> Source:
    """One of torchvision's data sets, downloaded to `root` where torchvision does that.

    Of those in `GREY` one channel can be had.
    """
    try:
        if name == "imagenette":
            return open_folder(imagenette_folder(root, download), replace(how, unlabelled=False))
        splits = NAMED[name](name, root, download)
    # how torchvision reports missing or damaged archives, and no network
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"{name} could not be opened below {root} ({error}). {how_to_get(name, root)}, or use "
            f"'groceries', which is built in."
        ) from error
    if how.channels == 1:
        splits = {name: first_channel(split) for name, split in splits.items()}
    total = sum(map(len, splits.values()))
    return Source(name, splits, {s.size: total for s in splits.values() if s.size})


def first_channel(split: Split) -> Split:
    """A grey split without the repeated channels."""
    assert isinstance(split.images, MemoryImages)
    images = MemoryImages(split.images.pixels[:, :1].contiguous())
    return Split(split.name, images, split.labels, split.classes)


def how_to_get(name: str, root: Path) -> str:
    """What to do about a data set that is not there; `eqco train` looks nowhere but in `root`."""
    if name == "imagenet":
        return f"Put its archives into {root} or give a folder with train/CLASS and val/CLASS"
    return (
        f"Run `eqco data {name} --root FOLDER` where there is a network and copy FOLDER to {root}"
    )


def imagenette_folder(root: Path, download: bool) -> Path:
    """Imagenette at 160 pixels: torchvision fetches the folder, opened as any other."""
    from torchvision import datasets

    folder = root / "imagenette2-160"
    if not folder.is_dir():
        datasets.Imagenette(root, size="160px", download=download)
    return folder
