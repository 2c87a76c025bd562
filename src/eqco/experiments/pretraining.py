"""Runs that train an encoder and ask what it is worth, beside raw pixels and random weights."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from eqco.evaluation.scores import Interval, bootstrap
from eqco.experiments.accuracy import reference_accuracies
from eqco.experiments.experiment import Comparison, Experiment, Outcome, Recipe, Site
from eqco.experiments.training_runs import TEST_IMAGES, train_once, training_steps
from eqco.recipes import named_recipe, recipe_to_dict
from eqco.runtime.records import Record

__all__ = ["CIFAR_SIMO", "DEMO", "interval_of", "pretrain"]

REFERENCES = {"pixels": "raw pixels", "random": "random weights", "trained": "trained"}


def pretrain(recipe: Recipe, seed: int, site: Site) -> Outcome:
    """Train as `recipe["training"]` says, and compare by kNN on the test split.

    What the run leaves in `site.work` is gone on with if it was stopped, and kept when it is done.
    """
    run = train_once(recipe, seed, site)
    lines = run.directory.read_metrics()
    looked = [line for line in lines if "information" in line]
    references = reference_accuracies(run, recipe["neighbours"], site)
    return Outcome(
        metrics={
            "pixels": references["pixels_knn"],
            "random": references["random_knn"],
            "trained": run.knn(recipe["neighbours"]),
        },
        curves={
            "loss": [(line["step"], line["loss"]) for line in lines if "loss" in line],
            **{
                name: [(line["step"], line[name]) for line in looked]
                for name in ("information", "gradient_norm_mean", "accuracy", "embedding_rank")
            },
            "information_kind": looked[-1]["information_kind"] if looked else None,
            "knn": [
                (line["step"], value)
                for line in lines
                for name, value in line.items()
                if name.startswith("probe/")
            ],
            "trained_by": run.code,
        },
        earlier=run.earlier,
    )


def interval_of(records: Sequence[Record], name: str) -> Interval:
    """The mean accuracy over seeds, with the 95 % interval over test images.

    All seeds are tested on the same images, so that more seeds do not make it narrower.
    """
    images = TEST_IMAGES[records[0].recipe["data"]]
    share = fmean(record.metrics[name] for record in records)
    return bootstrap(round(share * images), images)


def compare(records: Sequence[Record]) -> list[Comparison]:
    """kNN accuracy in percent, side by side, with intervals."""
    first = records[0].recipe
    column = f"kNN (k={first['neighbours']}), % on {first['data']} test [95 % interval]"
    cells = []
    for name, title in REFERENCES.items():
        found = interval_of(records, name)
        cells.append(
            Comparison(
                row=title,
                column=column,
                values=tuple(100 * record.metrics[name] for record in records),
                interval=(100 * found.low, 100 * found.high),
            )
        )
    return cells


def simo_on(data: str, neighbours: int, profile: str, **changes: Any) -> Recipe:
    """A SiMo run with changed training settings as an experiment's recipe."""
    recipe = named_recipe("simo", profile)
    training = replace(recipe.training, **changes)
    # the warm-up keeps its share of a training of another length
    warmup = recipe.optimiser.warmup_epochs * training.epochs / recipe.training.epochs
    optimiser = replace(recipe.optimiser, warmup_epochs=warmup)
    recipe = replace(recipe, training=training, optimiser=optimiser)
    return {"data": data, "neighbours": neighbours, "training": recipe_to_dict(recipe)}


DEMO = Experiment(
    name="demo",
    title="SiMo with 16 negatives on the embedded photos",
    profiles={
        "smoke": [simo_on("groceries", 20, "demo", epochs=4, num_queries=64, diagnose_every=5)],
        "desk": [simo_on("groceries", 20, "demo")],
    },
    seeds={"smoke": (0,), "desk": (0, 1, 2)},
    size=training_steps,
    run=pretrain,
    compare=compare,
)

CIFAR_SIMO = Experiment(
    name="cifar10-simo",
    title="SiMo with 16 negatives on CIFAR-10, a few epochs",
    profiles={
        "smoke": [simo_on("groceries", 20, "desk", epochs=2, num_queries=128, diagnose_every=5)],
        "desk": [simo_on("cifar10", 200, "desk", epochs=10, probe_every=2)],
    },
    seeds={"smoke": (0,), "desk": (0,)},
    size=training_steps,
    run=pretrain,
    compare=compare,
)
