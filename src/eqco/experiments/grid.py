"""Experiments that are a table of trainings: which run fills which cell, and what it found."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from eqco.encoders import Architecture
from eqco.experiments.accuracy import accuracies
from eqco.experiments.coordinates import Coordinates, Loss, Place, group_by
from eqco.experiments.experiment import (
    Comparison,
    Experiment,
    RunContext,
    RunResult,
    heading_of_differences,
)
from eqco.experiments.tasks import TrainingTask
from eqco.experiments.training_runs import train_once, training_steps
from eqco.recipes import recipe_from_dict
from eqco.recipes.profiles import SCALES, Scale
from eqco.runtime.records import TRAININGS, Record, recipe_hash

__all__ = [
    "GAINED",
    "TITLES",
    "Cell",
    "Named",
    "differences",
    "grid_experiment",
    "loss_of",
    "pretrain_and_evaluate",
    "quantity_table",
]

POINTS = 100  # of each curve in a record
CURVES = ("loss", "information", "gradient_norm_mean")
IN_ITS_UNIT = ("information", "gradient_norm", "positive_probability")  # all others in percent
SEEDS = {
    **{"smoke": (0,), "desk": (0, 1), "few-images": (0, 1, 2)},
    **{"embedded": (0, 1, 2), "paper": (0,)},
}
TITLES = {
    "probe": "Linear probe, %",
    "linear": "Top-1 by the linear protocol, %",
    "knn": "Nearest neighbours (kNN), %",
    "information": "f̂ at the end, nats",
    "gradient_norm": "Mean ‖dL/dq‖ at the end",
    "positive_probability": "p₊ of plain InfoNCE at the end",
}


# where the cell stands that another is compared with, among all that there are
Baseline = Callable[[Coordinates, Collection[Coordinates]], Coordinates]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: where it stands, the training that fills it, if any, and the paper's number.

    `printed` is where the number stands in the paper, if elsewhere: shown until ours is there;
    `part` is the title of the rows that stand below a line.
    """

    at: Coordinates
    task: TrainingTask | None
    published: float | None = None
    printed: Coordinates | None = None
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Named:
    """A number that the text names: of a training, or of one less another, seed by seed."""

    row: Place
    published: float
    task: TrainingTask | None = None
    less: TrainingTask | None = None


def loss_of(alpha: float | None) -> Loss:
    """The loss of a row: EqCo where an α is imitated."""
    return "infonce" if alpha is None else "eqco"


def under_infonce(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """The same cell without EqCo."""
    return replace(at, loss="infonce", alpha=None)


GAINED = {"Gained over InfoNCE, points of accuracy, seed by seed": under_infonce}


def pretrain_and_evaluate(task: TrainingTask, seed: int, context: RunContext) -> RunResult:
    """Train, or find the training done, and measure accuracies, f̂ and gradient norm."""
    run = train_once(task, seed, context)
    lines = run.directory.read_metrics()
    curves = {
        name: thin([(line["step"], line[name]) for line in lines if name in line])
        for name in CURVES
    }
    probes = [
        (line["step"], 100 * value)
        for line in lines
        for name, value in line.items()
        if name.startswith("probe/")
    ]
    if len(probes) > 1:  # not at the end alone
        curves["probe"] = thin(probes)
    last: Mapping[str, Any] = next((e for e in reversed(lines) if "information" in e), {})
    saturation = [
        (line["step"], line["positive_probability"])
        for line in lines
        if "positive_probability" in line
    ]
    return RunResult(
        metrics={
            **accuracies(run, task, context),
            # absent where there are no negatives
            **{
                name: last_tenth(curve)
                for name, curve in (
                    ("information", curves["information"]),
                    ("gradient_norm", curves["gradient_norm_mean"]),
                    ("positive_probability", saturation),
                )
                if curve
            },
        },
        curves={
            **{name: round_values(points) for name, points in curves.items()},
            "information_kind": last.get("information_kind"),
            "num_negatives": last.get("num_negatives"),
            "trained_by": run.code,
        },
        earlier=run.earlier,
    )


def thin(points: Sequence[tuple[int, float]], most: int = POINTS) -> list[tuple[int, float]]:
    """At most so many points, each the mean of a stretch and placed at its end.

    >>> thin([(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0)], most=2)
    [(2, 2.0), (4, 6.0)]
    """
    size = -(-len(points) // most) or 1
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], fmean(value for _, value in part)) for part in stretches]


def round_values(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Five digits of each value: more than any plot shows.

    >>> round_values([(1, 0.123456789)])
    [(1, 0.12346)]
    """
    return [(step, float(f"{value:.5g}")) for step, value in points]


def last_tenth(curve: Sequence[tuple[int, float]]) -> float:
    """The mean over the last tenth of a training."""
    end = curve[-1][0]
    return fmean(value for step, value in curve if step > 0.9 * end)


def grid_experiment(
    *,
    title: str,
    cells: Mapping[str, Sequence[Cell]],
    axis: str = "",
    kind: Literal["figure", "table", "study"] = "study",
    number: int = 0,
    name: str = "",
    main: str = "accuracy",
    quantities: Sequence[str] = ("knn",),
    baselines: Mapping[str, Baseline] | None = None,
    named: Callable[[Scale], Mapping[str, Sequence[Named]]] = lambda scale: {},
    seeds: Mapping[str, tuple[int, ...]] = SEEDS,
) -> Experiment[TrainingTask]:
    """An experiment that is a table of trainings.

    Args:
        title: one line.
        cells: profile -> its cells; cells may share trainings.
        axis: the coordinate that the columns count; the others name the rows.
        kind, number: which figure or table it is.
        name: of a study.
        main: what the first table shows; accuracy: by the profile's protocol.
        quantities: shown in further tables.
        baselines: title -> where the cell stands that another is compared with, seed by seed.
        named: scale -> tables of what the paper's text says, by title.
        seeds: of each profile.
    """

    def compare(records: Sequence[Record]) -> list[Comparison]:
        here = cells.get(profile_of(records))
        return quantity_table(here, records, main, axis) if here else []

    def conclude(records: Sequence[Record]) -> dict[str, list[Comparison]]:
        here = cells.get(profile_of(records))
        if not here:  # nothing was run, and nothing is published
            return {}
        tables = {}
        for heading, baseline in (baselines or {}).items():
            table = differences(here, records, baseline, axis)
            tables[heading_of_differences(heading, table)] = table
        for heading, rows in named(SCALES[profile_of(records)]).items():
            tables[heading] = [named_cell(row, records) for row in rows]
        return {heading: table for heading, table in tables.items() if table}

    def further(records: Sequence[Record]) -> dict[str, list[Comparison]]:
        here = cells.get(profile_of(records))
        if not here:
            return {}
        metrics = [metric_of(here) if each == "accuracy" else each for each in quantities]
        tables = {TITLES[metric]: quantity_table(here, records, metric, axis) for metric in metrics}
        if "knn" in metrics and main != "knn":
            for heading, baseline in (baselines or {}).items():
                table = differences(here, records, baseline, axis, "knn")
                tables[heading_of_differences(f"{heading}, by nearest neighbours", table)] = table
        tables["What training must beat"] = references(records)
        return {heading: table for heading, table in tables.items() if table}

    return Experiment(
        name=name or f"{kind[:3]}{number}",
        kind=kind,
        number=number,
        title=title,
        profiles={profile: trainings(grid) for profile, grid in cells.items()},
        seeds=seeds,
        size=training_steps,
        run=pretrain_and_evaluate,
        compare=compare,
        conclude=conclude,
        further=further,
        training=lambda task: task,
        store=TRAININGS,
    )


def trainings(cells: Sequence[Cell]) -> list[TrainingTask]:
    """The trainings of a table, each once, in the order of the cells."""
    tasks = [cell.task for cell in cells if cell.task is not None]
    return list({recipe_hash(task.to_dict()): task for task in tasks}.values())


def profile_of(records: Sequence[Record]) -> str:
    """The profile of the records; of none: the paper's own."""
    return records[0].profile if records else "paper"


def metric_of(cells: Sequence[Cell]) -> str:
    """The accuracy of a profile by its name among the metrics."""
    return next(cell.task.metric for cell in cells if cell.task is not None)


def by_run(records: Sequence[Record]) -> dict[str, dict[int, Record]]:
    """Records by the hash of their recipe, then by seed."""
    found: dict[str, dict[int, Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        found.setdefault(record.hash_of_recipe, {})[record.seed] = record
    return found


def runs_of(task: TrainingTask | None, records: Sequence[Record]) -> dict[int, Record]:
    """The records of a training by seed; none where it was not run."""
    return by_run(records).get(recipe_hash(task.to_dict()), {}) if task is not None else {}


def values_of(
    task: TrainingTask | None, records: Sequence[Record], metric: str
) -> dict[int, float]:
    """A metric of a training by seed, accuracies in percent."""
    unit = 1 if metric in IN_ITS_UNIT else 100
    runs = runs_of(task, records)
    return {s: unit * run.metrics[metric] for s, run in runs.items() if metric in run.metrics}


def less(
    task: TrainingTask | None, base: TrainingTask | None, records: Sequence[Record], metric: str
) -> dict[int, float]:
    """One training less another by seed, for the seeds that both have."""
    ours, theirs = (values_of(each, records, metric) for each in (task, base))
    return {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}


def split(at: Coordinates, axis: str, metric: str) -> tuple[Coordinates, Place]:
    """Row and column of a cell; without an axis there is one column, of the metric."""
    return (at.without(axis), at.only(axis)) if axis else (at, TITLES[metric])


def quantity_table(
    cells: Sequence[Cell], records: Sequence[Record], quantity: str, axis: str
) -> list[Comparison]:
    """One quantity in the cells that were run, and what the paper has in the others."""
    metric = metric_of(cells) if quantity == "accuracy" else quantity
    table = []
    for cell in cells:
        values = values_of(cell.task, records, metric)
        published = cell.published if metric in ("probe", "linear") else None
        if not values and published is None:
            continue
        runs = runs_of(cell.task, records) if metric == "information" else {}
        table.append(
            Comparison.of(
                *split(cell.at if values else cell.printed or cell.at, axis, metric),
                values,
                published=published,
                comparable=metric == "linear",
                printed=split(cell.printed, axis, metric) if cell.printed else None,
                kind=kind_of(cell.task, runs),
                part=cell.part,
            )
        )
    return table


def kind_of(task: TrainingTask | None, runs: Mapping[int, Record]) -> str:
    """Whether f̂ of these runs is a bound or an estimate; nothing where there are none.

    Negatives that depend on the query make it an estimate, whatever α and K are.
    """
    if runs and task is not None and not task.recipe.method.independent_negatives:
        return "estimate"
    return next((str(run.curves["information_kind"]) for run in runs.values()), "")


def differences(
    cells: Sequence[Cell],
    records: Sequence[Record],
    baseline: Baseline,
    axis: str,
    metric: str | None = None,
) -> list[Comparison]:
    """Each cell less the one that `baseline` names for it, for the seeds that both have; with three
    or more of them the interval of the mean. The metric is the accuracy of the profile, unless
    another is named.
    """
    metric = metric or metric_of(cells)
    tasks = {cell.at: cell.task for cell in cells}
    return [
        Comparison.of_difference(*split(cell.at, axis, metric), values)
        for cell in cells
        if (base := tasks.get(baseline(cell.at, tasks))) != cell.task
        and (values := less(cell.task, base, records, metric))
    ]


def named_cell(named: Named, records: Sequence[Record]) -> Comparison:
    """What the text names, beside ours where it was run."""
    metric = named.task.metric if named.task is not None else "linear"
    beside = {"published": named.published, "comparable": metric == "linear"}
    if named.less:
        values = less(named.task, named.less, records, metric)
        return Comparison.of_difference(named.row, "named in the text", values, **beside)
    values = values_of(named.task, records, metric)
    return Comparison.of(named.row, "named in the text", values, **beside)


def references(records: Sequence[Record]) -> list[Comparison]:
    """Raw pixels and first weights, of each network where they differ; each seed once."""
    networks = group_by(records, lambda record: network_of(record.recipe))
    rows: dict[str, tuple[str, Sequence[Record]]] = {"raw pixels": ("pixels", records)}
    for network, alike in networks.items():
        methods = {str(record.recipe["training"]["method"]["name"]) for record in alike}
        title = f"random weights, {network}" + f" ({min(methods)})" * (len(methods) == 1)
        rows[title if len(networks) > 1 else "random weights"] = ("random", alike)
    table = []
    for title, (name, own) in rows.items():
        seeds = {record.seed: record.metrics for record in own}
        for metric in ("probe", "knn"):
            if seeds and all(f"{name}_{metric}" in metrics for metrics in seeds.values()):
                values = tuple(100 * metrics[f"{name}_{metric}"] for metrics in seeds.values())
                table.append(Comparison(row=title, column=TITLES[metric], values=values))
    return table


def network_of(task: Mapping[str, Any]) -> str:
    """What the network is called that is evaluated after a training, as a record holds it."""
    recipe = recipe_from_dict(task["training"])
    encoder = recipe.encoder
    name = recipe.method.evaluated_backbone(encoder.backbone)
    return str(Architecture(name, encoder.width, encoder.stem))
