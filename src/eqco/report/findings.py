"""What records say, each in one sentence and no more; nothing where runs are missing for it."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import fmean
from typing import Any

from eqco.contrast.advice import SATURATED
from eqco.experiments.coordinates import Coordinates, axis_of, distinct, group_by, in_order
from eqco.experiments.experiment import Comparison, Experiment, seed_by_seed
from eqco.experiments.study_bound import by_truth
from eqco.experiments.tab9 import RANDOM
from eqco.report.charts import family_and_name
from eqco.report.words import LOSSES, axis_words, plural, signed_number, words
from eqco.runtime.records import Record
from eqco.theory import largest_overshoot

__all__ = [
    "bias_and_noise",
    "clear_differences",
    "detection_gain",
    "estimate_swing",
    "example_accuracy",
    "extremes",
    "extremes_by_column",
    "gains_at_rates",
    "gains_of_few",
    "gradient_factor",
    "information_swing",
    "largest_excess",
    "length_change",
    "precision_change",
    "saturation_counts",
    "saturation_gain",
    "search_extremes",
    "smallest_batch",
]

BY_CHANCE = 0.05  # of the intervals of what is zero leave it out


def run_cells(experiment: Experiment[Any], records: Sequence[Record]) -> list[Comparison]:
    """The cells of the first table that were run."""
    return [cell for cell in experiment.compare(records) if cell.values]


def noise(cells: Sequence[Comparison], digits: int = 1) -> str:
    """How far seeds of one setting lie apart: what a difference must exceed."""
    spreads = [cell.spread for cell in cells if len(cell.values) > 1]
    return f"; seeds of one setting lie up to {max(spreads):.{digits}f} apart" if spreads else ""


def highest_and_lowest(cells: Sequence[Comparison]) -> tuple[Comparison, Comparison]:
    """The cells with the highest and with the lowest mean."""
    return max(cells, key=lambda cell: cell.mean), min(cells, key=lambda cell: cell.mean)


def extremes(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """The highest and the lowest accuracy of the table, how they differ seed by seed, and the
    paper's for both.
    """
    cells = run_cells(experiment, records)
    if len(cells) < 2:
        return ""
    high, low = highest_and_lowest(cells)
    sentence = (
        f"Of {len(cells)} accuracies the highest is {high.mean:.1f} % ({place_words(high)}), the "
        f"lowest {low.mean:.1f} % ({place_words(low)}){apart(high, low)}{noise(cells)}."
    )
    if high.published is None or low.published is None:
        return sentence
    return f"{sentence} The paper has {high.published:g} % and {low.published:g} % on ImageNet."


def apart(high: Comparison, low: Comparison) -> str:
    """How two cells differ, seed by seed over those that both have.

    No interval: extremes are chosen after the fact, and chance is a part of what separates them.

    >>> cells = [Comparison(row="", column="", values=v, seeds=(0, 1)) for v in ((5, 7), (4, 4))]
    >>> apart(*cells)
    '; seed by seed they are 2.0 apart (+1.0, +3.0)'
    """
    differences = [ours - theirs for ours, theirs in seed_by_seed([high, low]).values()]
    if len(differences) < 2:
        return ""
    shown = ", ".join(map(signed_number, differences))
    return f"; seed by seed they are {fmean(differences):.1f} apart ({shown})"


def clear_differences(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """The differences whose interval leaves zero out, of all that have one; how many chance alone
    would give, and how many have too few seeds for an interval.
    """
    tables = experiment.conclude(records).values()
    differences = [cell for table in tables for cell in table if cell.values]
    cells = [(cell, cell.interval) for cell in differences if cell.interval]
    if not cells:
        return ""
    clear = [cell for cell, (low, high) in cells if low > 0 or high < 0]
    named = "; ".join(f"{place_words(cell)}: {signed_number(cell.mean)}" for cell in clear)
    few = len(differences) - len(cells)
    others = f"; {plural(few, 'other')} {'has' if few == 1 else 'have'} fewer seeds" if few else ""
    return (
        f"Of {plural(len(cells), 'difference')} over three seeds or more {len(clear)} "
        f"{'leaves' if len(clear) == 1 else 'leave'} zero out of the 95 % interval"
        f"{f' ({named})' if named else ''}, where chance alone would give about "
        f"{BY_CHANCE * len(cells):.1f}{others}."
    )


def place_words(cell: Comparison) -> str:
    """Where a cell stands; a column of the metric alone says nothing."""
    return ", ".join(words(each) for each in (cell.row, cell.column) if not isinstance(each, str))


def gains_at_rates(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """What each loss and rate gained over InfoNCE at the usual rate."""
    tables = experiment.conclude(records)
    if not tables:
        return ""
    title, cells = list(tables.items())[-1]
    parts = [f"{place_words(cell)}: {difference_words(cell)}" for cell in cells if cell.values]
    told = title.split(", seed by seed")[0]
    return f"{told}, with 95 % intervals or each seed. {'; '.join(parts)}."


def extremes_by_column(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """The highest and the lowest accuracy of each column."""
    cells = run_cells(experiment, records)
    parts = []
    for column, here in group_by(cells, attrgetter("column")).items():
        high, low = highest_and_lowest(here)
        if low is not high:
            parts.append(
                f"{words(high.row)} {high.mean:.1f} % and {words(low.row)} {low.mean:.1f} after "
                f"{words(column)}"
            )
    sentence = f"The highest and the lowest accuracy: {'; '.join(parts)}{noise(cells)}."
    return sentence if parts else ""


def gains_of_few(
    experiment: Experiment[Any], records: Sequence[Record], subject: str = "Accuracy"
) -> str:
    """Family by family, what the fewest negatives cost InfoNCE, and what EqCo gained over it with
    the two smallest counts.
    """
    cells = run_cells(experiment, records)
    gained = next(iter(experiment.conclude(records).values()), [])
    pairs = [(cell, cell.row) for cell in gained if isinstance(cell.row, Coordinates)]
    parts = []
    for family, here in group_by(pairs, key=lambda pair: family_and_name(pair[1])[0]).items():
        plain = [cell for cell in cells if cell.row == replace(family, loss="infonce")]
        columns = in_order(cell.column for cell, _ in here)[:2]
        gains = [
            f"at {words(column)}: "
            + ", ".join(
                f"{difference_words(cell)} with {words(Coordinates(alpha=row.alpha))}"
                for cell, row in here
                if cell.column == column
            )
            for column in columns
        ]
        whose = f"{words(family)}, " if words(family) else ""
        parts.append(f"{whose}{cost_of_few(plain)}; EqCo gains {'; '.join(gains)}")
    data = records[0].recipe["data"]
    told = f"{subject} on {data}, in points, with 95 % intervals or each seed."
    return f"{told} {'. '.join(parts)}." if parts else ""


def cost_of_few(plain: Sequence[Comparison]) -> str:
    """How InfoNCE changes from the most to the fewest negatives."""
    _, counts = axis_of([cell.column for cell in plain])
    most, fewest = (edge(plain, key=lambda cell: counts[cell.column]) for edge in (max, min))
    changes = {s: few - many for s, (few, many) in seed_by_seed([fewest, most]).items()}
    change = Comparison.of_difference(fewest.row, fewest.column, changes)
    return (
        f"InfoNCE from {words(most.column)} to {counts[fewest.column]:g}: "
        f"{difference_words(change)}"
    )


def difference_words(cell: Comparison) -> str:
    """A mean difference with its interval, or with its seeds where they are too few for one.

    >>> difference_words(Comparison(row="", column="", values=(1.0, 2.0)))
    '+1.5 (+1.0, +2.0)'
    >>> difference_words(Comparison(row="", column="", values=(1.0,) * 3, interval=(-0.2, 2.2)))
    '+1.0 [−0.2 to 2.2]'
    """
    if cell.interval is None:
        return f"{signed_number(cell.mean)} ({', '.join(map(signed_number, cell.values))})"
    low, high = cell.interval
    return f"{signed_number(cell.mean)} [{low:.1f} to {high:.1f}]".replace("-", "−")


def length_change(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """What few negatives cost after each length."""
    gap = next(iter(experiment.conclude(records).values()), [])
    parts = []
    for row, here in group_by(gap, attrgetter("row")).items():
        changes = [f"{signed_number(cell.mean)} after {words(cell.column)}" for cell in here]
        parts.append(f"{', '.join(changes)} with {words(row.without('num_negatives'))}")
    sentence = (
        f"Few negatives instead of all change accuracy by {'; '.join(parts)} (points{noise(gap)})."
    )
    return sentence if parts else ""


def precision_change(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """What bfloat16 in place of float32 changes, beside what another seed does."""
    cells = run_cells(experiment, records)
    gap = next(iter(experiment.conclude(records).values()), [])
    parts = [f"{signed_number(cell.mean)} with {words(cell.row)}" for cell in gap]
    sentence = (
        f"bfloat16 instead of float32 changes accuracy by {', '.join(parts)} "
        f"(points{noise(cells)})."
    )
    return sentence if parts else ""


def swing(cells: Sequence[Comparison]) -> str:
    """How far f̂ moves over the columns under each loss: a seed's largest less its smallest."""
    axis, places = axis_of(distinct(cell.column for cell in cells))
    moves: dict[Coordinates, list[float]] = {}
    for row, here in group_by(cells, attrgetter("row")).items():
        seeds = seed_by_seed(here).values()
        if seeds and len(here) == len(places):
            move = fmean(max(values) - min(values) for values in seeds)
            moves.setdefault(row.only("loss", "alpha"), []).append(move)
    if len(places) < 2 or len(moves) < 2:
        return ""
    most = "up to " if max(map(len, moves.values())) > 1 else ""
    parts = [f"{most}{max(found):.2f} nats with {words(loss)}" for loss, found in moves.items()]
    few, many = min(places.values()), max(places.values())
    return (
        f"moves by {' and '.join(parts)} as {axis_words(axis)} goes from {few:g} to {many:g} "
        f"(largest less smallest{noise(cells, digits=2)})."
    )


def information_swing(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """Figure 1: how far f̂ at the end of training moves over K."""
    found = swing(run_cells(experiment, records))
    return f"f̂ at the end of training {found}" if found else ""


def estimate_swing(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """Table 5: how far the estimate moves over K."""
    found = swing(experiment.compare(records))
    return f"Between Gaussians of known information f̂ {found}" if found else ""


def gradient_factor(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """Figure 2: how much the gradient norm depends on K at the end of training."""
    rows = group_by(run_cells(experiment, records), attrgetter("row"))
    last = max(row.after_epochs for row in rows)
    factors = []
    for row, here in rows.items():
        if row.after_epochs == last:
            high, low = highest_and_lowest(here)
            factors.append(f"a factor of {high.mean / low.mean:.2f} with {LOSSES[row.loss]}")
    moment = words(Coordinates(after_epochs=last))
    return f"The mean ‖dL/dq‖ {moment} varies over K by {' and '.join(factors)}."


def smallest_batch(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """What is best and worst for the smallest batch, over the seeds that all its cells have."""
    cells = run_cells(experiment, records)
    columns = group_by(cells, attrgetter("column"))
    few, many = (edge(columns, key=lambda column: column.num_queries) for edge in (min, max))
    base = Coordinates(source="batch", loss="infonce")
    plain = [cell for cell in (*columns[few], *columns[many]) if cell.row == base]
    seeds = seed_by_seed([*columns[few], *plain]) if len(plain) == 2 and few != many else {}
    if not seeds:
        return ""
    means = list(map(fmean, zip(*seeds.values(), strict=True)))
    names = [words(cell.row) for cell in columns[few]]
    first, second, *_, last = sorted(zip(means, names, strict=False), reverse=True)
    return (
        f"With {words(few)} the highest are {first[1]} at {first[0]:.1f} % and {second[1]} at "
        f"{second[0]:.1f} %, the lowest is {last[1]} at {last[0]:.1f} %; InfoNCE on the batch "
        f"alone reaches {means[-1]:.1f} % with {words(many)} "
        f"({plural(len(seeds), 'seed')}{noise(cells)})."
    )


def saturation_gain(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """How often α gained or lost clearly where plain InfoNCE was saturated, and elsewhere."""
    return saturation_counts(experiment.compare(records))


def saturation_counts(cells: Sequence[Comparison]) -> str:
    """The same of cells of study-saturation, whatever their profiles: of pairs of trainings with
    seeds enough for an interval, by both measures of accuracy.
    """
    rows = group_by(cells, attrgetter("row")).values()
    pairs = [row for row in rows if row[1].interval is not None]
    saturated = [row for row in pairs if row[0].mean >= SATURATED]
    others = [row for row in pairs if row[0].mean < SATURATED]
    if not saturated or not others:
        return ""
    return (
        f"Of {plural(len(saturated), 'pair')} of trainings with p₊ of {SATURATED} and more under "
        f"plain InfoNCE α {both_changes(saturated)}; of {len(others)} with less it "
        f"{both_changes(others)} (95 % intervals that leave zero out, as one in twenty does by "
        f"chance)."
    )


def both_changes(pairs: Sequence[Sequence[Comparison]]) -> str:
    """What is clear by the probe, also for each data set if there are several, and by nearest
    neighbours.
    """
    by_data = group_by(pairs, key=data_of)
    gains = [
        f"{clear_gains(here)} of {len(here)} on {words(data)}" for data, here in by_data.items()
    ]
    parts = f" ({', '.join(gains)})" if len(by_data) > 1 else ""
    probe, neighbours = (
        clear_changes([each for pair in pairs if (each := pair[column].interval) is not None])
        for column in (1, 2)
    )
    return f"{probe} by the probe{parts}, and {neighbours} by nearest neighbours"


def data_of(pair: Sequence[Comparison]) -> Coordinates:
    """What the trainings of a pair were made on."""
    row = pair[0].row
    assert isinstance(row, Coordinates)
    return row.only("data")


def clear_gains(pairs: Sequence[Sequence[Comparison]]) -> int:
    """In how many the gain by the probe is above zero with its whole interval."""
    return sum(gain.interval is not None and gain.interval[0] > 0 for _, gain, _ in pairs)


def clear_changes(intervals: Sequence[tuple[float, float]]) -> str:
    """In how many of them what is measured is above zero, and in how many below."""
    gains = sum(low > 0 for low, _ in intervals)
    losses = sum(high < 0 for _, high in intervals)
    return f"gained in {gains or 'none'} and lost in {losses or 'none'}"


def bias_and_noise(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """The study of gradients: with the fewest negatives, direction and noise of each loss."""
    direction = run_cells(experiment, records)
    if not direction:
        return ""
    fewest = direction[0].column
    near, far = highest_and_lowest([cell for cell in direction if cell.column == fewest])
    spread = next(iter(experiment.further(records).values()))
    drawn = [cell.mean for cell in spread if cell.column == fewest]
    batches = [cell.mean for cell in spread if isinstance(cell.column, str)]
    return (
        f"With {words(fewest)} the mean gradient has a cosine of {far.mean:.3f} ({words(far.row)}) "
        f"to {near.mean:.3f} ({words(near.row)}) to that with all negatives; draws add noise of "
        f"{min(drawn):.2f} to {max(drawn):.2f} times its length; batches with all negatives have "
        f"{fmean(batches):.2f} of their root mean square."
    )


def search_extremes(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """The study of search: for each N what is highest and lowest."""
    cells = run_cells(experiment, records)
    parts = []
    for column, here in group_by(cells, attrgetter("column")).items():
        high, low = highest_and_lowest(here)
        parts.append(
            f"with {words(column.only('num_queries'))} is highest at {high.mean:.1f} % "
            f"({words(high.row)}) and lowest at {low.mean:.1f} % ({words(low.row)})"
        )
    return f"MRR of search {'; '.join(parts)}{noise(cells)}." if parts else ""


def example_accuracy(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """What training reached, beside what it had to beat."""
    pixels, random, *trained = experiment.compare(records)
    reached = " and ".join(
        f"{cell.mean:.1f} %" + (f" with {cell.row}" if len(trained) > 1 else "") for cell in trained
    )
    return (
        f"Training with {records[0].curves['num_negatives']} negatives reaches {reached} by "
        f"nearest neighbours on {records[0].recipe['data']}; raw pixels reach {pixels.mean:.1f} %, "
        f"random weights {random.mean:.1f} %{noise(trained)}."
    )


def detection_gain(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """Table 9: what pre-trained weights added to AP, seed by seed."""
    gains = next(iter(experiment.conclude(records).values()))
    data = records[0].recipe["data"]
    return " ".join(
        f"AP, {words(cell.row)} − {RANDOM}: {signed_number(cell.mean)} points on {data} "
        f"(seed{'s' * (len(cell.values) > 1)}: {', '.join(map(signed_number, cell.values))})."
        for cell in gains
        if cell.column == Coordinates(metric="AP")
    )


def largest_excess(experiment: Experiment[Any], records: Sequence[Record]) -> str:
    """The study of the bound: the largest excess, and where it is."""
    best, truth, count, record = max(
        (
            (row[-1], truth, count, several[0])
            for truth, several in by_truth(records).items()
            for count, row in several[0].curves["best"].items()
        ),
        key=lambda found: found[0],
    )
    alpha, plain = record.recipe["alphas"][-1], record.curves["excess"][count][-1]
    if best <= 0:
        return f"f̂ stays below the truth up to α = {alpha}."
    return (
        f"Once α > K f̂ is an estimate: at K = {count} and α = {alpha} it exceeds a truth of "
        f"{truth:g} nats by {plain:.2f} with the true density ratio as critic and by {best:.2f} "
        f"with the best multiple of it; no critic's exceeds it by more than "
        f"{largest_overshoot(alpha, int(count)):.2f}."
    )
