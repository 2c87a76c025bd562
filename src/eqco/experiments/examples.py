"""Trainings as examples: what is learned, beside raw pixels and random weights."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from eqco.evaluation.scores import share_interval
from eqco.experiments.experiment import Comparison, Experiment
from eqco.experiments.grid import pretrain_and_evaluate
from eqco.experiments.tasks import TrainingTask, small_folder
from eqco.experiments.training_runs import TEST_IMAGES, training_steps
from eqco.methods import SimCLRSettings
from eqco.recipes import RECIPES, profiles, with_settings
from eqco.recipes.rules import BASE
from eqco.runtime.records import TRAININGS, Record

__all__ = ["CIFAR_SIMO", "DEMO", "trainings"]

REFERENCES = {"pixels_knn": "raw pixels", "random_knn": "random weights"}


def trainings(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each training by its name: by its loss, where there are several."""
    found: dict[str, list[Record]] = {}
    for record in records:
        alpha = record.recipe["training"]["objective"]["alpha"]
        name = "InfoNCE" if alpha is None else f"EqCo, α={alpha:g}"
        found.setdefault(name, []).append(record)
    return found if len(found) > 1 else {"trained": list(records)}


def compare(records: Sequence[Record]) -> list[Comparison]:
    """kNN accuracy in percent, with the 95 % interval over test images.

    All seeds are tested on the same images, so that more seeds do not make it narrower.
    """
    if not records:
        return []
    by_name = trainings(records)
    once = next(iter(by_name.values()))  # references are the same for all trainings of a seed
    rows = {title: [each.metrics[name] for each in once] for name, title in REFERENCES.items()}
    rows |= {name: [each.metrics["knn"] for each in own] for name, own in by_name.items()}
    first = records[0].recipe
    images = TEST_IMAGES[first["data"]]
    cells = []
    for title, values in rows.items():
        found = share_interval(round(fmean(values) * images), images)
        cells.append(
            Comparison(
                row=title,
                column=f"kNN (k={first['neighbours']}), % on {first['data']} test [95 % interval]",
                values=tuple(100 * value for value in values),
                interval=(100 * found.low, 100 * found.high),
            )
        )
    return cells


def simo_on(data: str, neighbours: int, scale: profiles.Scale, **changes: Any) -> TrainingTask:
    """A SiMo run with changed training settings; the warm-up keeps its share."""
    recipe = profiles.at_scale(RECIPES["simo"], scale)
    training = replace(recipe.training, **changes)
    warmup = recipe.optimiser.warmup_epochs * training.epochs / recipe.training.epochs
    optimiser = replace(recipe.optimiser, warmup_epochs=warmup)
    recipe = replace(recipe, training=training, optimiser=optimiser)
    return TrainingTask(data=data, recipe=recipe, neighbours=neighbours, accuracy=None)


def few_negatives(*, epochs: int, diagnose_every: int, **training: Any) -> list[TrainingTask]:
    """SimCLR on photos of hands, 4 negatives for each query, under InfoNCE and under EqCo.

    All else is what `eqco train` chooses for a folder of that size.
    """
    training |= {"epochs": epochs, "warmup_epochs": epochs / 20, "diagnose_every": diagnose_every}
    recipe = with_settings(BASE, num_queries=64, save_every=epochs, compile=False, **training)
    return [small_folder(recipe, SimCLRSettings(count=4), alpha=alpha) for alpha in (None, 256.0)]


def example(
    name: str,
    title: str,
    seeds: tuple[int, ...],
    *,
    smoke: list[TrainingTask],
    desk: list[TrainingTask],
) -> Experiment[TrainingTask]:
    """A training or two, at the desk and as a smoke test."""
    return Experiment(
        name=name,
        kind="example",
        title=title,
        profiles={"smoke": smoke, "desk": desk},
        seeds={"smoke": (0,), "desk": seeds},
        size=training_steps,
        run=pretrain_and_evaluate,
        compare=compare,
        training=lambda task: task,
        store=TRAININGS,
    )


DEMO = example(
    "demo",
    "SimCLR with 4 negatives on photos of hands, with and without EqCo",
    (0, 1, 2),
    smoke=few_negatives(epochs=1, diagnose_every=5, image_size=16),
    desk=few_negatives(epochs=80, diagnose_every=20, probe_every=8),
)
CIFAR_SIMO = example(
    "cifar10-simo",
    "SiMo with 16 negatives on CIFAR-10, a few epochs",
    (0,),
    smoke=[simo_on("groceries", 20, profiles.SMOKE, num_queries=64)],
    desk=[simo_on("cifar10", 200, profiles.FOLDER, epochs=10, probe_every=2)],
)
