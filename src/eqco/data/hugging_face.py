"""Data sets of Hugging Face's library `datasets`: saved to disk, Parquet, imagefolder, by name."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eqco.data.bands import COLOUR, Layout
from eqco.data.decoding import UnreadableImageError
from eqco.data.images import EncodedImages, FileImages, StoredImages, files_digest
from eqco.data.sources import Source, Split
from eqco.data.stored import (
    ALL,
    SPLIT_NAMES,
    Opening,
    file_split_name,
    first_split_name,
    number_classes,
    source_of_splits,
)
from eqco.runtime.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import datasets

__all__ = ["PREFIX", "RowImages", "open_hf"]

PREFIX = "hf:"
SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves, of several and of one


class RowImages(EncodedImages):
    """Encoded images in a column of a table.

    Args:
        rows: a table with that column alone, not decoded.
        column: its name.
        label: what to call the table.
        numbers: the rows; None: all.
        layout: of all images.
    """

    def __init__(
        self,
        rows: "datasets.Dataset",
        column: str,
        label: str,
        numbers: np.ndarray | None = None,
        layout: Layout = COLOUR,
    ):
        self.rows = rows
        self.column = column
        self.label = label
        self.numbers = np.arange(len(rows)) if numbers is None else numbers
        self.layout = layout

    def __len__(self) -> int:
        return len(self.numbers)

    def encoded(self, number: int, limit: int | None = None) -> bytes:
        """The bytes of a cell, or of the file that it names."""
        cell = self.rows[int(self.numbers[number])][self.column]
        if cell is None:
            raise UnreadableImageError(self.name(number), "the cell is empty")
        if cell["bytes"] is not None:
            return bytes(cell["bytes"][:limit])
        try:
            with open(cell["path"], "rb") as file:
                return file.read(-1 if limit is None else limit)
        except OSError as error:
            raise UnreadableImageError(cell["path"], error.strerror or str(error)) from error

    def name(self, number: int) -> str:
        """The number of the row."""
        return f"row {int(self.numbers[number])} of {self.label}"

    def digest(self) -> str:
        """Of the table's files, and of which rows are taken."""
        files = files_digest(each["filename"] for each in self.rows.cache_files)
        digest = hashlib.sha256(f"{files} {self.column}".encode())
        digest.update(self.numbers.astype(np.int64).tobytes())
        return digest.hexdigest()

    def subset(self, numbers: Sequence[int]) -> "RowImages":
        """Those rows."""
        chosen = self.numbers[np.asarray(numbers, dtype=np.int64)]
        return RowImages(self.rows, self.column, self.label, chosen, self.layout)


def open_hf(name: str, how: Opening) -> Source:
    """A data set that the library `datasets` opens.

    Args:
        name: hf: and a folder of `save_to_disk`, a Parquet file or a folder of them, a folder for
            its imagefolder, or the name of a data set on the Hub (NAME:CONFIG for one with
            several configurations).
        how: of its splits, one alone is divided where it has classes.
    """
    given = name.removeprefix(PREFIX)
    tables = load_tables(given)
    if how.unlabelled:
        import datasets

        rows = [image_rows(table, given) for table in tables.values()]
        tables = {ALL: datasets.concatenate_datasets(rows)}
    notes: list[str] = []
    named: dict[str, str] = {}  # our name of a split -> theirs
    # train goes before train_small
    for split in sorted(tables, key=lambda split: split.lower() not in SPLIT_NAMES):
        word = first_split_name(split)
        ours = ALL if len(tables) == 1 else None if word is None else SPLIT_NAMES[word.lower()]
        if ours is None or ours in named:
            notes.append(f"the split {split} is not used")
            continue
        if ours not in (ALL, split):
            notes.append(f"the split {split} is taken as {ours}")
        named[ours] = split
    if not {ALL, "train", "unlabelled"} & named.keys():
        raise InputError(
            f"{name} has the splits {', '.join(tables)}; none of them is to be trained on. There "
            f"must be one named train."
        )
    splits: list[Split] = []
    classes: tuple[str, ...] = ()
    # train first: its classes number those of the others
    for ours in sorted(named, key=[ALL, *SPLIT_NAMES].index):
        table, label = tables[named[ours]], f"{given} ({named[ours]})"
        images = images_of(image_rows(table, label), label)
        numbers: Tensor | None = None
        if ours != "unlabelled":
            numbers, classes = labels_of(table, classes, label, notes)
        splits.append(Split(ours, images, numbers, () if numbers is None else classes))
    if len(splits) == 1 and splits[0].labels is not None:
        notes.append(f"one split with classes ({named[ALL]}): divided into train, val and test")
    return source_of_splits(name, splits, how, notes=tuple(dict.fromkeys(notes)))


def load_tables(given: str) -> Mapping[str, "datasets.Dataset"]:
    """The tables of a data set by the names of its splits."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingExtraError("datasets", "hf") from error
    path = Path(given).expanduser()
    try:
        if path.is_dir() and any((path / file).exists() for file in SAVED):
            found = datasets.load_from_disk(str(path))
        elif path.exists() and (files := parquet_files(path)):
            found = datasets.load_dataset("parquet", data_files=files)
        elif path.is_dir():
            found = datasets.load_dataset("imagefolder", data_dir=str(path))
        else:
            found = load_by_name(given)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).strip().splitlines()[0] if str(error) else repr(error)
        raise InputError(f"{PREFIX}{given} cannot be opened: {reason}") from error
    return found if isinstance(found, Mapping) else {ALL: found}


def parquet_files(path: Path) -> dict[str, list[str]]:
    """The Parquet files of a path by the splits in their names, or in their folders'."""
    files = [path] if path.suffix == ".parquet" else sorted(path.rglob("*.parquet"))
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(file_split_name(file) or "train", []).append(str(file))
    return found


def load_by_name(given: str) -> Any:
    """A data set of the Hub, from the network or from what was downloaded before."""
    import datasets

    name, _, configuration = given.partition(":")
    try:
        return datasets.load_dataset(name, configuration or None)
    except (OSError, datasets.exceptions.DatasetNotFoundError) as error:
        # ConnectionError and OfflineModeIsEnabled are of OSError
        raise InputError(
            f"{PREFIX}{given} is neither a folder nor a file that exists, and as the name of a "
            f"data set it cannot be had: {str(error).strip().splitlines()[0]} Go online, or copy a "
            f"folder of save_to_disk or its Parquet files here and give {PREFIX}FOLDER."
        ) from error


def image_rows(table: "datasets.Dataset", label: str) -> "datasets.Dataset":
    """A table's column of images alone, not decoded: the only one, or that called image or img."""
    import datasets

    columns = [n for n, kind in table.features.items() if isinstance(kind, datasets.Image)]
    usual = [name for name in columns if name in ("image", "img")]
    if not columns or (len(columns) > 1 and not usual):
        raise InputError(
            f"{label} has the columns {', '.join(table.features)}, of which {len(columns)} are of "
            f"the type datasets.Image. One must be, and be called image where there are several."
        )
    column = (usual or columns)[0]
    rows = table.select_columns([column]).cast_column(column, datasets.Image(decode=False))
    return rows.with_format(None)


def images_of(rows: "datasets.Dataset", label: str) -> StoredImages:
    """The images of such a column: in its cells, or files that they name."""
    if not len(rows):
        raise InputError(f"{label} has no rows.")
    (column,) = rows.column_names
    if rows[0][column] is not None and rows[0][column]["bytes"] is None:
        return FileImages([cell["path"] for cell in rows[:][column]])
    return RowImages(rows, column, label)


def labels_of(
    table: "datasets.Dataset", known: tuple[str, ...], label: str, notes: list[str]
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Class numbers and classes, from a ClassLabel or a plain column named label."""
    import datasets

    columns = [n for n, kind in table.features.items() if isinstance(kind, datasets.ClassLabel)]
    columns.sort(key=lambda name: name != "label")
    if not columns and "label" not in table.features:
        return None, known
    column = columns[0] if columns else "label"
    if len(columns) > 1:
        notes.append(f"labels are of the column {column}, not of {', '.join(columns[1:])}")
    values = table.with_format(None).select_columns([column])[:][column]
    if any(value is None or value == -1 for value in values):
        notes.append(f"{label} is taken without classes: some rows have none")
        return None, known
    if not columns:
        return number_classes([str(value) for value in values], known, where=label)
    classes = tuple(table.features[column].names)
    if known and classes != known:
        raise InputError(f"{label} has other classes than the training split; make them alike.")
    return torch.tensor(values, dtype=torch.long), classes
