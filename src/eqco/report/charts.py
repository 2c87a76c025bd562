"""Charts as values: what the page draws, and nothing of how.

An experiment's file in this room makes them from its records; the page draws them all the same way.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eqco.experiments.experiment import Comparison
from eqco.report.style import COLOURS, SHADES

__all__ = [
    "Chart",
    "Series",
    "chart_data",
    "charts_of_cells",
    "colours_of",
    "series_of_cells",
]

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
    """The chart as the page's script reads it, without points that are not finite."""
    return asdict(replace(chart, series=[finite(series) for series in chart.series]))


def finite(series: Series) -> Series:
    """The series without the points that no axis can show.

    >>> finite(Series(name="loss", points=[(1, 2.0), (2, math.nan)])).points
    [(1, 2.0)]
    """
    kept = [i for i, (_, y) in enumerate(series.points) if math.isfinite(y)]
    low, high = ([side[i] for i in kept] if side else () for side in (series.low, series.high))
    return replace(series, points=[series.points[i] for i in kept], low=low, high=high)


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
    look = "bars" if looks.get("look") == "bars" else "marks"
    hollow = {**looks, "look": look, "published": True}
    return [ours, Series(name=f"{name}, paper", points=printed, **hollow)]


LOSSES = {"infonce": "infonce", "eqco": "eqco", "decoupled": "decoupled", "ml-cpc": "ml-cpc"}
NUMBERED = re.compile(r"(?P<name>\D+?)\s*=\s*(?P<number>[\d.]+)|(?P<count>[\d.]+) (?P<unit>\w+)")


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
    rows = list(dict.fromkeys(cell.row for cell in cells))
    counted, places = numbered(columns)
    if counted:
        return [
            chart
            for family, members in families(rows).items()
            for here in [[cell for cell in cells if cell.row in members]]
            for chart in lines_of_cells(here, places, counted, family, same_quantity)
        ]
    if len(rows) == 1:
        return bars_of_cells(cells, columns, rows[0], same_quantity)
    return [
        chart
        for column in columns
        for here in [[cell for cell in cells if cell.column == column]]
        for chart in bars_of_cells(here, [cell.row for cell in here], column, same_quantity)
    ]


def numbered(columns: Sequence[str]) -> tuple[str, dict[str, float]]:
    """What the columns count, and their numbers; nothing where they do not count one thing.

    >>> numbered(["K=4", "K=16"])
    ('K', {'K=4': 4.0, 'K=16': 16.0})
    >>> numbered(["20 epochs", "60 epochs"])[0], numbered(["AP", "AP50"])[0]
    ('epochs', '')
    """
    matches = [NUMBERED.fullmatch(column) for column in columns]
    names = {match["name"] or match["unit"] for match in matches if match}
    if len(columns) < 2 or not all(matches) or len(names) > 1:
        return "", {}
    values = [float(match["number"] or match["count"]) for match in matches if match]
    return names.pop(), dict(zip(columns, values, strict=True))


def lines_of_cells(
    cells: Sequence[Comparison],
    places: Mapping[str, float],
    counted: str,
    family: str,
    same_quantity: bool,
) -> list[Chart]:
    """One line for each row of the table."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    series = []
    for row, colour in zip(rows, colours_of(rows), strict=True):
        here = [cell for cell in cells if cell.row == row]
        name = row.removeprefix(family).lstrip(" ,:")
        series += series_of_cells(name, here, [places[c.column] for c in here], colour=colour)
    log = max(places.values()) >= 4 * min(places.values()) > 0
    chart = Chart(
        title=family,
        x_label=counted,
        y_label="",
        series=series,
        log_x=log,
        ticks=list(places.values()),
    )
    return split_published(chart, same_quantity)


def bars_of_cells(
    cells: Sequence[Comparison], names: Sequence[str], title: str, same_quantity: bool
) -> list[Chart]:
    """One bar for each cell."""
    series = series_of_cells("ours", cells, range(len(names)), look="bars")
    chart = Chart(
        title=title, x_label="", y_label="", series=series, categories=names, from_zero=True
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
    """The colour that every plot gives to a loss, to the first row with it; others for the rest.

    >>> colours_of(["InfoNCE", "EqCo, α=256", "EqCo, α=4096"]), colours_of(["width 1", "width 2"])
    (['infonce', 'eqco', 'ml-cpc'], ['eqco', 'infonce'])
    """
    free = ["eqco", *(name for name in COLOURS if name != "eqco")]
    wanted = [LOSSES.get(loss_of(row), "") for row in rows]
    found = []
    for colour in wanted:
        if colour not in free:
            colour = next((c for c in free if c not in wanted), free[0] if free else "ink")
        found.append(colour)
        free = [c for c in free if c != colour]
    return found


def loss_of(row: str) -> str:
    """The loss that a row names, in small letters; empty if it names none.

    >>> loss_of("SimCLR, InfoNCE"), loss_of("batch: EqCo, α=4096"), loss_of("SiMo")
    ('infonce', 'eqco', '')
    """
    return next((loss for loss in LOSSES if loss in row.lower()), "")


def families(rows: Sequence[str]) -> dict[str, list[str]]:
    """Rows by what stands before their loss: a chart for each, and what distinguishes its rows.

    >>> families(["MoCo, InfoNCE", "MoCo, EqCo", "SimCLR, InfoNCE"])
    {'MoCo': ['MoCo, InfoNCE', 'MoCo, EqCo'], 'SimCLR': ['SimCLR, InfoNCE']}
    >>> families(["width 1", "width 2"])
    {'': ['width 1', 'width 2']}
    """
    found: dict[str, list[str]] = {}
    for row in rows:
        loss = loss_of(row)
        before = row[: row.lower().index(loss)] if loss else ""
        found.setdefault(before.rstrip(" ,:"), []).append(row)
    return found
