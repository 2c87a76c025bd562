"""Table 9 as charts: AP and its parts, a bar for each kind of weights."""

from collections.abc import Sequence

from eqco.experiments.coordinates import Coordinates, distinct
from eqco.experiments.tab9 import RANDOM, compare, gain
from eqco.report.charts import Chart, colours_of, series_of_cells
from eqco.report.words import words
from eqco.runtime.records import Record

__all__ = ["charts_tab9", "finding_tab9"]


def charts_tab9(records: Sequence[Record]) -> list[Chart]:
    """A row of bars for each metric; the classes apart."""
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
