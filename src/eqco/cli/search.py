"""`eqco search`: the photos most like one, and near-duplicates, with a contact sheet."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from eqco.assembly import PhotoIndex, open_index
from eqco.assembly.parts import check_device
from eqco.assembly.search import Match
from eqco.data.bands import to_picture
from eqco.data.decoding import find_layout, read_image
from eqco.data.pictures import check_picture_name
from eqco.report.similar import draw_groups, draw_matches
from eqco.report.tables import print_table
from eqco.runtime.atomic_files import refuse_existing, refuse_unwritable
from eqco.runtime.errors import InputError

LISTED = 50  # groups of near-duplicates that are printed


def run(
    index: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")],
    photos: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PHOTO")] = (),
    /,
    *,
    count: int = 10,
    duplicates: bool = False,
    at_least: float | None = None,
    sheet: Path | None = None,
    overwrite: bool = False,
    weights: str | None = None,
    folder: Path | None = None,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Find the photos of an index that are most like others, or like each other.

    Similarity is the cosine of the encoder's features less the mean of all photos: 1 for the same
    photo, about 0 for unrelated ones.

    Args:
        index: what `eqco index` has written.
        photos: the photos to search for; they need not be in the index.
        count: photos to find for each.
        duplicates: list near-duplicates among the photos of the index instead.
        at_least: how alike these are to the encoder; by default as 95 % of the photos are to a copy
            that has lost a sixteenth at each side, and their small pictures must be the same too.
        sheet: file for the contact sheet; similar-PHOTO.png of the first, or duplicates.png.
        overwrite: replace that file.
        weights: where the encoder of the index is now, if it was moved.
        folder: where the photos of the index are now, if they were moved.
        device: where to compute: cpu, cuda, mps.

    Examples:
        eqco search index cat.jpg
        eqco search index cat.jpg dog.jpg --count 5 --sheet pets.png
        eqco search index --duplicates
    """
    if duplicates == bool(photos):
        raise InputError("give a photo to search for, or --duplicates; one of the two.")
    if at_least is not None and not duplicates:
        raise InputError(f"--at-least {at_least:g} belongs to --duplicates.")
    check_device(device)
    if folder is not None and not folder.is_dir():
        raise InputError(f"--folder {folder} is no folder. Give the one that holds the photos now.")
    opened = open_index(index, weights=weights, photos=folder, device=device)
    for photo in photos:
        if not photo.is_file():
            raise InputError(f"{photo} is no file; give photos to search for.")
    path = sheet or Path("duplicates.png" if duplicates else f"similar-{photos[0].stem}.png")
    check_picture_name(path)
    refuse_existing(path, overwrite=overwrite, option="--sheet")
    refuse_unwritable(path, option="--sheet")
    console = Console()
    if duplicates:
        groups = opened.duplicates(at_least)
        print_groups(console, opened, groups, at_least)
        if not groups:
            return
        draw_groups(groups, opened.picture, path)
        found = [match for group in groups for match in group]
    else:
        rows = []
        for photo in photos:
            matches = opened.search(photo, count)
            console.print(str(photo), style="bold", markup=False, highlight=False)
            lines = [[match.name, f"{match.similarity:.4f}"] for match in matches]
            print_table(console, ["", "similarity"], lines)
            picture = to_picture(read_image(photo, find_layout([str(photo)])))
            rows.append((photo.name, picture, matches))
        draw_matches(rows, opened.picture, path)
        found = [match for _, _, matches in rows for match in matches]
    console.print(f"written: {path}", markup=False, highlight=False)
    name_moved(opened, found)


def print_groups(
    console: Console, index: PhotoIndex, groups: Sequence[Sequence[Match]], at_least: float | None
) -> None:
    """The groups, closest first, and how alike they are."""
    least = index.facts["copies"] if at_least is None else at_least
    photos = sum(map(len, groups))
    console.print(
        f"{photos} of {len(index):,} photos in {len(groups)} groups of near-duplicates "
        f"(similarity {least:.4f} or more)",
        markup=False,
        highlight=False,
    )
    lines = []
    for group in groups[:LISTED]:
        lines += [[match.name, f"{match.similarity:.4f}"] for match in group] + [["", ""]]
    if lines:
        print_table(console, ["", "similarity to the first"], lines[:-1])
    if len(groups) > LISTED:
        console.print(f"and {len(groups) - LISTED} more groups", markup=False)


def name_moved(index: PhotoIndex, matches: Sequence[Match]) -> None:
    """Say which of the photos that were found are not where they were."""
    gone = list(dict.fromkeys(match.name for match in matches if index.is_moved(match)))
    for name in gone[:10]:
        print(f"not there any more: {Path(index.photos) / name}", file=sys.stderr)
    if gone:
        print(
            f"{len(gone)} of the photos found are not in {index.photos}; give --folder if they "
            f"were moved, or index what is there: eqco index … --out {index.path} --overwrite",
            file=sys.stderr,
        )
