"""Trainings as examples: what SiMo learns, beside raw pixels and random weights."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from eqco.evaluation.scores import bootstrap
from eqco.experiments.experiment import Comparison, Experiment
from eqco.experiments.grid import pretrain_and_evaluate
from eqco.experiments.tasks import TrainingTask
from eqco.experiments.training_runs import TEST_IMAGES, training_steps
from eqco.recipes import RECIPES, profiles
from eqco.runtime.records import TRAININGS, Record

__all__ = ["CIFAR_SIMO", "DEMO"]

SHOWN = {"pixels_knn": "raw pixels", "random_knn": "random weights", "knn": "trained"}


def compare(records: Sequence[Record]) -> list[Comparison]:
    """kNN accuracy in percent, with the 95 % interval over test images.

    All seeds are tested on the same images, so that more seeds do not make it narrower.
    """
    if not records:
        return []
    first = records[0].recipe
    images = TEST_IMAGES[first["data"]]
    cells = []
    for metric, title in SHOWN.items():
        values = [record.metrics[metric] for record in records]
        found = bootstrap(round(fmean(values) * images), images)
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


def example(
    name: str, title: str, seeds: tuple[int, ...], *, smoke: TrainingTask, desk: TrainingTask
) -> Experiment[TrainingTask]:
    """One training, at the desk and as a smoke test."""
    return Experiment(
        name=name,
        kind="example",
        title=title,
        profiles={"smoke": [smoke], "desk": [desk]},
        seeds={"smoke": (0,), "desk": seeds},
        size=training_steps,
        run=pretrain_and_evaluate,
        compare=compare,
        training=lambda task: task,
        store=TRAININGS,
    )


DEMO = example(
    "demo",
    "SiMo with 16 negatives on the embedded photos",
    (0, 1, 2),
    smoke=simo_on("groceries", 20, profiles.DEMO, epochs=2, num_queries=64, diagnose_every=5),
    desk=simo_on("groceries", 20, profiles.DEMO),
)
CIFAR_SIMO = example(
    "cifar10-simo",
    "SiMo with 16 negatives on CIFAR-10, a few epochs",
    (0,),
    smoke=simo_on("groceries", 20, profiles.FOLDER, epochs=2, num_queries=128, diagnose_every=5),
    desk=simo_on("cifar10", 200, profiles.FOLDER, epochs=10, probe_every=2),
)
