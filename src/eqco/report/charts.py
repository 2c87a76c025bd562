"""Charts as values: what the page and the pictures draw, and nothing of how.

Any table of comparisons becomes charts here: lines where its columns count something, else bars.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eqco.experiments.coordinates import Coordinates, Place, axis_of, distinct
from eqco.experiments.experiment import Comparison
from eqco.report.style import COLOURS, SHADES
from eqco.report.words import axis_words, words

__all__ = [
    "Chart",
    "LineStyle",
    "Quantity",
    "Series",
    "bars_of_cells",
    "chart_data",
    "charts_of_cells",
    "colours_of",
    "families",
    "own_name",
    "series_of_cells",
    "share_scale",
]

Point = tuple[float, float]
LineStyle = Literal["line", "thin", "dashed", "marks", "bars"]
FAMILY = ("framework", "source")  # what rows of one chart have in common


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, one row of marks or one set of bars.

    Args:
        name: as the legend says it; series of one name in neighbouring charts are toggled together.
        points: (x, y); in a chart with categories x is the place of the category.
        low, high: the range at each point, over seeds unless the name says otherwise, or empty.
        colour: a name of `style.COLOURS`, "ink", or "shade 0" … "shade 9" along a scale.
        look: a line with marks, a thin line alone, a dashed line, hollow marks, or bars.
        published: whether the numbers are the paper's; drawn with hollow marks.
    """

    name: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: str = "eqco"
    look: LineStyle = "line"
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
        covers: values that the y axis must reach to, so that charts can share a scale.
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
    covers: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What the numbers of a table are.

    Args:
        ours, paper: labels of the axis.
        same: whether the paper's numbers measure what ours do. Else they get axes of their own:
            ImageNet and CIFAR-10 have no common scale.
    """

    ours: str = ""
    paper: str = ""
    same: bool = False


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
    """Our means with their range, where there are any, and the paper's numbers likewise.

    The range is over seeds, or over test images where the cells say so.

    >>> cell = Comparison(row="", column="", values=(1.0, 3.0), published=2.5)
    >>> ours, paper = series_of_cells("EqCo", [cell], [16])
    >>> ours.points, ours.low, ours.high, paper.name, paper.points
    ([(16, 2.0)], [1.0], [3.0], 'EqCo, paper', [(16, 2.5)])
    """
    placed = list(zip(places, cells, strict=True))
    run = [(place, cell) for place, cell in placed if cell.values]
    ranged = any(cell.interval or len(cell.values) > 1 for _, cell in run)
    ends = [cell.interval or (min(cell.values), max(cell.values)) for _, cell in run]
    ours = Series(
        name=name,
        points=[(place, cell.mean) for place, cell in run],
        low=[low for low, _ in ends] if ranged else (),
        high=[high for _, high in ends] if ranged else (),
        **looks,
    )
    printed = [(place, c.published) for place, c in placed if c.published is not None]
    hollow = {"look": "bars" if looks.get("look") == "bars" else "marks", "published": True}
    in_paper = next((words(c.printed[0]) for c in cells if c.printed), name)
    paper = Series(name=f"{in_paper}, paper", points=printed, **{**looks, **hollow})
    return [series for series in (ours, paper) if series.points]


def charts_of_cells(cells: Sequence[Comparison], quantity: Quantity) -> list[Chart]:
    """Lines against what the columns count, a chart for each framework or source; or bars.

    >>> at = [Coordinates(num_negatives=k) for k in (16, 64, 256)]
    >>> row = [Comparison(row="eqco", column=c, values=(c.num_negatives / 8,)) for c in at]
    >>> chart, = charts_of_cells(row, Quantity(ours="nats"))
    >>> chart.x_label, chart.y_label, chart.log_x, chart.series[0].points[0]
    ('K', 'nats', True, (16, 2.0))
    """
    axis, values = axis_of(distinct(cell.column for cell in cells))
    if len(values) < 2 or len(cells) < 3:
        return bars_of_cells(cells, quantity)
    groups = families(distinct(cell.row for cell in cells))
    own = distinct(own_name(row) for rows in groups.values() for row in rows)
    colours = dict(zip(own, colours_of(own), strict=True))
    charts = []
    for family, rows in groups.items():
        series = []
        for row in rows:
            here = sorted((c for c in cells if c.row == row), key=lambda c: values[c.column])
            name = own_name(row)
            at = [values[cell.column] for cell in here]
            series += series_of_cells(words(name), here, at, colour=colours[name])
        places = sorted(values.values())
        chart = Chart(
            title=words(family),
            x_label=axis_words(axis),
            y_label="",
            series=series,
            log_x=places[-1] >= 4 * places[0] > 0,
            ticks=places,
        )
        charts += sides_of(chart, quantity)
    return share_span(charts)


def families(rows: Sequence[Place]) -> dict[Coordinates, list[Place]]:
    """Rows that differ by their loss, by framework and source: a chart for each.

    >>> rows = [Coordinates(framework=name, loss="infonce") for name in ("MoCo", "SimCLR")]
    >>> [words(family) for family in families(rows)]
    ['MoCo', 'SimCLR']
    """
    found: dict[Coordinates, list[Place]] = {}
    for row in rows:
        grouped = isinstance(row, Coordinates) and row.loss is not None
        family = row.only(*FAMILY) if grouped else Coordinates()  # type: ignore[union-attr]
        found.setdefault(family, []).append(row)
    return found


def own_name(row: Place) -> Place:
    """What a row is called beside the others of its family."""
    if isinstance(row, Coordinates) and row.loss is not None:
        return row.without(*FAMILY)
    return row


def colours_of(rows: Sequence[Place]) -> list[str]:
    """The colour that every plot gives to a loss, to the first row with it; others for the rest.

    >>> colours_of([Coordinates(loss="infonce"), Coordinates(loss="eqco"), "raw pixels"])
    ['infonce', 'eqco', 'ml-cpc']
    >>> colours_of(["width 1", "width 2"])
    ['eqco', 'infonce']
    """
    free = ["eqco", *(name for name in COLOURS if name != "eqco")]
    wanted = [row.loss if isinstance(row, Coordinates) else None for row in rows]
    found = []
    for loss in wanted:
        others = [colour for colour in free if colour not in wanted] or free or ["ink"]
        found.append(loss if loss in free else others[0])
        free = [colour for colour in free if colour != found[-1]]
    return found


def bars_of_cells(cells: Sequence[Comparison], quantity: Quantity) -> list[Chart]:
    """Bars: of the columns where there is one row, else of the rows, a chart for each column."""
    one_row = len(distinct(cell.row for cell in cells)) == 1
    groups: dict[Place, list[Comparison]] = {}
    for cell in cells:
        groups.setdefault(cell.row if one_row else cell.column, []).append(cell)
    charts = []
    for group, here in groups.items():
        title = words(group) if len(groups) > 1 or isinstance(group, Coordinates) else ""
        own = [(cell.column if one_row else cell.row, cell) for cell in here]
        if quantity.same:
            charts.append(bar_chart(title, quantity.ours, own))
            continue
        run = [(name, replace(cell, published=None)) for name, cell in own if cell.values]
        printed = [
            (cell.printed[one_row] if cell.printed else name, replace(cell, values=()))
            for name, cell in own
            if cell.published is not None
        ]
        several = len(printed) > 1  # a number alone is in the table
        if run:
            charts.append(bar_chart(side(title, "ours" * several), quantity.ours, run))
        if several:
            charts.append(bar_chart(side(title, "paper"), quantity.paper, printed))
    return charts


def bar_chart(title: str, label: str, named: Sequence[tuple[Place, Comparison]]) -> Chart:
    """A row of bars for each name."""
    return Chart(
        title=title,
        x_label="",
        y_label=label,
        series=series_of_cells("ours", [c for _, c in named], range(len(named)), look="bars"),
        categories=[words(name) for name, _ in named],
        from_zero=True,
    )


def side(title: str, whose: str) -> str:
    """A title that says whose numbers a chart has.

    >>> side("MoCo", "paper"), side("", "ours")
    ('MoCo: paper', 'ours')
    """
    return ": ".join(filter(None, (title, whose)))


def sides_of(chart: Chart, quantity: Quantity) -> list[Chart]:
    """The chart, or ours and the paper's beside each other on axes of their own."""
    chart = replace(chart, y_label=quantity.ours)
    ours, paper = ([s for s in chart.series if s.published is whose] for whose in (False, True))
    if quantity.same or not paper:
        return [chart]
    if len({x for one in paper for x, _ in one.points}) < 2:  # a point alone is in the table
        return [replace(chart, series=ours)] if ours else []
    sides = [
        replace(chart, title=side(chart.title, "ours"), series=ours),
        replace(
            chart,
            title=side(chart.title, "paper"),
            series=[replace(series, look="line") for series in paper],
            y_label=quantity.paper,
        ),
    ]
    return [with_own_ticks(each) for each in sides if each.series]


def with_own_ticks(chart: Chart) -> Chart:
    """The chart without the ticks at which none of its series has a point."""
    used = {x for series in chart.series for x, _ in series.points}
    return replace(chart, ticks=[tick for tick in chart.ticks if tick in used])


def share_scale(charts: Sequence[Chart]) -> list[Chart]:
    """The same charts with one y axis for all."""
    low, high = reach(charts)
    return [replace(chart, covers=(low, high)) for chart in charts]


def share_span(charts: Sequence[Chart]) -> list[Chart]:
    """The same charts: one y axis for each quantity, all as long, so that slopes compare."""
    ends = {
        label: reach([chart for chart in charts if chart.y_label == label])
        for label in distinct(chart.y_label for chart in charts)
    }
    half = max((high - low for low, high in ends.values()), default=0.0) / 2
    middles = {label: (low + high) / 2 for label, (low, high) in ends.items()}
    return [
        replace(chart, covers=(middles[chart.y_label] - half, middles[chart.y_label] + half))
        for chart in charts
    ]


def reach(charts: Sequence[Chart]) -> tuple[float, float]:
    """The least and the largest value that the charts show."""
    values = [
        value
        for chart in charts
        for series in chart.series
        for value in (*(y for _, y in series.points), *series.low, *series.high)
    ]
    return min(values), max(values)
