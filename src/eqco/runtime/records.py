"""Records: one small JSON file per run, so that every number shown can be traced.

A record lives at `results/EXPERIMENT/PROFILE/<recipe hash>-<seed>.json`. A run whose record exists
and matches is skipped, any other is run. Trainings are kept under the name `trainings`, each once
for all the experiments that show it.
"""

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import eqco
from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.errors import InputError

__all__ = [
    "TRAININGS",
    "Record",
    "as_read",
    "code_version",
    "find_record",
    "hardware",
    "read_records",
    "recipe_hash",
    "require_committed",
]

TRAININGS = "trainings"  # where the experiments find the trainings that they share
DIRTY = "-dirty"  # ends the version of a tree with uncommitted changes
INDENTED = 3  # levels of a record that have a line for each name; what is deeper shares a line

TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "a JSON object": (dict,),
    "a whole number": (int,),
    "a number": (int, float),
    "a number or null": (int, float, type(None)),
}
# The fields of a record as JSON holds them.
KINDS = {
    "experiment": "text",
    "profile": "text",
    "recipe": "a JSON object",
    "seed": "a whole number",
    "metrics": "a JSON object",
    "curves": "a JSON object",
    "code": "text",
    "hardware": "a JSON object",
    "seconds": "a number",
    "cpu_seconds": "a number or null",
    "finished": "text",
}
# Fields that the first records do not have.
LATER = ("cpu_seconds",)


class Measured(dict[str, Any]):
    """What a record's file holds by name; asking for what it does not hold names the file."""

    path: Path

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"{self.path} does not hold {name!r}, which is to be shown; it was changed, or written "
            f"by another version. Restore it, or delete it and run its experiment again."
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one run found, and all that is needed to run it again."""

    experiment: str
    profile: str
    recipe: dict[str, Any]
    seed: int
    metrics: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict)
    code: str
    hardware: dict[str, Any]
    seconds: float
    cpu_seconds: float | None = None  # of all threads; free of the time others held the machine
    finished: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def path(self, root: Path) -> Path:
        """Where this record is kept below the results folder."""
        name = f"{self.hash_of_recipe}-{self.seed}.json"
        return root / self.experiment / self.profile / name

    def write(self, root: Path) -> Path:
        """Write the record whole or not at all; returns its path."""
        path = self.path(root)
        with atomic_write(path) as partial:
            partial.write_text(compact_json(as_read(asdict(self))) + "\n")
        return path

    @functools.cached_property
    def hash_of_recipe(self) -> str:
        """By which the runs of one recipe are found."""
        return recipe_hash(self.recipe)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of the code behind it: that of the training may be older."""
        trained_by = self.curves.get("trained_by")
        return (self.code,) if trained_by is None else (self.code, str(trained_by))


def compact_json(value: Any, level: int = 0) -> str:
    """JSON with a line for each name, and one line for each list, however long.

    >>> print(compact_json({"seed": 0, "curves": {"loss": [[1, 2.5], [2, 1.5]]}}))
    {
     "curves": {
      "loss": [[1,2.5],[2,1.5]]
     },
     "seed": 0
    }
    """
    if not isinstance(value, dict) or not value or level == INDENTED:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    lines = [
        " " * (level + 1) + f"{json.dumps(name)}: {compact_json(entry, level + 1)}"
        for name, entry in sorted(value.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n" + " " * level + "}"


def require_committed(records: Iterable[Record], root: Path) -> None:
    """Refuse records of code that was never committed: nobody could run them again."""
    found = {
        str(record.path(root)): version
        for record in records
        for version in record.versions
        if version.endswith(DIRTY)
    }
    if found:
        named = "; ".join(f"{path} ({version})" for path, version in found.items())
        raise InputError(
            f"made from a tree with uncommitted changes: {named}. Such a record fills no published "
            f"table. Commit, delete it, and run its experiment or benchmark again."
        )


def recipe_hash(recipe: dict[str, Any]) -> str:
    """Ten hexadecimal digits that name a recipe, independent of the order of its keys."""
    text = json.dumps(as_read(recipe), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def as_read(value: Any) -> Any:
    """A value as JSON reads it back: every key is a word, and words sort otherwise than numbers."""
    return json.loads(json.dumps(value))


def read_record(path: Path) -> Record:
    """One record from disk; a damaged file is named, never passed over."""
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, a number without end
        raise InputError(
            f"{path} is not a record of this project ({error}); restore it or delete it."
        ) from error
    fault = fault_of(values)
    if fault is not None:
        raise InputError(
            f"{path} is not a record of this project ({fault}); restore it or delete it."
        )
    for part in ("metrics", "curves"):
        values[part] = Measured(values[part])
        values[part].path = path
    record = Record(**values)
    misplaced = misplacement(record, path)
    if misplaced is not None:
        raise InputError(
            f"{path} holds another run than its name says ({misplaced}); restore it or delete it."
        )
    return record


def fault_of(values: Any) -> str | None:
    """Why JSON is not a record; None: it is one.

    >>> fault_of({"experiment": 5})
    'experiment is 5, not text'
    >>> fault_of({})
    'experiment is missing'
    """
    if not isinstance(values, dict):
        return "expected a JSON object"
    for name, kind in KINDS.items():
        if name not in values and name not in LATER:
            return f"{name} is missing"
        if name in values and not is_a(values[name], kind):
            return f"{name} is {json_excerpt(values[name])}, not {kind}"
    for name in values:
        if name not in KINDS:
            return f"{name!r} is no field of a record"
    for name, value in values["metrics"].items():
        if not is_a(value, "a number"):
            return f"the metric {name!r} is {json_excerpt(value)}, not a number"
    return None


def is_a(value: Any, kind: str) -> bool:
    """Whether a value read from JSON is of a kind of `TYPES`; true and false are no numbers."""
    if isinstance(value, bool):
        return False
    return isinstance(value, TYPES[kind])


def json_excerpt(value: Any) -> str:
    """A value as JSON writes it, its first forty characters.

    >>> json_excerpt(None), len(json_excerpt("x" * 100))
    ('null', 40)
    """
    return json.dumps(value)[:40]


def misplacement(record: Record, path: Path) -> str | None:
    """In what a record differs from its folders and its file's name; None: in nothing."""
    digits, _, seed = path.stem.partition("-")
    place = path.absolute().parent
    for name, said, named in (
        ("experiment", record.experiment, place.parent.name),
        ("profile", record.profile, place.name),
        ("seed", str(record.seed), seed),
        ("the recipe's hash", record.hash_of_recipe, digits),
    ):
        if said != named:
            return f"{name} is {said}, not {named}"
    return None


def read_records(
    root: Path, experiment: str, profile: str, hashes: Container[str] | None = None
) -> list[Record]:
    """All records of one experiment and profile, or those of some recipes, in a fixed order."""
    found = sorted((root / experiment / profile).glob("*.json"))
    return [
        read_record(path)
        for path in found
        if hashes is None or path.stem.partition("-")[0] in hashes
    ]


def find_record(
    root: Path, experiment: str, profile: str, recipe: dict[str, Any], seed: int
) -> Record | None:
    """The record of exactly this run, or None if it was not run yet."""
    path = root / experiment / profile / f"{recipe_hash(recipe)}-{seed}.json"
    if not path.exists():
        return None
    return read_record(path)


@functools.cache  # what was imported stays what it was, whatever is checked out later
def code_version() -> str:
    """The package's version, with the commit when it runs from a checkout of its own."""
    folder = Path(eqco.__file__).parent
    if shutil.which("git") is None:
        return eqco.__version__
    git = functools.partial(subprocess.run, cwd=folder, capture_output=True, text=True)
    answer = git(["git", "describe", "--always", "--abbrev=10", "--exclude=*"])
    tracked = git(["git", "ls-files", "--error-unmatch", "__init__.py"])
    if answer.returncode or tracked.returncode:
        return eqco.__version__
    # a record that replaces an older one changes no code
    changed = git(["git", "diff", "--quiet", "HEAD", "--", ":(top)", ":(top,exclude)results"])
    dirty = DIRTY if changed.returncode else ""
    return f"{eqco.__version__}+{answer.stdout.strip()}{dirty}"


def hardware() -> dict[str, Any]:
    """What the run used: processor, threads, accelerator, library versions."""
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": devices,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "system": platform.system(),
    }


def processor_name() -> str:
    """The processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
