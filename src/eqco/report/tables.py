"""Tables of our numbers beside the paper's, as Markdown and for the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from eqco.experiments.experiment import Comparison

__all__ = ["comparison_table", "largest_difference", "print_table", "subtracts"]


def comparison_table(cells: Sequence[Comparison]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a table with one line for each row of the experiment.

    A cell shows our mean over seeds, ± half the spread when there are several, and in brackets the
    paper's number and the difference, or the paper's number alone where it was measured in another
    setting. The second column says what the numbers are worth.
    """
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = list(dict.fromkeys(cell.row for cell in cells))
    found = {(cell.row, cell.column): cell for cell in cells}
    labelled = any(cell.kind for cell in cells)
    lines = []
    for row in rows:
        here = [found.get((row, column)) for column in columns]
        label = [worth_words(here)] if labelled else []
        lines.append([row, *label, *(cell_text(cell) if cell else "–" for cell in here)])
    return ["", *(["f̂ is"] if labelled else []), *columns], lines


def worth_words(cells: Sequence[Comparison | None]) -> str:
    """What the numbers of a row are worth: bound, estimate, or which of them both."""
    return " / ".join(dict.fromkeys(cell.kind for cell in cells if cell and cell.kind))


def cell_text(cell: Comparison) -> str:
    """One cell: ours ± half the spread [interval] (paper's, difference).

    >>> cell_text(Comparison(row="", column="", values=(1.70, 1.72), published=1.8))
    '1.71 ±0.01 (1.8, -0.09)'
    >>> cell_text(Comparison(row="", column="", values=(38.6,), interval=(34.8, 42.2)))
    '38.60 [34.8–42.2]'
    """
    text = f"{cell.mean:.2f}" if abs(cell.mean) < 100 else f"{cell.mean:.0f}"
    if len(cell.values) > 1:
        text += f" ±{cell.spread / 2:.2f}"
    if cell.interval is not None:
        text += f" [{cell.interval[0]:.1f}–{cell.interval[1]:.1f}]"
    if cell.difference is not None:
        text += f" ({cell.published:g}, {cell.difference:+.2f})"
    elif cell.published is not None:
        text += f" (paper's setting: {cell.published:g})"
    return text


def largest_difference(cells: Sequence[Comparison]) -> float | None:
    """The largest distance between ours and the paper's; None where nothing is published."""
    distances = [abs(cell.difference) for cell in cells if cell.difference is not None]
    return max(distances, default=None)


def subtracts(title: str) -> bool:
    """Whether a further table takes one setting from another, which is what one looks for.

    >>> subtracts("Gained over InfoNCE, points"), subtracts("Nearest neighbours (kNN), %")
    (True, False)
    """
    return title.startswith("Gained over ") or " less " in title


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The table as Markdown.

    >>> print(markdown(["", "K=64"], [["eqco", "1.9"]]))
    |  | K=64 |
    |---|---|
    | eqco | 1.9 |
    """
    rule = ["---"] * len(header)
    body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(header)} |", f"|{'|'.join(rule)}|", *body])


def print_table(console: Console, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """The table in the terminal, folded where it is too narrow."""
    table = Table(box=None, pad_edge=False)
    for position, name in enumerate(header):
        table.add_column(name, justify="left" if position == 0 else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)
