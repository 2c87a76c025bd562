"""Charts as values: what the page draws, and nothing of how.

An experiment's file in this room makes them from its records; the page draws them all the same way.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eqco.report.style import COLOURS, SHADES

__all__ = ["Chart", "Look", "Series", "chart_data"]

Point = tuple[float, float]
Look = Literal["line", "thin", "dashed", "marks", "bars"]


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
