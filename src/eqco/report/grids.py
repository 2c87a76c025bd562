"""Tables of trainings on the page: accuracy against K, N, α or the length, and what they say."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from eqco.experiments.catalog import find_experiment
from eqco.experiments.experiment import Comparison, seed_by_seed
from eqco.experiments.grid import TITLES
from eqco.report.charts import Chart, Series
from eqco.report.style import SHADES
from eqco.report.table_charts import (
    Measured,
    bars_of_cells,
    charts_of_cells,
    families,
    numbered,
    own_name,
    series_of_cells,
    share_scale,
)
from eqco.runtime.records import Record

__all__ = [
    "accuracy_bars",
    "accuracy_charts",
    "accuracy_extremes",
    "charts_fig1",
    "charts_fig2",
    "charts_study_length",
    "finding_fig1",
    "finding_fig2",
    "finding_small_batch",
    "finding_study_length",
    "finding_study_momentum",
    "steps_between",
]

IMAGENET = "ImageNet top-1, %"
ESTIMATE = "an estimate where α > K"


def table_of(records: Sequence[Record]) -> list[Comparison]:
    """The first table of the experiment that the records belong to."""
    return find_experiment(records[0].experiment).compare(records)


def measured(records: Sequence[Record]) -> Measured:
    """Accuracy by the protocol of the profile; the paper's is on ImageNet."""
    accuracy = records[0].recipe["accuracy"]
    return Measured(ours=TITLES[accuracy], paper=IMAGENET, same=accuracy == "linear")


def accuracy_charts(records: Sequence[Record]) -> list[Chart]:
    """Accuracy against what the columns count, a chart for each framework or source."""
    return charts_of_cells(table_of(records), measured(records))


def accuracy_bars(records: Sequence[Record]) -> list[Chart]:
    """Accuracy as bars, where the rows are different things."""
    return bars_of_cells(table_of(records), measured(records))


def charts_fig1(records: Sequence[Record]) -> list[Chart]:
    """f̂ during training: a chart for each loss, a line for each K; the band spans the seeds."""
    groups: dict[float | None, dict[int, list[Record]]] = {}
    for record in records:
        alpha = record.recipe["training"]["objective"]["alpha"]
        count = record.curves["num_negatives"]
        groups.setdefault(alpha, {}).setdefault(count, []).append(record)
    plain = groups.get(None, {})
    for alpha, by_count in groups.items():
        if alpha is not None and alpha in plain:  # at K = α the two losses are one run
            by_count[int(alpha)] = plain[int(alpha)]
    counts = sorted({count for by_count in groups.values() for count in by_count})
    charts = [
        Chart(
            title="InfoNCE: a bound" if alpha is None else f"EqCo, α={alpha:g}: {ESTIMATE}",
            x_label="step",
            y_label="f̂, nats",
            series=[
                averaged(f"K = {count}", by_count[count], SHADES[2 * counts.index(count) + 1])
                for count in sorted(by_count)
            ],
        )
        for alpha, by_count in sorted(groups.items(), key=lambda item: item[0] or 0.0)
    ]
    return share_scale(charts)


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
    experiment = find_experiment(records[0].experiment)
    means = experiment.compare(records)
    (deviations,) = experiment.further(records).values()
    moments: dict[str, list[tuple[Comparison, Comparison]]] = {}
    for mean, deviation in zip(means, deviations, strict=True):
        moments.setdefault(mean.row.split(", ")[1], []).append((mean, deviation))
    counted, places = numbered(list(dict.fromkeys(cell.column for cell in means)))
    charts = []
    for moment, pairs in moments.items():
        series = []
        for loss, colour in (("InfoNCE", "infonce"), ("EqCo", "eqco")):
            here = [(m, d) for m, d in pairs if m.row.startswith(loss)]
            series.append(
                Series(
                    name=f"{loss}, mean ± 2σ over queries",
                    points=[(places[m.column], m.mean) for m, _ in here],
                    low=[m.mean - 2 * d.mean for m, d in here],
                    high=[m.mean + 2 * d.mean for m, d in here],
                    colour=colour,
                )
            )
        charts.append(
            Chart(
                title=moment,
                x_label=counted,
                y_label="‖dL/dq‖",
                series=series,
                log_x=True,
                ticks=list(places.values()),
            )
        )
    return share_scale(charts)


def charts_study_length(records: Sequence[Record]) -> list[Chart]:
    """Accuracy against the length of training, few negatives dashed; and what they cost."""
    cells = table_of(records)
    counted, places = numbered(list(dict.fromkeys(cell.column for cell in cells)))
    gap = gap_of(records)
    charts = []
    for title, label, table in (
        ("Accuracy", measured(records).ours, cells),
        ("What few negatives cost", "points, K = 4 less all", gap),
    ):
        series = []
        for row in dict.fromkeys(cell.row for cell in table):
            here = sorted(
                (cell for cell in table if cell.row == row), key=lambda cell: places[cell.column]
            )
            colour = "infonce" if row.startswith("InfoNCE") else "eqco"
            name = row if table is cells else row.rpartition(", ")[0]
            (ours,) = series_of_cells(name, here, [places[c.column] for c in here], colour=colour)
            series.append(replace(ours, look="dashed" if name.endswith("K=4") else "line"))
        if series:
            charts.append(
                Chart(
                    title=title,
                    x_label=counted,
                    y_label=label,
                    series=series,
                    log_x=True,
                    ticks=sorted(places.values()),
                )
            )
    return charts


def gap_of(records: Sequence[Record]) -> list[Comparison]:
    """What few negatives cost: the table that subtracts; empty where runs are missing for it."""
    tables = find_experiment("study-length").further(records)
    return next((cells for title, cells in tables.items() if " less " in title), [])


def noise(cells: Sequence[Comparison]) -> str:
    """How far seeds of one setting lie apart: what a difference must exceed."""
    spreads = [cell.spread for cell in cells if len(cell.values) > 1]
    return f"; seeds of one setting lie up to {max(spreads):.1f} apart" if spreads else ""


def steps_between(quantity: str, unit: str) -> Callable[[Sequence[Record]], str]:
    """A finding: how much a quantity changes from the largest to the smallest column."""

    def finding(records: Sequence[Record]) -> str:
        cells = table_of(records)
        counted, places = numbered(list(dict.fromkeys(cell.column for cell in cells)))
        if not counted:
            return ""
        parts = []
        for family, rows in families(list(dict.fromkeys(cell.row for cell in cells))).items():
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
                f"{signed(change)} with {own_name(row, family)}"
                for row, change in zip(ends, mean_changes(list(ends.values())), strict=False)
            ]
            if said:
                where = f"from {counted} = {many:g} to {few:g} by {', '.join(said)}"
                parts.append(f"for {family} {where}" if family else where)
        if not parts:
            return ""
        data = records[0].recipe["data"]
        return f"{quantity} on {data} changes {'; '.join(parts)} ({unit}{noise(cells)})."

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


def accuracy_extremes(records: Sequence[Record]) -> str:
    """A finding: the highest and the lowest accuracy of the table, and the paper's for both."""
    cells = table_of(records)
    if len(cells) < 2:
        return ""
    low, high = (edge(cells, key=lambda cell: cell.mean) for edge in (min, max))
    names = [f"{cell.row}, {cell.column}" for cell in (high, low)]
    said = (
        f"The highest accuracy is {high.mean:.1f} % ({names[0]}), the lowest {low.mean:.1f} % "
        f"({names[1]}){noise(cells)}."
    )
    if high.published is None or low.published is None:
        return said
    return f"{said} The paper has {high.published:g} % and {low.published:g} % on ImageNet."


def finding_fig1(records: Sequence[Record]) -> str:
    """How far f̂ at the end of training moves over K, with either loss."""
    cells = table_of(records)
    counted, places = numbered(list(dict.fromkeys(cell.column for cell in cells)))
    if not counted or not seed_by_seed(cells):
        return ""
    said = []
    for row in dict.fromkeys(cell.row for cell in cells):
        here = [cell for cell in cells if cell.row == row]
        moves = [max(values) - min(values) for values in seed_by_seed(here).values()]
        said.append(f"{fmean(moves):.2f} nats with {row}")
    few, many = min(places.values()), max(places.values())
    return (
        f"f̂ at the end of training moves by {' and '.join(said)} as {counted} goes from {few:g} "
        f"to {many:g} (largest less smallest{noise(cells)})."
    )


def finding_fig2(records: Sequence[Record]) -> str:
    """How much the gradient norm depends on K at the end of training."""
    cells = table_of(records)
    last = cells[-1].row.split(", ")[1]
    factors = []
    for loss in ("InfoNCE", "EqCo"):
        means = [cell.mean for cell in cells if cell.row == f"{loss}, {last}"]
        factors.append(f"a factor of {max(means) / min(means):.2f} with {loss}")
    return f"The mean ‖dL/dq‖ {last} varies over K by {' and '.join(factors)}."


def finding_small_batch(records: Sequence[Record]) -> str:
    """What is best and worst for the smallest batch, over the seeds that all its cells have."""
    cells = table_of(records)
    _, places = numbered(list(dict.fromkeys(cell.column for cell in cells)))
    if not places:
        return ""
    few, many = (edge(places, key=lambda name: places[name]) for edge in (min, max))
    here = [cell for cell in cells if cell.column == few]
    plain = [cell for cell in cells if cell.row == "batch: InfoNCE" and cell.column in (few, many)]
    seeds = seed_by_seed([*here, *plain]) if len(plain) == 2 else {}
    if not seeds:
        return ""
    means = list(map(fmean, zip(*seeds.values(), strict=True)))
    *ranked, worst = sorted(zip(means, (cell.row for cell in here), strict=False), reverse=True)
    counted = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return (
        f"With {few} the highest are {ranked[0][1]} at {ranked[0][0]:.1f} % and {ranked[1][1]} at "
        f"{ranked[1][0]:.1f} %, the lowest is {worst[1]} at {worst[0]:.1f} %; InfoNCE on the batch "
        f"alone reaches {means[-1]:.1f} % with {many} ({counted}{noise(cells)})."
    )


def finding_study_length(records: Sequence[Record]) -> str:
    """What few negatives cost after each length."""
    gap = gap_of(records)
    if not gap:
        return ""
    said = []
    for row in dict.fromkeys(cell.row for cell in gap):
        here = [f"{signed(cell.mean)} after {cell.column}" for cell in gap if cell.row == row]
        said.append(f"{', '.join(here)} with {row.rpartition(', ')[0]}")
    return (
        f"Few negatives instead of all change accuracy by {'; '.join(said)} (points{noise(gap)})."
    )


def finding_study_momentum(records: Sequence[Record]) -> str:
    """The best and the worst β after each length."""
    cells = table_of(records)
    said = []
    for column in dict.fromkeys(cell.column for cell in cells):
        here = [cell for cell in cells if cell.column == column]
        low, high = (edge(here, key=lambda cell: cell.mean) for edge in (min, max))
        if low is not high:
            said.append(f"{high.row} {high.mean:.1f} % and {low.row} {low.mean:.1f} after {column}")
    return f"The highest and the lowest accuracy: {'; '.join(said)}{noise(cells)}." if said else ""
