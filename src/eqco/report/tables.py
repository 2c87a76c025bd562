"""Tables of our numbers beside the paper's, as Markdown and for the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from eqco.experiments.coordinates import Place, distinct, in_order
from eqco.experiments.experiment import Comparison
from eqco.report.words import words

__all__ = [
    "comparison_table",
    "kind_words",
    "largest_difference",
    "markdown",
    "number_text",
    "part_titles",
    "print_table",
]


def comparison_table(cells: Sequence[Comparison]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a table with one line for each row of the experiment.

    A cell shows our mean over seeds, ± their standard deviation when there are several, and in
    brackets the paper's number and the difference, or the paper's number alone where it was
    measured in another setting. Where nothing was run the paper's stands alone. Where cells have
    unlike numbers of seeds, each says how many. The second column says whether a number is a bound
    or an estimate.
    The title of a part of the table is a line of its own.
    """
    columns = in_order(cell.column for cell in cells)
    rows = distinct(cell.row for cell in cells)
    found = {(cell.row, cell.column): cell for cell in cells}
    labelled = any(cell.kind for cell in cells)
    counted = len({len(cell.values) for cell in cells if cell.values}) > 1
    titles = part_titles(cells)
    lines = []
    for row in rows:
        if row in titles:
            lines.append([f"— {titles[row]} —", *[""] * (labelled + len(columns))])
        here = [found.get((row, column)) for column in columns]
        label = [kind_words(here)] if labelled else []
        run = any(cell.values for cell in here if cell)
        texts = [cell_text(cell, alone=run, counted=counted) if cell else "–" for cell in here]
        lines.append([words(row) if run else f"{words(row)} (not run here)", *label, *texts])
    return ["", *(["f̂ is"] if labelled else []), *map(words, columns)], lines


def part_titles(cells: Sequence[Comparison]) -> dict[Place, str]:
    """The titles of the parts of a table, each by the row that it stands above."""
    firsts: dict[str, Place] = {}
    for cell in cells:
        firsts.setdefault(cell.part, cell.row)
    return {row: part for part, row in firsts.items() if part}


def kind_words(cells: Sequence[Comparison | None]) -> str:
    """Whether the numbers of a row are bounds, estimates, or some of both."""
    return " / ".join(dict.fromkeys(cell.kind for cell in cells if cell and cell.kind))


def cell_text(cell: Comparison, *, alone: bool = True, counted: bool = False) -> str:
    """One cell: ours ± standard deviation [interval] (paper's, difference), its seeds `counted`.

    Where nothing was run it says so, unless its whole row does.

    >>> cell_text(Comparison(row="", column="", values=(1.70, 1.72), published=1.8))
    '1.71 ±0.01 (1.8, -0.09)'
    >>> cell_text(Comparison(row="", column="", values=(1.70, 1.72)), counted=True)
    '1.71 ±0.01 (n = 2)'
    >>> cell_text(Comparison(row="", column="", values=(38.6,), interval=(34.8, 42.2)))
    '38.60 [34.8–42.2]'
    >>> cell_text(Comparison(row="", column="", values=(0.5,), interval=(-0.2, 1.2)))
    '0.50 [-0.2 to 1.2]'
    >>> cell_text(Comparison(row="", column="", values=(), published=63.8))
    'not run here (paper: 63.8)'
    """
    if not cell.values:
        return f"{'not run here ' * alone}(paper: {cell.published})"
    text = number_text(cell.mean)
    if len(cell.values) > 1:
        text += f" ±{cell.deviation:.2f}"
    if cell.interval is not None:
        low, high = cell.interval
        text += f" [{low:.1f}{'–' if low >= 0 else ' to '}{high:.1f}]"
    if counted:
        text += f" (n = {len(cell.values)})"
    if cell.difference is not None:
        text += f" ({cell.published}, {cell.difference:+.2f})"
    elif cell.published is not None:
        text += f" (paper's setting: {cell.published})"
    return text


def number_text(value: float) -> str:
    """Two decimals, or none of a large number."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def largest_difference(cells: Sequence[Comparison]) -> float | None:
    """The largest distance between ours and the paper's; None where nothing is published."""
    distances = [abs(cell.difference) for cell in cells if cell.difference is not None]
    return max(distances, default=None)


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
