"""Experiments that are a table of trainings: which run fills which cell, and what it found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from eqco.experiments.accuracy import accuracies
from eqco.experiments.experiment import Comparison, Experiment, Outcome, Recipe, Site
from eqco.experiments.training_runs import train_once, training_steps
from eqco.runtime.records import Record, recipe_hash

__all__ = ["Cell", "Grid", "differences", "grid_experiment", "pretrain_and_ask"]

POINTS = 100  # of each curve in a record
CURVES = ("loss", "information", "gradient_norm_mean", "accuracy", "embedding_rank")
REFERENCES = {"pixels": "raw pixels", "random": "random weights"}
TITLES = {
    "probe": "Linear probe, %",
    "linear": "Top-1 by the linear protocol, %",
    "knn": "Nearest neighbours (kNN), %",
    "information": "f̂ at the end, nats",
    "gradient_norm": "Mean ‖dL/dq‖ at the end",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table: the run that fills it, and the paper's number, if there is one."""

    row: str
    column: str
    recipe: Recipe
    published: float | None = None


Grid = Sequence[Cell]


def pretrain_and_ask(recipe: Recipe, seed: int, site: Site) -> Outcome:
    """Train, or find the training done, and measure accuracies, f̂ and gradient norm."""
    run = train_once(recipe, seed, site)
    curves = training_curves(run.directory.read_metrics())
    found = accuracies(run, recipe, site)
    found |= {
        "information": last_tenth(curves["information"]),
        "gradient_norm": last_tenth(curves["gradient_norm_mean"]),
    }
    return Outcome(metrics=found, curves={**curves, "trained_by": run.code}, earlier=run.earlier)


def training_curves(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Loss, f̂, gradient norm and the like against the step, at most a hundred points each."""
    looked = [line for line in lines if "information" in line]
    curves: dict[str, Any] = {
        name: thinned([(line["step"], line[name]) for line in lines if name in line])
        for name in CURVES
    }
    curves["information_kind"] = looked[-1]["information_kind"] if looked else None
    curves["num_negatives"] = looked[-1]["num_negatives"] if looked else None
    return curves


def thinned(points: Sequence[tuple[int, float]], most: int = POINTS) -> list[tuple[int, float]]:
    """At most so many points, each the mean of a stretch and placed at its end.

    >>> thinned([(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0)], most=2)
    [(2, 2.0), (4, 6.0)]
    """
    size = -(-len(points) // most) or 1
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [(part[-1][0], fmean(value for _, value in part)) for part in stretches]


def last_tenth(curve: Sequence[tuple[int, float]]) -> float:
    """The mean over the last tenth of a training."""
    end = curve[-1][0]
    return fmean(value for step, value in curve if step > 0.9 * end)


def grid_experiment(
    name: str,
    title: str,
    grids: Mapping[str, Grid],
    *,
    seeds: Mapping[str, tuple[int, ...]],
    main: str = "accuracy",
    quantities: Sequence[str] = ("knn",),
    baseline: Callable[[Cell], bool] | None = None,
) -> Experiment:
    """An experiment that is a table of trainings.

    Args:
        name: of the figure or table.
        title: one line.
        grids: profile -> its cells; cells may share runs.
        seeds: profile -> seeds.
        main: what the first table shows; accuracy: by the profile's protocol.
        quantities: shown in further tables.
        baseline: which rows the others of a column are compared with, seed by seed.
    """

    def compare(records: Sequence[Record]) -> list[Comparison]:
        return filled(grids[records[0].profile], records, named(main, records[0].recipe))

    def further(records: Sequence[Record]) -> dict[str, list[Comparison]]:
        grid = grids[records[0].profile]
        tables = {}
        if baseline is not None:
            gained = differences(grid, records, baseline)
            if gained:
                plain = {cell.row for cell in grid if baseline(cell)}
                name = plain.pop() if len(plain) == 1 else "InfoNCE"
                tables[f"Gained over {name}, points of accuracy, seed by seed"] = gained
        for quantity in quantities:
            chosen = named(quantity, records[0].recipe)
            tables[TITLES[chosen]] = filled(grid, records, chosen)
        tables["What training must beat"] = references(records)
        return {title: cells for title, cells in tables.items() if cells}

    return Experiment(
        name=name,
        title=title,
        profiles={profile: distinct(grid) for profile, grid in grids.items()},
        seeds=seeds,
        size=training_steps,
        run=pretrain_and_ask,
        compare=compare,
        further=further,
    )


def named(quantity: str, recipe: Recipe) -> str:
    """A quantity as records call it: accuracy is by the protocol of the profile."""
    return str(recipe["accuracy"]) if quantity == "accuracy" else quantity


def distinct(grid: Grid) -> list[Recipe]:
    """The runs of a table, each once, in the order of the cells."""
    return list({recipe_hash(cell.recipe): cell.recipe for cell in grid}.values())


def by_run(records: Sequence[Record]) -> dict[str, dict[int, Record]]:
    """Records by the hash of their recipe, then by seed."""
    found: dict[str, dict[int, Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        found.setdefault(recipe_hash(record.recipe), {})[record.seed] = record
    return found


def in_unit(record: Record, quantity: str) -> float:
    """A metric as it is shown: accuracies in percent."""
    value = record.metrics[quantity]
    return value if quantity in ("information", "gradient_norm") else 100 * value


def filled(grid: Grid, records: Sequence[Record], quantity: str) -> list[Comparison]:
    """One quantity in the cells whose runs were done; other records are left out."""
    found = by_run(records)
    accuracy = quantity in ("probe", "linear")
    return [
        Comparison(
            row=cell.row,
            column=cell.column,
            values=tuple(in_unit(record, quantity) for record in runs.values()),
            seeds=tuple(runs),
            published=cell.published if accuracy else None,
            comparable=quantity == "linear",
            kind=kind_of(runs) if quantity == "information" else "",
        )
        for cell in grid
        if (runs := found.get(recipe_hash(cell.recipe)))
    ]


def kind_of(runs: Mapping[int, Record]) -> str:
    """Whether the f̂ of a run is a bound or an estimate."""
    return str(next(iter(runs.values())).curves["information_kind"])


def differences(
    grid: Grid, records: Sequence[Record], baseline: Callable[[Cell], bool]
) -> list[Comparison]:
    """Each row less the baseline before it, in the same column and for the same seed."""
    found = by_run(records)
    quantity = records[0].recipe["accuracy"]
    base: dict[str, Cell] = {}
    cells = []
    for cell in grid:
        if baseline(cell):
            base[cell.column] = cell
            continue
        if cell.column not in base or cell.recipe == base[cell.column].recipe:
            continue
        ours = found.get(recipe_hash(cell.recipe), {})
        theirs = found.get(recipe_hash(base[cell.column].recipe), {})
        shared = tuple(seed for seed in ours if seed in theirs)
        if shared:
            cells.append(
                Comparison(
                    row=cell.row,
                    column=cell.column,
                    values=tuple(
                        in_unit(ours[seed], quantity) - in_unit(theirs[seed], quantity)
                        for seed in shared
                    ),
                    seeds=shared,
                )
            )
    return cells


def references(records: Sequence[Record]) -> list[Comparison]:
    """Raw pixels and first weights; each seed once."""
    seeds = {record.seed: record for record in records}
    return [
        Comparison(
            row=title,
            column=TITLES[quantity],
            values=tuple(100 * record.metrics[f"{name}_{quantity}"] for record in seeds.values()),
        )
        for name, title in REFERENCES.items()
        for quantity in ("probe", "knn")
        if all(f"{name}_{quantity}" in record.metrics for record in seeds.values())
    ]
