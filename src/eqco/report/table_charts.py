"""Charts of any table of comparisons: lines where its columns count something, bars elsewhere."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eqco.experiments.experiment import Comparison
from eqco.report.charts import Chart, Series
from eqco.report.style import COLOURS

__all__ = [
    "Measured",
    "bars_of_cells",
    "charts_of_cells",
    "colours_of",
    "families",
    "in_order",
    "numbered",
    "own_name",
    "series_of_cells",
    "share_scale",
]

LOSSES = {"infonce": "infonce", "eqco": "eqco", "decoupled": "decoupled", "ml-cpc": "ml-cpc"}
NUMBERED = re.compile(r"(?P<name>\D+?)\s*=\s*(?P<number>[\d.]+)|(?P<count>[\d.]+) (?P<unit>\w+)")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the numbers of a table are.

    Args:
        ours, paper: labels of the axis.
        same: whether the paper's numbers measure what ours do. Else they get axes of their own:
            ImageNet and CIFAR-10 have no common scale.
    """

    ours: str = ""
    paper: str = ""
    same: bool = False


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


def charts_of_cells(cells: Sequence[Comparison], measured: Measured) -> list[Chart]:
    """Lines against K where the columns are K=16, K=64 …, a chart for each framework; or bars.

    >>> row = [Comparison(row="eqco", column=f"K={k}", values=(k / 8,)) for k in (16, 64, 256)]
    >>> chart, = charts_of_cells(row, Measured(ours="nats"))
    >>> chart.x_label, chart.y_label, chart.log_x, chart.series[0].points[0]
    ('K', 'nats', True, (16.0, 2.0))
    """
    columns = list(dict.fromkeys(cell.column for cell in cells))
    rows = list(dict.fromkeys(cell.row for cell in cells))
    counted, places = numbered(columns)
    if not counted or len(cells) < 3:
        return bars_of_cells(cells, measured)
    groups = families(rows)
    names = {row: own_name(row, family) for family, members in groups.items() for row in members}
    distinct = list(dict.fromkeys(names.values()))
    colours = dict(zip(distinct, colours_of(distinct), strict=True))
    charts = []
    for family, members in groups.items():
        series = []
        for row in members:
            here = sorted(
                (cell for cell in cells if cell.row == row), key=lambda cell: places[cell.column]
            )
            at, colour = [places[cell.column] for cell in here], colours[names[row]]
            series += series_of_cells(names[row], here, at, colour=colour)
        chart = Chart(
            title=family,
            x_label=counted,
            y_label="",
            series=series,
            log_x=max(places.values()) >= 4 * min(places.values()) > 0,
            ticks=sorted(places.values()),
        )
        charts += sides_of(chart, measured)
    return share_span(charts)


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


def in_order(columns: Sequence[str]) -> list[str]:
    """Each column once, by its number where they count one thing.

    >>> in_order(["K=16", "K=4", "K=16"]), in_order(["Sync BN", "BN"])
    (['K=4', 'K=16'], ['Sync BN', 'BN'])
    """
    distinct = list(dict.fromkeys(columns))
    places = numbered(distinct)[1]
    return sorted(distinct, key=lambda name: places.get(name, 0.0))


def bars_of_cells(cells: Sequence[Comparison], measured: Measured) -> list[Chart]:
    """Bars: of the columns where there is one row, else of the rows, a chart for each column."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    if len(rows) == 1:
        groups = {rows[0]: [(cell.column, cell) for cell in cells]}
    else:
        groups = {}
        for cell in cells:
            groups.setdefault(cell.column, []).append((cell.row, cell))
    charts = [
        Chart(
            title=title,
            x_label="",
            y_label="",
            series=series_of_cells("ours", [c for _, c in named], range(len(named)), look="bars"),
            categories=[name for name, _ in named],
            from_zero=True,
        )
        for title, named in groups.items()
    ]
    return [side for chart in charts for side in sides_of(chart, measured)]


def sides_of(chart: Chart, measured: Measured) -> list[Chart]:
    """The chart, or ours and the paper's beside each other on axes of their own."""
    chart = replace(chart, y_label=measured.ours)
    ours, paper = ([s for s in chart.series if s.published is side] for side in (False, True))
    if measured.same or not paper:
        return [chart]
    if len({x for one in paper for x, _ in one.points}) < 2:  # a point alone is in the table
        return [replace(chart, series=ours)]
    alone = [replace(s, look="bars" if s.look == "bars" else "line") for s in paper]
    words = [": ".join(filter(None, (chart.title, side))) for side in ("ours", "paper")]
    return [
        replace(chart, title=words[0], series=ours),
        replace(chart, title=words[1], series=alone, y_label=measured.paper),
    ]


def share_scale(charts: Sequence[Chart]) -> list[Chart]:
    """The same charts with one y axis for all."""
    low, high = reach(charts)
    return [replace(chart, covers=(low, high)) for chart in charts]


def share_span(charts: Sequence[Chart]) -> list[Chart]:
    """The same charts: one y axis for each quantity, all as long, so that slopes compare."""
    groups = {chart.y_label: [c for c in charts if c.y_label == chart.y_label] for chart in charts}
    ends = {label: reach(group) for label, group in groups.items()}
    half = max(high - low for low, high in ends.values()) / 2
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


def own_name(row: str, family: str) -> str:
    """What a row is called beside the others of its family.

    >>> own_name("MoCo, EqCo, α=256", "MoCo")
    'EqCo, α=256'
    """
    return row.removeprefix(family).lstrip(" ,:")


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
