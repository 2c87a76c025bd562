"""Checkpoints: written whole or not at all, checked when read, never a pickle that runs code."""

import os
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

from eqco.runtime.errors import InputError

__all__ = ["CheckpointError", "read_checkpoint", "write_checkpoint"]

FORMAT = "eqco checkpoint 1"


class CheckpointError(InputError):
    """A checkpoint cannot be used; says which, why and what would work."""


def write_checkpoint(path: Path, state: dict[str, Any], *, previous: Path | None = None) -> None:
    """Write `state` to `path` so that a stop at any moment leaves a whole file there.

    Args:
        path: where it goes.
        state: tensors, numbers, strings and containers of them.
        previous: where the file that stood at `path` is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            keep_as(path, previous)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def keep_as(path: Path, previous: Path) -> None:
    """Give a file a second name, so that it never stands under none."""
    second = previous.with_name(f"{previous.name}.{os.getpid()}.partial")
    try:
        os.link(path, second)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, second)
    os.replace(second, previous)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint; a missing, damaged or foreign file is an error that names it."""
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}.{last_good(path)}")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint ({error}).{last_good(path)}"
        ) from error
    if broken is not None:
        raise CheckpointError(f"{path} is damaged ({broken}).{last_good(path)}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and numbers and could run code when loaded; "
            f"it was refused and nothing of it was run."
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}).{last_good(path)}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint of this project.{last_good(path)}")
    return state


def last_good(path: Path) -> str:
    """A sentence that names the newest other checkpoint beside a bad one, if there is any."""
    others = [
        other
        for other in path.parent.glob("*.pt")
        if other != path and other.is_file() and zipfile.is_zipfile(other)
    ]
    if not others:
        return " There is no other checkpoint beside it."
    newest = max(others, key=lambda other: other.stat().st_mtime)
    return f" The last good one is {newest}: resume from that."
