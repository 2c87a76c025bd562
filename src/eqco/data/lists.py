"""A list of image files: CSV, TSV or Parquet, with labels and splits where it has them."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from eqco.data.decoding import EXTENSIONS
from eqco.data.images import FileImages
from eqco.data.sources import Source, Split
from eqco.data.stored import ALL, SPLIT_NAMES, Opening, number_classes, source_of_splits
from eqco.runtime.errors import InputError, MissingExtraError

__all__ = ["LIST_SUFFIXES", "open_list"]

LIST_SUFFIXES = (".csv", ".tsv", ".parquet")
# what the columns may be called
PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
LABELS = ("label", "labels", "class", "target", "category")
SPLITS = ("split", "set", "subset", "partition")
Table = dict[str, list[str]]


def open_list(file: Path, how: Opening) -> Source:
    """A data set out of a list of image files.

    Its columns are a path (relative to the list's folder, or absolute), and where there are such a
    label and a split, by the usual names. A CSV without a first line of names has paths alone, or
    paths and labels.
    """
    table = read_table(file)
    paths = column(table, PATHS)
    if paths is None:
        raise InputError(
            f"{file} has the columns {', '.join(table)}; none of them is a path. Call it "
            f"{PATHS[0]} (or {', '.join(PATHS[1:])})."
        )
    if not paths:
        raise InputError(f"{file} lists no images.")
    labels, named = column(table, LABELS), column(table, SPLITS)
    if labels is not None and how.unlabelled:
        labels = None
    notes: list[str] = []
    split_names = [ALL] * len(paths)
    if named is not None and not how.unlabelled:
        split_names = [split_name(name, file, notes) for name in named]
    folder = file.parent
    splits: list[Split] = []
    classes: tuple[str, ...] = ()
    # train first: its classes number those of the others
    for name in sorted(set(split_names), key=[ALL, *SPLIT_NAMES].index):
        rows = [row for row, each in enumerate(split_names) if each == name]
        images = FileImages([os.path.join(folder, paths[row]) for row in rows])
        own = None if labels is None else [labels[row] for row in rows]
        if own is None or name == "unlabelled" or not any(own):
            splits.append(Split(name, images, None))
            continue
        if not all(own):
            raise InputError(
                f"{own.count('')} of the {len(own)} images of {file} ({name}) have no label. Give "
                f"every image one, or pass --unlabelled to take all without."
            )
        numbers, classes = number_classes(own, classes, where=f"{file} ({name})")
        splits.append(Split(name, images, numbers, classes))
    return source_of_splits(str(file), splits, how, notes=tuple(dict.fromkeys(notes)))


def column(table: Table, names: Sequence[str]) -> list[str] | None:
    """The first column of one of these names."""
    lower = {name.strip().lower(): name for name in table}
    found = next((lower[name] for name in names if name in lower), None)
    return None if found is None else table[found]


def split_name(name: str, file: Path, notes: list[str]) -> str:
    """The split that a word of the list names; a synonym joins `notes`."""
    split = SPLIT_NAMES.get(name.lower())
    if split is None:
        raise InputError(
            f"{file} has the split {name!r}; there are {', '.join(SPLIT_NAMES)}. Rename it."
        )
    if split != name.lower():
        notes.append(f"{name} in the list is taken as the split {split}")
    return split


def read_table(file: Path) -> Table:
    """The columns of a list, as text."""
    if file.suffix == ".parquet":
        return read_parquet(file)
    try:
        with open(file, newline="", encoding="utf-8-sig") as stream:
            rows = [row for row in csv.reader(stream, delimiter=delimiter(file)) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} cannot be read as a list ({error}). Save it as CSV.") from error
    if not rows:
        raise InputError(f"{file} is empty; a list has a line for each image.")
    names = [cell.strip() for cell in rows[0]]
    if names[0].lower().endswith(EXTENSIONS):  # the first line is an image already
        names, start = ["path", "label"][: len(rows[0])], 0
    else:
        start = 1
    width = len(names)
    for line, row in enumerate(rows, start=1):
        if len(row) != width:
            raise InputError(
                f"line {line} of {file} has {len(row)} cells instead of {width}. Put cells with a "
                f"{delimiter(file)!r} in quotes; name the columns in a first line if there are "
                f"more than a path and a label."
            )
    return {name: [row[i].strip() for row in rows[start:]] for i, name in enumerate(names)}


def delimiter(file: Path) -> str:
    """What stands between two cells."""
    return "\t" if file.suffix == ".tsv" else ","


def read_parquet(file: Path) -> Table:
    """The columns of text and numbers in a Parquet file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    try:
        schema = parquet.read_schema(file)
        plain = [field.name for field in schema if not pyarrow.types.is_nested(field.type)]
        if column({name: [] for name in plain}, PATHS) is None and len(plain) < len(schema):
            raise InputError(
                f"{file} holds images themselves, not their paths. Give it as hf:{file}."
            )
        table = parquet.read_table(file, columns=plain)
    except pyarrow.ArrowException as error:
        raise InputError(f"{file} is no Parquet file ({error}).") from error
    return {
        name: ["" if value is None else str(value) for value in table[name].to_pylist()]
        for name in plain
    }
