"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eqco.runtime.errors import InputError

__all__ = [
    "atomic_write",
    "refuse_existing",
    "refuse_existing_folder",
    "refuse_file",
    "refuse_unwritable",
    "unwritable_error",
    "write_text",
]


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
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


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all; names of files in it may be of any bytes."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")


def refuse_existing(path: Path, *, overwrite: bool, option: str = "--out") -> None:
    """Refuse to write over a file unasked, and over a folder at all; `option` names the file."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder; give the name of a file.")
    if path.exists() and not overwrite:
        raise InputError(
            f"{path} exists. Pass --overwrite to replace it, or choose another {option}."
        )


def refuse_existing_folder(path: Path, *, overwrite: bool, option: str = "--out") -> None:
    """Refuse a file, and unasked a folder that holds something."""
    refuse_file(path, option=option)
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise InputError(
            f"{path} holds files. Pass --overwrite to replace those of this export, or choose "
            f"another {option}."
        )


def refuse_file(path: Path, *, option: str = "--out") -> None:
    """Refuse a file where a folder is wanted."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{option} {path} is a file; give the name of a folder.")


def refuse_unwritable(path: Path, *, option: str = "--out") -> None:
    """Refuse a file that could not be written after hours of work; nothing is left behind."""
    try:
        folder = next(each for each in path.absolute().parents if each.exists())
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable_error(path, error, f"or choose another {option}.") from error


def unwritable_error(path: Path, error: OSError, remedy: str) -> InputError:
    """The error of a full disk, of a folder that must not be written, or of none."""
    first = "Free space there or make it writable"
    if isinstance(error, FileExistsError | NotADirectoryError):
        first = "Move away the file that stands where a folder is needed"
    elif isinstance(error, FileNotFoundError):
        first = "Make its folder if it can be made"
    return InputError(f"{path} cannot be written ({error.strerror or error}). {first}, {remedy}")
