"""Charts as values: what the page draws, and nothing of how.

An experiment's file in this room makes them from its records; the page draws them all the same way.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eqco.experiments.experiment import Comparison
from eqco.report.style import COLOURS, SHADES

__all__ = ["Chart", "Series", "chart_data", "charts_of_cells", "series_of_cells"]

Point = tuple[float, float]
Look = Literal["line", "thin", "dashed", "marks", "bars"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, one row of marks or one set of bars.

    Args:
        name: as the legend says it; series of one name in neighbouring charts are toggled together.
        points: (x, y); in a chart with categories x is the place of the category.
        low, high: the range over seeds at each point, or empty.
        colour: a name of `style.COLOURS`, "ink", or "shade 0" … "shade 9" along a scale.
        look: a line with marks, a thin line alone, a dashed line, hollow marks, or bars.
        published: whether the numbers are the paper's; drawn hollow and labelled.
    """

    name: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: str = "eqco"
    look: Look = "line"
    published: bool = False

    def __post_init__(self) -> None:
        assert self.colour in {*COLOURS, *SHADES, "ink"}, self.colour
        assert len(self.low) == len(self.high)
        assert len(self.low) in (0, len(self.points))


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One pair of axes.

    Args:
        title: short; empty where the chart stands alone.
        x_label, y_label: with units.
        series: drawn in this order.
        log_x, log_y: whether an axis is logarithmic.
        categories: names of the places on the x axis; rows of bars where given.
        from_zero: whether the y axis must begin at 0.
        ticks: where the x axis has numbers; chosen by the page if empty.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    categories: Sequence[str] = ()
    from_zero: bool = False
    ticks: Sequence[float] = ()


def chart_data(chart: Chart) -> dict[str, Any]:
    """The chart as the page's script reads it."""
    return asdict(chart)


def series_of_cells(
    name: str, cells: Sequence[Comparison], places: Sequence[float], **looks: Any
) -> list[Series]:
    """Our means with the range over seeds, and the paper's numbers where there are any.

    >>> cell = Comparison(row="", column="K=16", values=(1.0, 3.0), published=2.5)
    >>> ours, paper = series_of_cells("EqCo", [cell], [16])
    >>> ours.points, ours.low, ours.high, paper.name, paper.points
    ([(16, 2.0)], [1.0], [3.0], 'EqCo, paper', [(16, 2.5)])
    """
    several = any(len(cell.values) > 1 for cell in cells)
    ours = Series(
        name=name,
        points=[(place, cell.mean) for place, cell in zip(places, cells, strict=True)],
        low=[min(cell.values) for cell in cells] if several else (),
        high=[max(cell.values) for cell in cells] if several else (),
        **looks,
    )
    printed = [
        (place, cell.published)
        for place, cell in zip(places, cells, strict=True)
        if cell.published is not None
    ]
    if not printed:
        return [ours]
    hollow = {**looks, "look": "marks", "published": True}
    return [ours, Series(name=f"{name}, paper", points=printed, **hollow)]


NUMBERED = re.compile(r"(\D+?)\s*=\s*([\d.]+)")


def charts_of_cells(cells: Sequence[Comparison], *, same_quantity: bool) -> list[Chart]:
    """Charts of any table: lines where its columns count something (K=16, K=64 …), bars elsewhere.

    Args:
        cells: the table.
        same_quantity: whether the paper's numbers measure what ours do (the published setting).
            Else they get axes of their own: ImageNet and CIFAR-10 have no common scale.

    >>> row = [Comparison(row="eqco", column=f"K={k}", values=(k / 8,)) for k in (16, 64)]
    >>> chart, = charts_of_cells(row, same_quantity=False)
    >>> chart.x_label, chart.log_x, chart.series[0].points
    ('K', True, [(16.0, 2.0), (64.0, 8.0)])
    """
    columns = list(dict.fromkeys(cell.column for cell in cells))
    matches = [NUMBERED.fullmatch(column) for column in columns]
    names = {match[1] for match in matches if match}
    if len(columns) > 1 and all(matches) and len(names) == 1:
        places = {c: float(match[2]) for c, match in zip(columns, matches, strict=True) if match}
        return lines_of_cells(cells, places, names.pop(), same_quantity)
    return [
        chart
        for column in columns
        for chart in bars_of_cells([c for c in cells if c.column == column], same_quantity)
    ]


def lines_of_cells(
    cells: Sequence[Comparison], places: Mapping[str, float], counted: str, same_quantity: bool
) -> list[Chart]:
    """One line for each row of the table."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    series = []
    for row, colour in zip(rows, colours_of(rows), strict=True):
        here = [cell for cell in cells if cell.row == row]
        series += series_of_cells(row, here, [places[c.column] for c in here], colour=colour)
    log = max(places.values()) >= 4 * min(places.values()) > 0
    chart = Chart(
        title="",
        x_label=counted,
        y_label="",
        series=series,
        log_x=log,
        ticks=list(places.values()),
    )
    return split_published(chart, same_quantity)


def bars_of_cells(cells: Sequence[Comparison], same_quantity: bool) -> list[Chart]:
    """One bar for each row of one column."""
    rows = [cell.row for cell in cells]
    series = series_of_cells("ours", cells, range(len(rows)), look="bars", colour="eqco")
    chart = Chart(
        title=cells[0].column,
        x_label="",
        y_label="",
        series=series,
        categories=rows,
        from_zero=True,
    )
    return split_published(chart, same_quantity)


def split_published(chart: Chart, same_quantity: bool) -> list[Chart]:
    """The chart, or ours and the paper's beside each other on axes of their own."""
    sides = [[s for s in chart.series if s.published is side] for side in (False, True)]
    if same_quantity or not all(sides):
        return [chart]
    return [
        replace(chart, title=join_words(chart.title, word), series=side)
        for word, side in zip(("ours", "paper"), sides, strict=True)
    ]


def join_words(*words: str) -> str:
    """Title and side as one line.

    >>> join_words("", "ours"), join_words("kNN", "paper")
    ('ours', 'kNN: paper')
    """
    return ": ".join(word for word in words if word)


def colours_of(rows: Sequence[str]) -> list[str]:
    """The colour that every plot gives to a loss; one for each row where that tells too little.

    >>> colours_of(["SiMo, plain", "SiMo, EqCo"]), colours_of(["width 1", "width 2", "width 4"])
    (['infonce', 'eqco'], ['eqco', 'infonce', 'ml-cpc'])
    """
    words = {"eqco": "eqco", "alpha": "eqco", "α": "eqco", "decoupled": "decoupled"}
    words |= {"plain": "infonce", "infonce": "infonce"}
    found = [next((c for word, c in words.items() if word in row.lower()), "") for row in rows]
    if all(found) and len(set(found)) == len(found):
        return found
    cycle = ["eqco", *(name for name in COLOURS if name != "eqco")]
    return [cycle[place % len(cycle)] for place in range(len(rows))]
