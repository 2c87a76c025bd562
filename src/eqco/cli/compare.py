"""`eqco compare`: several runs in one table and one plot."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from eqco.data.pictures import check_picture_name
from eqco.report.run_comparison import (
    ComparedRun,
    comparison_lines,
    comparison_notes,
    draw_comparison,
)
from eqco.report.tables import print_table
from eqco.runtime.atomic_files import refuse_existing, refuse_unwritable
from eqco.runtime.errors import InputError


def run(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    out: Path = Path("comparison.png"),
    overwrite: bool = False,
) -> None:
    """Set runs side by side: the settings that differ, loss, f̂, accuracy with interval, speed.

    Losses of different α, τ or K are not comparable, and are said not to be.

    Args:
        runs: two or more run directories.
        out: file for the plot.
        overwrite: replace that file.

    Examples:
        eqco compare runs/plain runs/eqco
        eqco compare runs/* --out all.png
    """
    if len(runs) < 2:
        raise InputError(f"{len(runs)} run given; name two or more to compare.")
    check_picture_name(out)
    refuse_existing(out, overwrite=overwrite)
    refuse_unwritable(out)
    compared = [ComparedRun(path) for path in runs]
    console = Console()
    print_table(console, *comparison_lines(compared))
    for note in comparison_notes(compared):
        console.print(note, markup=False, highlight=False)
    draw_comparison(compared, out)
    console.print(f"written: {out}", markup=False, highlight=False)
