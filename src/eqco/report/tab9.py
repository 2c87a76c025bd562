"""Table 9 as a picture: AP and its parts, a bar for each kind of weights."""

from collections.abc import Sequence
from pathlib import Path

from eqco.experiments.coordinates import Coordinates, distinct
from eqco.experiments.tab9 import RANDOM, compare, gain
from eqco.report.charts import Chart, colours_of, series_of_cells
from eqco.report.style import COLOURS, INK, panels, save
from eqco.report.words import words
from eqco.runtime.records import Record

__all__ = ["charts_tab9", "finding_tab9", "plot_tab9"]

SHADES = {RANDOM: "#8a8a8a", "supervised": "#bbbbbb", "MoCo v2": COLOURS["infonce"]}


def plot_tab9(records: Sequence[Record], path: Path) -> Path:
    """Mean over seeds with whiskers; every seed as a dot, the paper's numbers hollow."""
    cells = compare(records)
    rows = distinct(cell.row for cell in cells)
    columns = distinct(cell.column for cell in cells)
    figure, (panel,) = panels(1, width=1.1 * len(columns) + 1, height=3.6)
    breadth = 0.8 / len(rows)
    for place, row in enumerate(rows):
        colour = SHADES.get(words(row), COLOURS["eqco"])
        for cell in (cell for cell in cells if cell.row == row):
            x = columns.index(cell.column) + (place - (len(rows) - 1) / 2) * breadth
            panel.bar(x, cell.mean, width=0.9 * breadth, color=colour)
            panel.plot([x] * len(cell.values), cell.values, ".", color=INK, markersize=5)
            if cell.published is not None:
                panel.plot([x], [cell.published], "o", mfc="none", mec=INK, markersize=8)
        panel.bar(0, 0, color=colour, label=words(row))
    panel.set_xticks(range(len(columns)), [words(column).replace(", ", "\n") for column in columns])
    panel.set_ylabel("average precision, %", fontsize=9, color=INK)
    panel.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=len(rows), fontsize=8.5, frameon=False)
    seeds = len({record.seed for record in records})
    first = records[0]
    figure.supxlabel(
        f"{first.recipe['data']}, {first.recipe['backbone']}, profile {first.profile}, "
        f"{seeds} seed{'s' * (seeds > 1)} (dots)",
        x=0.995,
        ha="right",
        fontsize=7,
        color="#888888",
    )
    return save(figure, path)


def charts_tab9(records: Sequence[Record]) -> list[Chart]:
    """For the page: a row of bars for each metric; the classes apart."""
    cells = compare(records)
    columns = distinct(cell.column for cell in cells)
    parts = {
        "All classes": [column for column in columns if column.category is None],
        "AP50 of each class": [column for column in columns if column.category is not None],
    }
    rows = distinct(cell.row for cell in cells)
    charts = []
    for title, names in parts.items():
        series = []
        for row, colour in zip(rows, colours_of(rows), strict=True):
            here = [cell for cell in cells if cell.row == row and cell.column in names]
            places = [names.index(cell.column) for cell in here]
            series += series_of_cells(words(row), here, places, colour=colour, look="bars")
        if names:
            charts.append(
                Chart(
                    title=title,
                    x_label="",
                    y_label="average precision, %",
                    series=series,
                    categories=[column.category or column.metric for column in names],
                    from_zero=True,
                )
            )
    return charts


def finding_tab9(records: Sequence[Record]) -> str:
    """What pre-trained weights added to AP, seed by seed."""
    told = []
    for cell in gain(compare(records)):
        if cell.column == Coordinates(metric="AP"):
            seeds = ", ".join(f"{value:+.1f}" for value in cell.values)
            several = "s" * (len(cell.values) > 1)
            told.append(
                f"AP, {words(cell.row)} − {RANDOM}: {cell.mean:+.1f} points on "
                f"{records[0].recipe['data']} (seed{several}: {seeds})."
            )
    return " ".join(told)
