"""Open a data set by name, by folder or from a Dataset."""

import difflib
from pathlib import Path
from typing import Any

from eqco.data.folders import OnUnreadable, open_folder
from eqco.data.named import EMBEDDED, GREY, NAMED, open_embedded, open_named
from eqco.data.scanning import Check
from eqco.data.sources import Source, source_from_dataset
from eqco.runtime.errors import InputError

__all__ = ["DEFAULT_ROOT", "NAMES", "open_source"]

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
) -> Source:
    """A data set by name, by folder, or from a Dataset of the user's.

    Args:
        data: "groceries" (embedded), a name of torchvision's (see `NAMES`), the path of a folder,
            or a map-style Dataset (a tensor (n, C, H, W) is one).
        root: where torchvision's data sets are kept.
        download: fetch them if they are not there.
        unlabelled: of a folder, take all images without classes.
        channels: bands of every image. By default pictures are colour, and npy, 16-bit grey and
            TIFFs of bands are as they are; see `find_layout`.
        val_fraction: see `open_folder`, as for all that follow.

    >>> open_source("groceries-coarse").classes
    ('Apple', 'Melon', 'Orange', 'Pear', 'Satsumas')
    """
    if not isinstance(data, (str, Path)):
        return source_from_dataset(data, channels=channels, memory_gib=memory_gib)
    name = str(data)
    if name in NAMES:
        possible = (None, 1, 3) if name in GREY else (None, 3)
        if channels not in possible:
            raise InputError(
                f"channels={channels}, but {name} can be had with "
                f"{' or '.join(str(each) for each in possible[1:])}."
            )
    if name in EMBEDDED:
        return open_embedded(name)
    if name in NAMES:
        return open_named(
            name,
            root.expanduser(),
            download=download,
            channels=channels or 3,
            memory_gib=memory_gib,
            check=check,
            on_unreadable=on_unreadable,
        )
    path = Path(name).expanduser()
    if not path.exists():
        near = difflib.get_close_matches(name.lower(), NAMES, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"{name!r} is neither a folder that exists nor a data set by name. {hint}"
            f"The names are {', '.join(NAMES)}."
        )
    return open_folder(
        path,
        unlabelled=unlabelled,
        channels=channels,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
        memory_gib=memory_gib,
        memory_side=memory_side,
        check=check,
        on_unreadable=on_unreadable,
    )
