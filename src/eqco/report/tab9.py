"""Table 9 on the page: AP and its parts, a bar for each kind of weights."""

from collections.abc import Sequence

from eqco.experiments.tab9 import compare, gain
from eqco.report.charts import Chart
from eqco.report.table_charts import colours_of, series_of_cells
from eqco.runtime.records import Record

__all__ = ["charts_tab9", "finding_tab9"]


def charts_tab9(records: Sequence[Record]) -> list[Chart]:
    """A group of bars for each metric; the classes apart."""
    cells = compare(records)
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = list(dict.fromkeys(cell.row for cell in cells))
    charts = []
    for title, of_class in (("All classes", False), ("AP50 of each class", True)):
        names = [name for name in columns if ("," in name) is of_class]
        series = []
        for row, colour in zip(rows, colours_of(rows), strict=True):
            here = [cell for cell in cells if cell.row == row and cell.column in names]
            places = [names.index(cell.column) for cell in here]
            series += series_of_cells(row, here, places, colour=colour, look="bars")
        if names:
            charts.append(
                Chart(
                    title=title,
                    x_label="",
                    y_label="average precision, %",
                    series=series,
                    categories=[name.removeprefix("AP50, ") for name in names],
                    from_zero=True,
                )
            )
    return charts


def finding_tab9(records: Sequence[Record]) -> str:
    """What pre-trained weights added to AP, seed by seed."""
    return " ".join(
        f"AP, {cell.row}: {cell.mean:+.1f} points on {records[0].recipe['data']} "
        f"(seed{'s' * (len(cell.values) > 1)}: {', '.join(f'{v:+.1f}' for v in cell.values)})."
        for cell in gain(compare(records))
        if cell.column == "AP"
    )
