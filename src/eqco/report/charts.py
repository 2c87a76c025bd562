"""Charts as values: what the page and the pictures draw, and nothing of how.

Any table of comparisons becomes charts here: lines where its columns count something, else bars.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eqco.experiments.coordinates import Coordinates, Place, axis_of, distinct, group_by
from eqco.experiments.experiment import Comparison
from eqco.report.style import COLOURS, SHADES
from eqco.report.tables import kind_words
from eqco.report.words import axis_words, words

__all__ = [
    "Chart",
    "LineStyle",
    "Quantity",
    "Series",
    "bar_chart",
    "bars_of_cells",
    "chart_data",
    "charts_of_cells",
    "colours_of",
    "family_and_name",
    "series_of_cells",
    "share_span",
]

Point = tuple[float, float]
LineStyle = Literal["line", "thin", "dashed", "marks", "bars"]
# what the rows of one chart have in common, where they differ by their loss
FAMILY = ("framework", "source", "after_epochs", "information")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, one row of marks or one set of bars.

    Args:
        name: as the legend says it; series of one name in neighbouring charts are toggled together.
        points: (x, y); in a chart with categories x is the place of the category.
        low, high: the range at each point, or empty.
        colour: a name of `style.COLOURS`, "ink", or "shade 0" … "shade 9" along a scale.
        style: a line with marks, a thin line alone, a dashed line, hollow marks, or bars.
        published: whether the numbers are the paper's; drawn with hollow marks.
    """

    name: str
    points: Sequence[Point]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: str = "eqco"
    style: LineStyle = "line"
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

    title: str = ""
    x_label: str = ""
    y_label: str = ""
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
    shown = [i for i, (_, y) in enumerate(series.points) if math.isfinite(y)]
    low, high = ([side[i] for i in shown] if side else () for side in (series.low, series.high))
    return replace(series, points=[series.points[i] for i in shown], low=low, high=high)


def series_of_cells(
    name: str,
    cells: Sequence[Comparison],
    places: Sequence[float],
    *,
    colour: str = "eqco",
    style: LineStyle = "line",
) -> list[Series]:
    """Our means with their range, where there are any, and the paper's numbers likewise.

    The range is over seeds, or the interval that the cells have.

    >>> cell = Comparison(row="", column="", values=(1.0, 3.0), published=2.5)
    >>> ours, paper = series_of_cells("EqCo", [cell], [16])
    >>> ours.points, ours.low, ours.high, paper.name, paper.points
    ([(16, 2.0)], [1.0], [3.0], 'EqCo, paper', [(16, 2.5)])
    """
    placed = list(zip(places, cells, strict=True))
    run = [(place, cell) for place, cell in placed if cell.values]
    ends = [cell.interval or (min(cell.values), max(cell.values)) for _, cell in run]
    ranged = any(cell.interval or len(cell.values) > 1 for _, cell in run)
    in_paper = next((words(c.printed[0]) for c in cells if c.printed), name)
    ours = Series(
        name=name,
        points=[(place, cell.mean) for place, cell in run],
        low=[low for low, _ in ends] if ranged else (),
        high=[high for _, high in ends] if ranged else (),
        colour=colour,
        style=style,
    )
    paper = Series(
        name=f"{in_paper}, paper",
        points=[(place, c.published) for place, c in placed if c.published is not None],
        colour=colour,
        style="bars" if style == "bars" else "marks",
        published=True,
    )
    return [series for series in (ours, paper) if series.points]


def charts_of_cells(cells: Sequence[Comparison], quantity: Quantity) -> list[Chart]:
    """Lines against what the columns count, a chart for each family of rows; or bars.

    >>> at = [Coordinates(num_negatives=k) for k in (16, 64, 256)]
    >>> row = [Comparison(row="eqco", column=c, values=(c.num_negatives / 8,)) for c in at]
    >>> chart, = charts_of_cells(row, Quantity(ours="nats"))
    >>> chart.x_label, chart.y_label, chart.log_x, chart.series[0].points[0]
    ('K', 'nats', True, (16, 2.0))
    """
    axis, values = axis_of(distinct(cell.column for cell in cells))
    if len(values) < 2 or len(cells) < 3:
        return bars_of_cells(cells, quantity)
    ticks = sorted(values.values())
    rows = {row: family_and_name(row) for row in distinct(cell.row for cell in cells)}
    names = distinct(name for _, name in rows.values())
    colours = dict(zip(names, colours_of(names), strict=True))
    series: dict[Coordinates, list[Series]] = {}
    for row, (family, name) in rows.items():
        here = sorted((c for c in cells if c.row == row), key=lambda cell: values[cell.column])
        kinds = kind_words(here)
        label = f"{words(name)} ({kinds})" if kinds else words(name)
        series.setdefault(family, []).extend(
            series_of_cells(label, here, [values[c.column] for c in here], colour=colours[name])
        )
    charts = [
        Chart(
            title=words(family),
            x_label=axis_words(axis),
            y_label=quantity.ours,
            series=found,
            log_x=ticks[-1] >= 4 * ticks[0] > 0,
            ticks=ticks,
        )
        for family, found in series.items()
    ]
    return share_span([side for chart in charts for side in sides_of(chart, quantity)])


def family_and_name(row: Place) -> tuple[Coordinates, Place]:
    """What a row shares with others that differ by their loss, and its name among them.

    >>> [words(part) for part in family_and_name(Coordinates(framework="MoCo", loss="infonce"))]
    ['MoCo', 'InfoNCE']
    """
    if isinstance(row, Coordinates) and row.loss is not None:
        return row.only(*FAMILY), row.without(*FAMILY)
    return Coordinates(), row


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
    groups = group_by(cells, key=lambda cell: cell.row if one_row else cell.column)
    charts = []
    for group, here in groups.items():
        title = words(group) if len(groups) > 1 or isinstance(group, Coordinates) else ""
        own = [(cell.column if one_row else cell.row, cell) for cell in here]
        if quantity.same:
            charts.append(cell_bars(title, quantity.ours, own))
            continue
        run = [(name, replace(cell, published=None)) for name, cell in own if cell.values]
        printed = [
            (cell.printed[one_row] if cell.printed else name, replace(cell, values=()))
            for name, cell in own
            if cell.published is not None
        ]
        several = len(printed) > 1  # a number alone is in the table
        if run:
            charts.append(cell_bars(side_title(title, "ours" * several), quantity.ours, run))
        if several:
            charts.append(cell_bars(side_title(title, "paper"), quantity.paper, printed))
    return charts


def cell_bars(title: str, label: str, named: Sequence[tuple[Place, Comparison]]) -> Chart:
    """A row of bars for each named cell."""
    series = series_of_cells("ours", [c for _, c in named], range(len(named)), style="bars")
    categories = [words(name) for name, _ in named]
    return Chart(title=title, y_label=label, series=series, categories=categories, from_zero=True)


def bar_chart(title: str, label: str, name: str, values: Mapping[str, float]) -> Chart:
    """A bar for each value by its name."""
    points = [(float(place), value) for place, value in enumerate(values.values())]
    series = [Series(name=name, points=points, style="bars")]
    return Chart(title=title, y_label=label, series=series, categories=list(values), from_zero=True)


def side_title(title: str, whose: str) -> str:
    """A title that says whose numbers a chart has: `MoCo: paper`."""
    return ": ".join(filter(None, (title, whose)))


def sides_of(chart: Chart, quantity: Quantity) -> list[Chart]:
    """The chart, or ours and the paper's beside each other on axes of their own."""
    ours, paper = ([s for s in chart.series if s.published is whose] for whose in (False, True))
    if quantity.same or not paper:
        return [chart]
    if len({x for one in paper for x, _ in one.points}) < 2:  # a point alone is in the table
        return [replace(chart, series=ours)] if ours else []
    lines = [replace(series, style="line") for series in paper]
    charts = []
    for whose, label, series in (
        ("ours", quantity.ours, ours),
        ("paper", quantity.paper, lines),
    ):
        used = {x for each in series for x, _ in each.points}
        ticks = [tick for tick in chart.ticks if tick in used]
        title = side_title(chart.title, whose)
        side = replace(chart, title=title, y_label=label, series=series, ticks=ticks)
        charts += [side] if series else []
    return charts


def share_span(charts: Sequence[Chart]) -> list[Chart]:
    """The same charts: one y axis for each quantity, all as long, so that slopes compare."""
    shown: dict[str, list[float]] = {}
    for chart in charts:
        for series in chart.series:
            values = (*(y for _, y in series.points), *series.low, *series.high)
            shown.setdefault(chart.y_label, []).extend(values)
    half = max((max(values) - min(values) for values in shown.values()), default=0.0) / 2
    middles = {label: (min(values) + max(values)) / 2 for label, values in shown.items()}
    return [
        replace(chart, covers=(middles[chart.y_label] - half, middles[chart.y_label] + half))
        for chart in charts
    ]
