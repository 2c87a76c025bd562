"""What `eqco reproduce` leaves behind: the table on the screen and in a file, and the plot."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from eqco.experiments.experiment import Experiment
from eqco.report.tables import comparison_table, largest_difference, markdown, print_table
from eqco.report.words import seeds_of
from eqco.runtime.atomic_files import write_text
from eqco.runtime.records import Record

__all__ = ["write_summary"]


def write_summary(
    console: Console,
    experiment: Experiment[Any],
    records: Sequence[Record],
    out: Path,
    plot: Callable[[Sequence[Record], Path], Path] | None = None,
) -> list[Path]:
    """Print the table, write it as Markdown, draw the plot; returns the files written."""
    profile = records[0].profile
    cells = experiment.compare(records)
    header, lines = comparison_table(cells)
    seeds = seeds_of(records)
    notes = [
        experiment.heading,
        f"Profile {profile}, seeds {', '.join(map(str, seeds))}, "
        f"{sum(record.seconds for record in records):.0f} s of computing.",
    ]
    farthest = largest_difference(cells)
    if farthest is not None:
        notes.append(
            "Mean ± standard deviation over seeds (paper's, difference). "
            f"Largest difference to the paper: {farthest:.2f}."
        )
    console.print(notes[0], style="bold", markup=False)
    print_table(console, header, lines)
    texts = [f"# {notes[0]}", *notes[1:], markdown(header, lines)]
    tables = {**experiment.conclude(records), **experiment.further(records)}
    for title, concluded in tables.items():
        header, lines = comparison_table(concluded)
        console.print(f"\n{title}", style="bold", markup=False)
        print_table(console, header, lines)
        texts += [f"## {title}", markdown(header, lines)]
    console.print()
    for note in notes[1:]:
        console.print(note, markup=False)
    page = out / f"{experiment.name}-{profile}.md"
    write_text(page, "\n\n".join(texts) + "\n")
    written = [page]
    if plot is not None:
        written.append(plot(records, out / f"{experiment.name}-{profile}.png"))
    for path in written:
        console.print(f"written: {path}", markup=False)
    return written
