"""Open a data set by name, by folder, from files that hold many images, or from a Dataset."""

import difflib
import re
from pathlib import Path
from typing import Any, Literal

from eqco.data.bands import WrongBandsError
from eqco.data.folders import open_folder
from eqco.data.hugging_face import PREFIX, open_hf
from eqco.data.index import ScanIndex
from eqco.data.lists import LIST_SUFFIXES, open_list
from eqco.data.named import EMBEDDED, GREY, NAMED, open_embedded, open_named
from eqco.data.scanning import Check
from eqco.data.shards import is_shards, open_shards
from eqco.data.sources import Source, source_from_dataset
from eqco.data.stored import OnUnreadable, Opening
from eqco.runtime.errors import InputError

__all__ = ["DEFAULT_ROOT", "NAMES", "kind_of", "open_source", "resolved_name", "short_name"]

NAMES = (*EMBEDDED, *NAMED, "imagenette")
DEFAULT_ROOT = Path("~/.cache/eqco/datasets")


def open_source(
    data: Any = "groceries",
    *,
    root: Path = DEFAULT_ROOT,
    download: bool = True,
    unlabelled: bool = False,
    channels: int | None = None,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    split_seed: int = 0,
    memory_gib: float = 2.0,
    memory_side: int | None = None,
    check: Check = "header",
    on_unreadable: OnUnreadable = "error",
    index: ScanIndex | None = None,
) -> Source:
    """A data set by name, by folder, from files that hold many, or from a Dataset of the user's.

    Args:
        data: "groceries" (embedded), a name of torchvision's (see `NAMES`), the path of a folder,
            a CSV or Parquet list of paths, tar files of WebDataset ("train-{0000..0031}.tar"),
            hf:PATH or hf:NAME for the library `datasets`, or a map-style Dataset (a tensor
            (n, C, H, W) is one).
        root: where torchvision's data sets are kept.
        download: fetch them if they are not there.
        unlabelled: of files, take all images without classes.
        channels: bands of every image. By default pictures are colour, and npy, 16-bit grey and
            TIFFs of bands are as they are; see `find_layout`.
        val_fraction: see `Opening`, as for all that follow.

    >>> open_source("groceries-coarse").classes
    ('Apple', 'Melon', 'Orange', 'Pear', 'Satsumas')
    """
    if not isinstance(data, (str, Path)):
        return source_from_dataset(data, channels=channels, memory_gib=memory_gib)
    how = Opening(
        unlabelled=unlabelled,
        channels=channels,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
        memory_gib=memory_gib,
        memory_side=memory_side,
        check=check,
        on_unreadable=on_unreadable,
        index=index,
    )
    name = str(data)
    kind = kind_of(name)
    if kind == "name":
        return open_by_name(name, root.expanduser(), download, how)
    if kind == "hf":
        return open_hf(name, how)
    if kind == "shards":
        return open_shards(name, how)
    path = Path(name).expanduser()
    if not path.exists():
        near = difflib.get_close_matches(name.lower(), NAMES, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"{name!r} is neither a folder that exists nor a data set by name. {hint}"
            f"The names are {', '.join(NAMES)}."
        )
    return open_list(path, how) if kind == "list" else open_folder(path, how)


def open_by_name(name: str, root: Path, download: bool, how: Opening) -> Source:
    """The embedded set, or one of torchvision's."""
    possible = (1, 3) if name in GREY else (3,)
    if how.channels is not None and how.channels not in possible:
        counts = " or ".join(map(str, possible))
        raise WrongBandsError(how.channels, f"{name} can be had with {counts}")
    if name in EMBEDDED:
        return open_embedded(name)
    return open_named(name, root, how, download=download)


def kind_of(name: str) -> Literal["name", "hf", "shards", "list", "folder"]:
    """What a string names; a name wins over a folder of that name.

    >>> [kind_of(each) for each in ("cifar10", "hf:beans", "a-{0..9}.tar", "a.csv", "photos")]
    ['name', 'hf', 'shards', 'list', 'folder']
    """
    if name in NAMES:
        return "name"
    if name.startswith(PREFIX):
        return "hf"
    if is_shards(name):
        return "shards"
    path = Path(name).expanduser()
    return "list" if path.suffix in LIST_SUFFIXES and not path.is_dir() else "folder"


def resolved_name(name: str) -> str:
    """The same data from any other folder."""
    if kind_of(name) == "name":
        return name
    if kind_of(name) != "hf":
        return str(Path(name).expanduser().resolve())
    path = Path(name.removeprefix(PREFIX)).expanduser()
    return f"{PREFIX}{path.resolve()}" if path.exists() else name


def short_name(name: str) -> str:
    """What to call the run of these data.

    >>> [short_name(each) for each in ("hf:user/beans", "s/train-{0..9}.tar", "a/list.csv", "a.b/")]
    ['beans', 'train', 'list', 'a.b']
    """
    kind = kind_of(name)
    if kind == "name":
        return name
    last = Path(name.removeprefix(PREFIX)).expanduser().resolve().name
    if kind == "folder":
        return last
    return re.split(r"[{*.:]", last)[0].rstrip("-_") or kind
