"""What a long look at many files has found, kept in a file of the run for the next look."""

from pathlib import Path

import numpy as np

from eqco.runtime.atomic_files import atomic_write

__all__ = ["ScanIndex"]

Arrays = dict[str, np.ndarray]


class ScanIndex:
    """Arrays that took long to find, by a key that changes when what was looked at changes.

    Args:
        path: the file that an earlier run left; one that is missing or damaged holds nothing.

    >>> index = ScanIndex()
    >>> index.keep("a folder", {"broken": np.array([3])})
    >>> index.get("a folder"), index.get("another")
    ({'broken': array([3])}, None)
    """

    def __init__(self, path: Path | None = None):
        self.entries: dict[str, Arrays] = {}
        self.is_new = False
        if path is not None and path.exists():
            self.entries = read_entries(path)

    def get(self, key: str) -> Arrays | None:
        """What is known under that key."""
        return self.entries.get(key)

    def keep(self, key: str, arrays: Arrays) -> None:
        """Note what was found; `write` keeps it for the next time."""
        self.entries[key] = arrays
        self.is_new = True

    def write(self, path: Path) -> None:
        """Write everything to a file, unless it came from there."""
        if not self.is_new:
            return
        named = {
            f"{key}/{name}": array
            for key, arrays in self.entries.items()
            for name, array in arrays.items()
        }
        with atomic_write(path) as partial, open(partial, "wb") as file:
            np.savez(file, **named)  # type: ignore[arg-type]


def read_entries(path: Path) -> dict[str, Arrays]:
    """The arrays of a file by their keys; none where it cannot be read."""
    entries: dict[str, Arrays] = {}
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            for name in stored.files:
                key, _, entry = name.rpartition("/")
                entries.setdefault(key, {})[entry] = stored[name]
    except Exception:  # zipfile and numpy answer damage with almost any; it is found anew
        return {}
    return entries
