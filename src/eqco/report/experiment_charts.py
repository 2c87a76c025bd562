"""Charts of the experiments: of their tables where that is enough, else of their curves."""

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import fmean
from typing import Any

from eqco.experiments.coordinates import Coordinates, distinct, group_by
from eqco.experiments.examples import trainings
from eqco.experiments.experiment import Comparison, Experiment
from eqco.experiments.fig1 import CELLS as FIG1_CELLS
from eqco.experiments.grid import TITLES, by_run
from eqco.experiments.study_bound import CRITICS, by_truth
from eqco.experiments.study_saturation import GAIN, SATURATION
from eqco.report.charts import (
    Chart,
    Quantity,
    Series,
    bars_of_cells,
    charts_of_cells,
    colours_of,
    series_of_cells,
    share_span,
)
from eqco.report.style import SHADES
from eqco.report.words import words
from eqco.runtime.records import Record, recipe_hash
from eqco.theory import largest_overshoot

__all__ = [
    "accuracy_bars",
    "accuracy_charts",
    "detection_charts",
    "estimate_charts",
    "example_charts",
    "excess_charts",
    "few_negatives_charts",
    "gradient_charts",
    "information_charts",
    "length_charts",
    "saturation_charts",
    "search_bars",
]


COLOURED = ("infonce", "eqco")  # two trainings of an example


def quantity_of(records: Sequence[Record]) -> Quantity:
    """Accuracy by the protocol of the profile; the paper's is on ImageNet."""
    accuracy = records[0].recipe["accuracy"]
    return Quantity(ours=TITLES[accuracy], paper="ImageNet top-1, %", same=accuracy == "linear")


def accuracy_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Accuracy against what the columns count."""
    return charts_of_cells(experiment.compare(records), quantity_of(records))


def accuracy_bars(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Accuracy as bars, where the rows are different things."""
    return bars_of_cells(experiment.compare(records), quantity_of(records))


def saturation_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """What α gained against p₊ of the plain twin: a chart for each data set, a colour for an α.

    Of pairs of trainings with seeds enough for an interval; where none has, of all without bars.
    """
    rows = group_by(experiment.compare(records), attrgetter("row"))
    certain = {row: pair for row, pair in rows.items() if pair[1].interval is not None}
    shown = certain or rows
    alphas = sorted({row.alpha for row in shown})
    colours = dict(zip(alphas, colours_of([f"{alpha}" for alpha in alphas]), strict=True))
    return [
        Chart(
            title=words(data),
            x_label=SATURATION,
            y_label=GAIN,
            series=[
                saturation_series([shown[row] for row in here if row.alpha == alpha], alpha, colour)
                for alpha, colour in colours.items()
                if any(row.alpha == alpha for row in here)
            ],
            covers=(0.0, *(end for row in here for end in shown[row][1].interval or ())),
        )
        for data, here in group_by(shown, key=lambda row: row.only("data")).items()
    ]


def saturation_series(pairs: Sequence[Sequence[Comparison]], alpha: float, colour: str) -> Series:
    """Marks of p₊ of the plain twin and the gain, whose interval is the bar."""
    intervals = [gain.interval for _, gain, _ in pairs if gain.interval is not None]
    return Series(
        name=words(Coordinates(alpha=alpha)),
        points=[(saturation.mean, gain.mean) for saturation, gain, _ in pairs],
        low=[low for low, _ in intervals],
        high=[high for _, high in intervals],
        colour=colour,
        style="marks",
    )


def search_bars(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """The study of search: mean reciprocal rank, a chart for each N."""
    return bars_of_cells(experiment.compare(records), Quantity(ours="MRR, %"))


def few_negatives_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """The study of gradients against K: the direction of the mean, and the noise of the draws.

    Limits of α lie on the lines of their finite α, and are in the tables alone.
    """
    noise = next(iter(experiment.further(records).values()))
    charts = []
    for label, cells in (
        ("cosine to all negatives", experiment.compare(records)),
        ("noise over length", noise),
    ):
        shown = [
            cell
            for cell in cells
            if isinstance(cell.column, Coordinates)
            and isinstance(cell.row, Coordinates)
            and cell.row.alpha != math.inf
        ]
        charts += charts_of_cells(shown, Quantity(ours=label))
    return charts


def information_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Figure 1: f̂ during training, a chart for each loss, a line for each K; bands span seeds."""
    found = by_run(records)
    cells = FIG1_CELLS[records[0].profile]
    counts = sorted({cell.at.num_negatives for cell in cells if cell.at.num_negatives})
    lines: dict[float | None, list[Series]] = {}
    for cell in cells:
        runs = found.get(recipe_hash(cell.task.to_dict())) if cell.task else None
        if runs and cell.at.num_negatives:
            shade = SHADES[2 * counts.index(cell.at.num_negatives) + 1]
            name = words(cell.at.only("num_negatives"))
            line = mean_curve(name, list(runs.values()), shade)
            lines.setdefault(cell.at.alpha, []).append(line)
    titles = {
        alpha: f"EqCo, α={alpha:g}: an estimate where α > K" if alpha else "InfoNCE: a bound"
        for alpha in lines
    }
    return share_span(
        [
            Chart(title=titles[alpha], x_label="step", y_label="f̂, nats", series=series)
            for alpha, series in lines.items()
        ]
    )


def mean_curve(
    name: str, records: Sequence[Record], colour: str, curve: str = "information"
) -> Series:
    """The mean over seeds of a curve at each step that all have, with the range."""
    by_step: dict[float, list[float]] = {}
    for record in records:
        for step, value in record.curves[curve]:
            by_step.setdefault(step, []).append(value)
    common = {step: found for step, found in by_step.items() if len(found) == len(records)}
    several = len(records) > 1
    return Series(
        name=name,
        points=[(step, fmean(found)) for step, found in common.items()],
        low=[min(found) for found in common.values()] if several else (),
        high=[max(found) for found in common.values()] if several else (),
        colour=colour,
    )


def gradient_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Figure 2: mean gradient norm against K with ±2σ over queries, a chart for each moment."""
    (deviations,) = experiment.further(records).values()
    cells = [
        replace(cell, interval=(cell.mean - 2 * other.mean, cell.mean + 2 * other.mean))
        for cell, other in zip(experiment.compare(records), deviations, strict=True)
    ]
    return charts_of_cells(cells, Quantity(ours="‖dL/dq‖, mean ± 2σ over queries"))


def estimate_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Table 5: the estimate against K, a chart for each true value, the truth as a line."""
    charts = charts_of_cells(experiment.compare(records), Quantity(ours="f̂, nats", same=True))
    if charts[0].categories:
        return charts
    found = []
    for truth, chart in zip(records[0].recipe["information"], charts, strict=True):
        line = [(tick, truth) for tick in chart.ticks]
        series = [Series(name="truth", points=line, colour="ink", style="thin"), *chart.series]
        found.append(replace(chart, x_label="K, pairs per batch", series=series, covers=()))
    return found


def length_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Accuracy against the length of training, few negatives dashed; and what they cost."""
    cells = [cell for cell in experiment.compare(records) if cell.values]
    rows = distinct(cell.row for cell in cells)
    most = max(row.num_negatives for row in rows)
    charts = []
    for chart in charts_of_cells(cells, quantity_of(records)):
        lines = [] if chart.categories else zip(chart.series, rows, strict=True)
        series = [
            replace(line, colour=row.loss, style="line" if row.num_negatives == most else "dashed")
            for line, row in lines
        ]
        charts.append(replace(chart, title="Accuracy", series=series or chart.series))
    for gap in experiment.conclude(records).values():
        own = [
            replace(cell, row=cell.row.without("num_negatives"))
            for cell in gap
            if isinstance(cell.row, Coordinates)
        ]
        for chart in charts_of_cells(own, Quantity(ours="points, few less all")):
            charts.append(replace(chart, title="What few negatives cost"))
    return charts


def detection_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Table 9: a row of bars for each metric; the classes apart."""
    cells = experiment.compare(records)
    columns = distinct(cell.column for cell in cells)
    rows = distinct(cell.row for cell in cells)
    charts = []
    for title, names in (
        ("All classes", [column for column in columns if column.category is None]),
        ("AP50 of each class", [column for column in columns if column.category is not None]),
    ):
        series = []
        for row, colour in zip(rows, colours_of(rows), strict=True):
            here = [cell for cell in cells if cell.row == row and cell.column in names]
            places = [names.index(cell.column) for cell in here]
            series += series_of_cells(words(row), here, places, colour=colour, style="bars")
        categories = [column.category or column.metric for column in names]
        chart = Chart(title=title, series=series, categories=categories, from_zero=True)
        charts += [replace(chart, y_label="average precision, %")] if names else []
    return charts


def example_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """Accuracies with their intervals over test images, and a curve for each training or seed."""
    charts = bars_of_cells(experiment.compare(records), Quantity())
    by_name = trainings(records)
    kind = records[0].curves["information_kind"]
    titles = {"gradient_norm_mean": "mean ‖dL/dq‖", "information": f"f̂, nats ({kind})"}
    if len(by_name) > 1:
        lines = {name: (own, COLOURED[place]) for place, (name, own) in enumerate(by_name.items())}
        titles = {"probe": "kNN on validation photos, %", "gradient_norm_mean": "mean ‖dL/dq‖"}
        charts = [  # colours are those of the losses in the curves beside
            replace(chart, series=[replace(bars, colour="other") for bars in chart.series])
            for chart in charts
        ]
    else:
        names = [f"seed {record.seed}" for record in records]
        each = zip(names, records, colours_of(names), strict=True)
        lines = {name: ([record], colour) for name, record, colour in each}
    for curve, title in titles.items():
        series = [
            mean_curve(name, own, colour, curve)
            for name, (own, colour) in lines.items()
            if all(curve in record.curves for record in own)
        ]
        if series:
            charts.append(Chart(title=title, x_label="step", series=series))
    return charts


def excess_charts(experiment: Experiment[Any], records: Sequence[Record]) -> list[Chart]:
    """The study of the bound: a chart for each critic and true value; of the first seeds."""
    return [
        excess_chart(several[0], curve, f"truth {truth:g} nats, {critic}")
        for curve, critic in CRITICS.items()
        for truth, several in by_truth(records).items()
    ]


def excess_chart(record: Record, curve: str, title: str) -> Chart:
    """f̂ − truth against α, a line for each K; dashed, what no critic can exceed."""
    alphas, ks = record.recipe["alphas"], record.recipe["negatives"]
    shades = [SHADES[place * len(SHADES) // len(ks)] for place in range(len(ks))]
    zero = [(float(alpha), 0.0) for alpha in (alphas[0], alphas[-1])]
    series = [Series(name="truth", points=zero, colour="ink", style="thin")]
    for k, colour in zip(ks, shades, strict=True):
        shown = zip(alphas, record.curves[curve][str(k)], strict=True)
        points = [(float(alpha), excess) for alpha, excess in shown if excess is not None]
        series.append(Series(name=f"K = {k}", points=points, colour=colour))
    for k, colour in ((ks[0], shades[0]), (ks[-1], shades[-1])):
        points = [(float(a), largest_overshoot(a, k)) for a in alphas if a >= k]
        name = f"no critic of K = {k} exceeds"
        series.append(Series(name=name, points=points, colour=colour, style="dashed"))
    if curve == "excess":
        points = [(float(a), e) for a, e in zip(alphas, record.curves["limit"], strict=True)]
        series.append(Series(name="K → ∞", points=points, colour="ink", style="dashed"))
    ticks = [alpha for alpha in alphas if alpha.bit_length() % 3 == 2]
    chart = Chart(title=title, x_label="α", y_label="f̂ − truth, nats", series=series)
    return replace(chart, log_x=True, ticks=ticks)
