"""The folder of one training run: its recipe, metrics, checkpoints and result."""

import fcntl
import json
import math
import os
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from eqco.runtime.atomic_files import unwritable_error, write_text
from eqco.runtime.checkpoints import (
    CHECKPOINTS,
    CheckpointError,
    clear_partial,
    read_checkpoint,
    write_checkpoint,
)
from eqco.runtime.errors import InputError

__all__ = ["RunDirectory", "RunInUseError"]


# what a run that was stopped before it began may have left, beside its lock; hidden files are
# nobody's
BEGUN = re.compile(r"\..*|cost\.json|(cost|recipe|environment)\.json\.\d+\.partial")


class RunInUseError(InputError):
    """Another trainer holds the run directory; says which process."""


class RunDirectory:
    """Files of a run: recipe, environment, metrics, checkpoints, result.

    Args:
        path: the folder; made when the run starts.

    >>> RunDirectory(Path("nowhere"))
    RunDirectory('nowhere', no run yet)
    """

    def __init__(self, path: Path):
        self.path = path
        self.recipe = path / "recipe.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.index = path / "index.npz"
        self.loggers = path / "loggers.json"
        self.job = path / "job"
        self.lock_file = path / "lock"
        self.checkpoints = path / CHECKPOINTS
        self.last = self.checkpoints / "last.pt"
        self.previous = self.checkpoints / "previous.pt"

    def __repr__(self) -> str:
        state = "no run yet"
        if self.recipe.exists():
            state = "complete" if self.result.exists() else "not complete"
        return f"RunDirectory({str(self.path)!r}, {state})"

    def refuse_started(self) -> None:
        """Refuse a folder with a checkpoint, or with what is not a run's.

        A run that was stopped before its first checkpoint has nothing to resume, and starts anew.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, and a run is a folder. Choose another --out.")
        if any(self.checkpoints.glob("*.pt")):
            if self.result.exists():
                longer = f"train it longer: {self.longer_training()}"
                # of a detector, which is trained once and tested as often as one likes
                if self.recipe.exists() and "detection" in self.read_recipe():
                    longer = f"test it again: --resume {self.quoted}"
                raise InputError(
                    f"{self.path} holds a run already, and it is complete. Choose another --out, "
                    f"or {longer}."
                )
            raise InputError(
                f"{self.path} holds a run already. Continue it with --resume {self.quoted}, or "
                f"choose another --out."
            )
        begun = self.recipe.exists() and self.environment.exists()
        if self.path.is_dir() and not begun:
            strangers = [
                each.name
                for each in self.path.iterdir()
                if not (BEGUN.fullmatch(each.name) or (each == self.lock_file and is_lock(each)))
            ]
            if strangers:
                raise InputError(
                    f"{self.path} holds {min(strangers)} and is no run. Choose another --out: a "
                    f"folder that is empty or not there yet."
                )

    def refuse_in_use(self) -> None:
        """Refuse a folder that another trainer holds."""
        if not self.lock_file.exists():
            return
        with open(self.lock_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                raise self.in_use_error(file) from error

    def in_use_error(self, file: TextIO) -> RunInUseError:
        """Names the process that holds the lock."""
        file.seek(0)
        owner = file.read().strip() or "unknown"
        return RunInUseError(
            f"{self.path} is in use by another trainer (process {owner}). Wait for it, stop it, or "
            f"choose another --out."
        )

    @property
    def timing(self) -> Path:
        """A folder beside it for what is decoded while a recipe is chosen."""
        place = self.path.resolve()
        return place.with_name(f".{place.name}.timing")

    @property
    def quoted(self) -> str:
        """The folder as it stands in a command."""
        return shlex.quote(str(self.path))

    def longer_training(self, epochs: int | str = "N") -> str:
        """The command that trains it longer or, where no command has its data or its network, the
        call in Python.
        """
        began = read_object(self.environment) if self.environment.exists() else {}
        own_network = began.get("network") is not None
        if not own_network and began.get("source", "") is not None:
            return f"eqco train --extend {self.quoted} --training.epochs {epochs}"
        network = "encoder=…, " if own_network else ""
        out = f"{self.path}-extended"
        return f"eqco.train(…, {network}init={str(self.path)!r}, epochs={epochs}, out={out!r})"

    def start(self, recipe: dict[str, Any], environment: dict[str, Any]) -> None:
        """Make the folder of a new run."""
        self.refuse_started()
        with self.explain_failure(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            write_json(self.recipe, recipe)
            write_json(self.environment, environment)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder: a second trainer on it is refused.

        What a trainer that was killed left half written is removed.
        """
        with self.explain_failure(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.lock_file, "a+")  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise self.in_use_error(file) from error
            # a worker process would inherit the lock, and hold it when the trainer was killed
            os.register_at_fork(after_in_child=file.close)
            with self.explain_failure(self.path):
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                clear_partial(self.path)
                clear_partial(self.checkpoints)
            yield

    @contextmanager
    def explain_failure(self, path: Path) -> Iterator[None]:
        """A full disk, or a folder that must not be written: say so, and what is kept."""
        try:
            yield
        except OSError as error:
            remedy = "or choose another --out. Nothing was saved before."
            if self.last.exists():
                remedy = (
                    f"then continue with --resume {self.quoted}. {self.last} is kept as it was."
                )
            raise unwritable_error(path, error, remedy) from error

    def write_job(self, job: str | None) -> None:
        """Note which job of torchrun trains here; None: none does."""
        if job is None:
            self.job.unlink(missing_ok=True)
        else:
            write_text(self.job, job + "\n")

    def belongs_to(self, job: str | None) -> bool:
        """Whether that job has trained here and left a checkpoint to resume from."""
        if job is None or not (self.last.exists() and self.job.exists()):
            return False
        return self.job.read_text() == job + "\n"

    def save(self, state: dict[str, Any], *, keep: bool) -> Path:
        """Write the last checkpoint, keeping the one before; with `keep`, one for good as well."""
        # the one for good first: a run killed between the two resumes before this step and writes
        # it again, where it would not come back to a step that its last checkpoint has
        if keep:
            kept = self.checkpoints / f"step-{state['step']:08d}.pt"
            with self.explain_failure(kept):
                write_checkpoint(kept, state)
        with self.explain_failure(self.last):
            write_checkpoint(self.last, state, previous=self.previous)
        return self.last

    def read_recipe(self) -> dict[str, Any]:
        """The resolved recipe of the run."""
        return read_object(self.recipe)

    def read_environment(self) -> dict[str, Any]:
        """The data, device and versions that the run began with."""
        # a run of before folders could be taken without classes had them
        began: dict[str, Any] = {"unlabelled": False, **read_object(self.environment)}
        for key in ("source", "data", "images"):
            if key not in began:
                raise InputError(
                    f"{self.environment} does not say {key!r}, which a resumed run needs; it was "
                    f"changed, or written by another version. Restore it, or start a new run with "
                    f"--recipe {self.recipe}."
                )
        return began

    def load(
        self,
        recipe: dict[str, Any],
        checkpoint: Path | None = None,
        *,
        earlier: Collection[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        """The state to resume from; a checkpoint of another recipe is refused.

        Args:
            recipe: of the run, as it is now.
            checkpoint: a file; None: the last one.
            earlier: recipes that the run may have had when the checkpoint was written.
        """
        path = checkpoint or self.last
        state = read_checkpoint(path)
        theirs = state.get("recipe")
        if theirs not in (recipe, *earlier):
            differing = ", ".join(filter(None, differences(theirs, recipe))) or "its settings"
            raise CheckpointError(
                f"{path} was written by another recipe than this run's ({differing} differ). "
                f"Resume with the old recipe, or choose another --out."
            )
        return state

    def append_metrics(self, values: dict[str, Any]) -> None:
        """Add one line of metrics; NaN and infinity, which JSON has not, are written as words."""
        plain = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with self.explain_failure(self.metrics), open(self.metrics, "a") as file:
            file.write(json.dumps(plain, allow_nan=False) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics."""
        if not self.metrics.exists():
            return []
        return [self.parse_line(line) for line in self.metrics.read_text().splitlines()]

    def parse_line(self, line: str) -> dict[str, Any]:
        """One line of metrics; a damaged one is an error that shows it."""
        try:
            values = json.loads(line)
            if isinstance(values, dict) and isinstance(values.get("step"), int):
                return values
        except (ValueError, RecursionError):
            pass
        raise InputError(f"{self.metrics} is damaged at {line[:40]!r}; remove that line.")

    def drop_metrics_after(self, step: int) -> None:
        """Drop the lines written after the checkpoint; the resumed run writes them again."""
        # a last line cut off by a stop has no end, and is no line
        text = self.metrics.read_text(errors="replace") if self.metrics.exists() else ""
        lines = [line for line in text.split("\n")[:-1] if self.parse_line(line)["step"] <= step]
        with self.explain_failure(self.metrics):
            write_text(self.metrics, "".join(line + "\n" for line in lines))


def is_lock(path: Path) -> bool:
    """Whether a file is the lock of a run: it holds a process id, or nothing."""
    return path.is_file() and re.fullmatch(rb"\d*", path.read_bytes()[:32]) is not None


def write_json(path: Path, values: Any) -> None:
    """Write JSON whole or not at all."""
    write_text(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; a missing or damaged file is an error that names it."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"there is no {path}; is {path.parent} a run directory?") from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, a number without end
        raise InputError(f"{path} is damaged ({error}).") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read JSON that must be an object."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} is damaged (expected a JSON object).")
    return values


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Names of the settings in which two recipes differ.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    ['b.c']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in [*old, *(k for k in new if k not in old)]:
            deeper = f"{name}.{key}" if name else str(key)
            found += differences(old.get(key), new.get(key), deeper)
        return found
    return [] if old == new else [name]
