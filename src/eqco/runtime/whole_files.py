"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eqco.runtime.errors import InputError

__all__ = ["refuse_existing", "whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes `path` when all went well and vanishes when not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Refuse to write over a file unasked, and over a folder at all."""
    if path.is_dir():
        raise InputError(f"--out {path} is a folder; give the name of a file.")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists. Pass --overwrite to replace it, or choose another --out.")
