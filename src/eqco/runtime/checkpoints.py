"""Checkpoints: written whole or not at all, checked when read, never a pickle that runs code."""

import os
import pickle
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.errors import InputError
from eqco.runtime.tensor_files import archive_fault

__all__ = [
    "CheckpointError",
    "ForeignCheckpointError",
    "clear_partial",
    "read_checkpoint",
    "write_checkpoint",
]

FORMAT = "eqco checkpoint 1"
CHECKPOINTS = "checkpoints"  # the folder of them in a run directory


class CheckpointError(InputError):
    """A checkpoint cannot be used; says which, why and what would work."""


class HarmfulCheckpointError(CheckpointError):
    """A file that would have run code."""


class ForeignCheckpointError(CheckpointError):
    """A whole file of tensors that no run has written."""


class NoCheckpointError(CheckpointError):
    """A file that is not there."""


def write_checkpoint(path: Path, state: dict[str, Any], *, previous: Path | None = None) -> None:
    """Write `state` to `path` so that a stop at any moment leaves a whole file there.

    `state` holds tensors, numbers, strings and containers of them; the file that stood at `path` is
    kept as `previous`.
    """
    name = first_not_finite(state)
    if name is not None:
        raise CheckpointError(
            f"{name} is no longer finite: the training has diverged. {path} was not written, "
            f"and what was saved before stays as it was. Look for a learning rate that is too high "
            f"or a warm-up that is too short."
        )
    second = None
    with atomic_write(path) as partial:
        with open(partial, "wb") as file:
            save_to(file, {"format": FORMAT, **state})
        if previous is not None and path.exists():
            second = second_name(path, previous)
    # only now: what stood at `path` may be damaged, and `previous` all that was whole
    if previous is not None and second is not None:
        os.replace(second, previous)


def save_to(file: IO[bytes], state: dict[str, Any]) -> None:
    """`torch.save`, where a full disk is the error of a full disk."""
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # torch ends its archive all the same, and complains that the end is in the wrong place
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


def first_not_finite(state: Any, name: str = "") -> str | None:
    """The name of the first tensor that holds NaN or infinity, if there is one.

    >>> first_not_finite({"weights": {"a": torch.zeros(2), "b": torch.tensor([float("inf")])}})
    'weights.b'
    """
    if isinstance(state, Tensor):
        return None if bool(torch.isfinite(state).all()) else name
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, Mapping):
        entries = state.items()
    elif isinstance(state, list | tuple):
        entries = enumerate(state)
    names = (
        first_not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in entries
    )
    return next((each for each in names if each is not None), None)


def clear_partial(folder: Path) -> None:
    """Remove what a writer that was killed left half written; only for who holds the folder."""
    for partial in folder.glob("*.partial"):
        partial.unlink(missing_ok=True)


def second_name(path: Path, previous: Path) -> Path:
    """Give a file a second name, so that it stands under one when the first is taken."""
    second = previous.with_name(f"{previous.name}.{os.getpid()}.partial")
    try:
        os.link(path, second)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, second)
    return second


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint; a missing, damaged or foreign file is an error that names it."""
    try:
        return read_verified(path)
    except HarmfulCheckpointError:
        raise
    except NoCheckpointError as error:
        raise CheckpointError(f"{error} {missing_run(path) or last_good(path)}") from error
    except CheckpointError as error:
        raise type(error)(f"{error} {last_good(path)}") from error


def read_verified(path: Path) -> dict[str, Any]:
    """The state in a checkpoint whose every byte was checked."""
    if not path.is_file():
        raise NoCheckpointError(f"there is no checkpoint at {path}.")
    fault = archive_fault(path)
    if fault is not None:
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({fault}).")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise HarmfulCheckpointError(
            f"{path} holds more than tensors and numbers and could run code when loaded; "
            f"it was refused and nothing of it was run."
        ) from error
    except Exception as error:  # torch answers damage with almost any
        raise CheckpointError(f"{path} is damaged ({error}).") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ForeignCheckpointError(f"{path} is not a checkpoint of this project.")
    return state


def missing_run(path: Path) -> str:
    """A sentence for a folder that was taken for a run's, with the runs in it; empty for others."""
    folder = path.parent.parent
    if path.parent.name != CHECKPOINTS or path.parent.is_dir():
        return ""
    if not folder.is_dir():
        return f"There is no folder {folder}; give a run directory, as eqco train leaves one."
    runs = sorted(found.parent.parent for found in folder.glob(f"*/{CHECKPOINTS}/{path.name}"))
    given = f"one of those in it, such as {runs[0]}" if runs else "one that eqco train has left"
    return f"{folder} is not a run directory; give {given}."


def last_good(path: Path) -> str:
    """A sentence that names the newest whole checkpoint beside a bad one, if there is any."""
    others = [other for other in path.parent.glob("*.pt") if other != path and other.is_file()]
    for other in sorted(others, key=lambda other: other.stat().st_mtime, reverse=True):
        try:
            read_verified(other)
        except CheckpointError:
            continue
        return f"The last good one is {other}: resume from that."
    return "There is no other checkpoint beside it that is whole."
