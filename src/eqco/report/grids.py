"""Tables of trainings on the page: their charts, and what they say in a sentence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from eqco.experiments.coordinates import Coordinates, axis_of, distinct
from eqco.experiments.examples import compare as compare_example
from eqco.experiments.experiment import Comparison, Experiment, seed_by_seed
from eqco.experiments.fig1 import CELLS as FIG1_CELLS
from eqco.experiments.fig1 import FIG1
from eqco.experiments.fig2 import FIG2
from eqco.experiments.grid import TITLES, by_run
from eqco.experiments.study_length import FEW, STUDY_LENGTH
from eqco.experiments.study_momentum import STUDY_MOMENTUM
from eqco.experiments.study_small_batch import STUDY_SMALL_BATCH
from eqco.report.charts import (
    Chart,
    Quantity,
    Series,
    bars_of_cells,
    charts_of_cells,
    colours_of,
    families,
    own_name,
    series_of_cells,
    share_scale,
)
from eqco.report.style import SHADES
from eqco.report.words import LOSSES, axis_words, words
from eqco.runtime.records import Record, recipe_hash

__all__ = [
    "accuracy_bars",
    "accuracy_charts",
    "accuracy_extremes",
    "accuracy_steps",
    "charts_example",
    "charts_fig1",
    "charts_fig2",
    "charts_study_length",
    "finding_example",
    "finding_fig1",
    "finding_fig2",
    "finding_small_batch",
    "finding_study_length",
    "finding_study_momentum",
]

Charts = Callable[[Sequence[Record]], list[Chart]]
Finding = Callable[[Sequence[Record]], str]


def quantity_of(records: Sequence[Record]) -> Quantity:
    """Accuracy by the protocol of the profile; the paper's is on ImageNet."""
    accuracy = records[0].recipe["accuracy"]
    return Quantity(ours=TITLES[accuracy], paper="ImageNet top-1, %", same=accuracy == "linear")


def accuracy_charts(experiment: Experiment[Any]) -> Charts:
    """Accuracy against what the columns count, a chart for each framework or source."""
    return lambda records: charts_of_cells(experiment.compare(records), quantity_of(records))


def accuracy_bars(experiment: Experiment[Any]) -> Charts:
    """Accuracy as bars, where the rows are different things."""
    return lambda records: bars_of_cells(experiment.compare(records), quantity_of(records))


def run_cells(experiment: Experiment[Any], records: Sequence[Record]) -> list[Comparison]:
    """The cells of the first table that were run."""
    return [cell for cell in experiment.compare(records) if cell.values]


def in_rows(cells: Sequence[Comparison]) -> dict[Any, list[Comparison]]:
    """Cells by their rows."""
    return {row: [c for c in cells if c.row == row] for row in distinct(c.row for c in cells)}


def charts_fig1(records: Sequence[Record]) -> list[Chart]:
    """f̂ during training: a chart for each loss, a line for each K; the band spans the seeds."""
    found = by_run(records)
    lines: dict[float | None, list[Series]] = {}
    cells = [cell for cell in FIG1_CELLS[records[0].profile] if cell.task is not None]
    counts = sorted({cell.at.num_negatives or 0 for cell in cells})
    for cell in cells:
        runs = found.get(recipe_hash(cell.task.to_dict())) if cell.task else None
        if runs:
            count = cell.at.num_negatives or 0
            shade = SHADES[2 * counts.index(count) + 1]
            line = averaged(words(cell.at.only("num_negatives")), list(runs.values()), shade)
            lines.setdefault(cell.at.alpha, []).append(line)
    return share_scale(
        [
            Chart(
                title="InfoNCE: a bound"
                if alpha is None
                else f"EqCo, α={alpha:g}: an estimate where α > K",
                x_label="step",
                y_label="f̂, nats",
                series=series,
            )
            for alpha, series in lines.items()
        ]
    )


def averaged(name: str, records: Sequence[Record], colour: str) -> Series:
    """The mean over seeds of f̂ at each step, with the range."""
    by_step: dict[float, list[float]] = {}
    for record in records:
        for step, value in record.curves["information"]:
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


def charts_fig2(records: Sequence[Record]) -> list[Chart]:
    """Mean gradient norm against K with ±2σ over queries, a chart for each moment."""
    means = FIG2.compare(records)
    (deviations,) = FIG2.further(records).values()
    axis, places = axis_of(distinct(cell.column for cell in means))
    moments: dict[Coordinates, dict[str, list[tuple[float, float, float]]]] = {}
    for mean, deviation in zip(means, deviations, strict=True):
        assert isinstance(mean.row, Coordinates)
        by_loss = moments.setdefault(mean.row.only("after_epochs"), {})
        point = (places[mean.column], mean.mean, 2 * deviation.mean)
        by_loss.setdefault(mean.row.loss or "", []).append(point)
    return share_scale(
        [
            Chart(
                title=words(moment),
                x_label=axis_words(axis),
                y_label="‖dL/dq‖",
                series=[
                    Series(
                        name=f"{LOSSES[loss]}, mean ± 2σ over queries",
                        points=[(count, mean) for count, mean, _ in points],
                        low=[mean - reach for _, mean, reach in points],
                        high=[mean + reach for _, mean, reach in points],
                        colour=loss,
                    )
                    for loss, points in by_loss.items()
                ],
                log_x=True,
                ticks=list(places.values()),
            )
            for moment, by_loss in moments.items()
        ]
    )


def charts_study_length(records: Sequence[Record]) -> list[Chart]:
    """Accuracy against the length of training, few negatives dashed; and what they cost."""
    cells = run_cells(STUDY_LENGTH, records)
    axis, places = axis_of(distinct(cell.column for cell in cells))
    charts = []
    for title, label, table in (
        ("Accuracy", quantity_of(records).ours, cells),
        ("What few negatives cost", f"points, K = {FEW} less all", gap_of(records)),
    ):
        series = []
        for row, here in in_rows(table).items():
            here = sorted(here, key=lambda cell: places[cell.column])
            few = table is cells and row.num_negatives == FEW
            (ours,) = series_of_cells(
                words(row if table is cells else row.without("num_negatives")),
                here,
                [places[cell.column] for cell in here],
                colour=row.loss,
            )
            series.append(replace(ours, look="dashed" if few else "line"))
        if series:
            charts.append(
                Chart(
                    title=title,
                    x_label=axis_words(axis),
                    y_label=label,
                    series=series,
                    log_x=True,
                    ticks=sorted(places.values()),
                )
            )
    return charts


def gap_of(records: Sequence[Record]) -> Sequence[Comparison]:
    """What few negatives cost; empty where runs are missing for it."""
    return next(iter(STUDY_LENGTH.conclude(records).values()), [])


def charts_example(records: Sequence[Record]) -> list[Chart]:
    """Accuracies with their intervals over test images, and the curves of every seed."""
    cells = compare_example(records)
    kind = records[0].curves["information_kind"]
    names = [f"seed {record.seed}" for record in records]
    titles = {"information": f"f̂, nats ({kind})", "gradient_norm_mean": "mean ‖dL/dq‖"}
    return [
        *bars_of_cells(cells, Quantity()),
        *(
            Chart(
                title=title,
                x_label="step",
                y_label="",
                series=[
                    Series(name=name, points=record.curves[curve], colour=colour)
                    for name, record, colour in zip(names, records, colours_of(names), strict=True)
                ],
            )
            for curve, title in titles.items()
        ),
    ]


def finding_example(records: Sequence[Record]) -> str:
    """What training reached, beside what it had to beat."""
    pixels, random, trained = (cell.mean for cell in compare_example(records))
    return (
        f"SiMo with {records[0].curves['num_negatives']} negatives reaches {trained:.1f} % by "
        f"nearest neighbours on {records[0].recipe['data']}; raw pixels reach {pixels:.1f} %, "
        f"random weights {random:.1f} %."
    )


def noise(cells: Sequence[Comparison]) -> str:
    """How far seeds of one setting lie apart: what a difference must exceed."""
    spreads = [cell.spread for cell in cells if len(cell.values) > 1]
    return f"; seeds of one setting lie up to {max(spreads):.1f} apart" if spreads else ""


def accuracy_steps(experiment: Experiment[Any], quantity: str) -> Finding:
    """A finding: how much accuracy changes from the largest to the smallest column."""

    def finding(records: Sequence[Record]) -> str:
        cells = run_cells(experiment, records)
        axis, places = axis_of(distinct(cell.column for cell in cells))
        parts = []
        for family, rows in families(list(in_rows(cells))).items() if axis else ():
            table = {
                row: {places[cell.column]: cell for cell in cells if cell.row == row}
                for row in rows
            }
            counts = [count for found in table.values() for count in found]
            few, many = min(counts), max(counts)
            ends = {
                row: (found[few], found[many])
                for row, found in table.items()
                if few in found and many in found and few < many
            }
            said = [
                f"{signed(change)} with {words(own_name(row))}"
                for row, change in zip(ends, mean_changes(list(ends.values())), strict=False)
            ]
            if said:
                where = f"from {axis_words(axis)} = {many:g} to {few:g} by {', '.join(said)}"
                parts.append(f"for {words(family)} {where}" if words(family) else where)
        if not parts:
            return ""
        data = records[0].recipe["data"]
        return f"{quantity} on {data} changes {'; '.join(parts)} (points{noise(cells)})."

    return finding


def mean_changes(ends: Sequence[tuple[Comparison, Comparison]]) -> list[float]:
    """From the second of each pair to the first, over the seeds that all have; else nothing."""
    seeds = seed_by_seed([cell for pair in ends for cell in pair]) if ends else {}
    return [
        fmean(values[place] - values[place + 1] for values in seeds.values())
        for place in range(0, 2 * len(ends) * bool(seeds), 2)
    ]


def signed(value: float) -> str:
    """A change with its sign; none for what rounds to nothing.

    >>> signed(-1.26), signed(0.04), signed(2.0)
    ('−1.3', '0.0', '+2.0')
    """
    rounded = round(value, 1)
    return f"{rounded:+.1f}".replace("-", "−") if rounded else "0.0"


def extremes(cells: Sequence[Comparison]) -> tuple[Comparison, Comparison]:
    """The cells with the highest and with the lowest mean."""
    highest, lowest = (edge(cells, key=lambda cell: cell.mean) for edge in (max, min))
    return highest, lowest


def accuracy_extremes(experiment: Experiment[Any]) -> Finding:
    """A finding: the highest and the lowest accuracy of the table, and the paper's for both."""

    def finding(records: Sequence[Record]) -> str:
        cells = run_cells(experiment, records)
        if len(cells) < 2:
            return ""
        high, low = extremes(cells)
        names = [", ".join(map(words, (cell.row, cell.column))) for cell in (high, low)]
        said = (
            f"The highest accuracy is {high.mean:.1f} % ({names[0]}), the lowest {low.mean:.1f} % "
            f"({names[1]}){noise(cells)}."
        )
        if high.published is None or low.published is None:
            return said
        return f"{said} The paper has {high.published:g} % and {low.published:g} % on ImageNet."

    return finding


def finding_fig1(records: Sequence[Record]) -> str:
    """How far f̂ at the end of training moves over K, with either loss."""
    cells = run_cells(FIG1, records)
    axis, places = axis_of(distinct(cell.column for cell in cells))
    if len(places) < 2 or not seed_by_seed(cells):
        return ""
    said = []
    for row, here in in_rows(cells).items():
        moves = [max(values) - min(values) for values in seed_by_seed(here).values()]
        said.append(f"{fmean(moves):.2f} nats with {words(row)}")
    few, many = min(places.values()), max(places.values())
    return (
        f"f̂ at the end of training moves by {' and '.join(said)} as {axis_words(axis)} goes from "
        f"{few:g} to {many:g} (largest less smallest{noise(cells)})."
    )


def finding_fig2(records: Sequence[Record]) -> str:
    """How much the gradient norm depends on K at the end of training."""
    rows = in_rows(run_cells(FIG2, records))
    last = max(row.after_epochs for row in rows)
    factors = []
    for row, here in rows.items():
        if row.after_epochs == last:
            factor = max(cell.mean for cell in here) / min(cell.mean for cell in here)
            factors.append(f"a factor of {factor:.2f} with {LOSSES[row.loss]}")
    moment = words(Coordinates(after_epochs=last))
    return f"The mean ‖dL/dq‖ {moment} varies over K by {' and '.join(factors)}."


def finding_small_batch(records: Sequence[Record]) -> str:
    """What is best and worst for the smallest batch, over the seeds that all its cells have."""
    cells = run_cells(STUDY_SMALL_BATCH, records)
    axis, places = axis_of(distinct(cell.column for cell in cells))
    if not axis:
        return ""
    few, many = (edge(places, key=lambda column: places[column]) for edge in (min, max))
    here = [cell for cell in cells if cell.column == few]
    base = Coordinates(source="batch", loss="infonce")
    plain = [cell for cell in cells if cell.row == base and cell.column in (few, many)]
    seeds = seed_by_seed([*here, *plain]) if len(plain) == 2 else {}
    if not seeds:
        return ""
    means = list(map(fmean, zip(*seeds.values(), strict=True)))
    names = [words(cell.row) for cell in here]
    *ranked, worst = sorted(zip(means, names, strict=False), reverse=True)
    counted = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return (
        f"With {words(few)} the highest are {ranked[0][1]} at {ranked[0][0]:.1f} % and "
        f"{ranked[1][1]} at {ranked[1][0]:.1f} %, the lowest is {worst[1]} at {worst[0]:.1f} %; "
        f"InfoNCE on the batch alone reaches {means[-1]:.1f} % with {words(many)} "
        f"({counted}{noise(cells)})."
    )


def finding_study_length(records: Sequence[Record]) -> str:
    """What few negatives cost after each length."""
    gap = gap_of(records)
    said = []
    for row, here in in_rows(gap).items():
        changes = [f"{signed(cell.mean)} after {words(cell.column)}" for cell in here]
        said.append(f"{', '.join(changes)} with {words(row.without('num_negatives'))}")
    if not said:
        return ""
    return (
        f"Few negatives instead of all change accuracy by {'; '.join(said)} (points{noise(gap)})."
    )


def finding_study_momentum(records: Sequence[Record]) -> str:
    """The best and the worst β after each length."""
    cells = run_cells(STUDY_MOMENTUM, records)
    said = []
    for column in distinct(cell.column for cell in cells):
        high, low = extremes([cell for cell in cells if cell.column == column])
        if low is not high:
            said.append(
                f"{words(high.row)} {high.mean:.1f} % and {words(low.row)} {low.mean:.1f} after "
                f"{words(column)}"
            )
    return f"The highest and the lowest accuracy: {'; '.join(said)}{noise(cells)}." if said else ""
