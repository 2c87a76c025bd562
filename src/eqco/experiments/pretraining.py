"""Runs that train an encoder and ask what it is worth, beside raw pixels and random weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eqco.assembly import build_encoder, resume, train
from eqco.data import Source, open_source
from eqco.evaluation import Features, extract_features, knn_accuracy
from eqco.experiments.experiment import Comparison, Experiment, Outcome, Recipe, Site
from eqco.recipes import Recipe as TrainingRecipe
from eqco.recipes import named_recipe, recipe_from_dict, recipe_to_dict
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, recipe_hash
from eqco.runtime.run_directory import RunDirectory
from eqco.training.loop import StepReport

__all__ = ["CIFAR_SIMO", "DEMO", "pretrain"]

REFERENCES = {"pixels": "raw pixels", "random": "random weights", "trained": "trained"}


def pretrain(recipe: Recipe, seed: int, site: Site) -> Outcome:
    """Train as `recipe["training"]` says, and compare by kNN on the test split.

    What the run leaves in `site.work` is gone on with if it was stopped, and kept when it is done.
    """
    data = recipe["data"]
    source = open_source(str(site.folders.get(data, data)))
    training = recipe_from_dict(recipe["training"])
    training = replace(training, training=replace(training.training, seed=seed))
    place = site.work / f"{data}-{recipe_hash(recipe)}-{seed}"
    outcome = run_or_resume(training, source, place, site)
    if outcome.stopped_by is not None:
        raise InputError(f"stopped by {outcome.stopped_by}; run the same command to go on.")
    (trained,) = outcome.probe.values()
    lines = RunDirectory(place).read_metrics()
    looked = [line for line in lines if "information" in line]
    return Outcome(
        metrics={
            **reference_accuracies(training, source, recipe["neighbours"]),
            "trained": trained,
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
        },
    )


def run_or_resume(training: TrainingRecipe, source: Source, place: Path, site: Site) -> Any:
    """Train from the beginning, or go on where an earlier call was stopped."""
    seen = 0

    def show(report: StepReport) -> None:
        nonlocal seen
        site.advance(report.step - seen)
        seen = report.step

    if RunDirectory(place).last.exists():
        return resume(place, source, show=show)
    return train(training, source, out=place, show=show)


def reference_accuracies(
    training: TrainingRecipe, source: Source, neighbours: int
) -> dict[str, float]:
    """What pixels and the encoder's first weights reach: what training must beat."""
    untrained = build_encoder(training).eval()
    size = training.data.image_size
    found = {}
    for name, encode in (("pixels", lambda x: x.flatten(1)), ("random", untrained.features)):
        seen: list[Features] = [
            extract_features(encode, source[split], size=size) for split in ("train", "test")
        ]
        found[name] = knn_accuracy(seen[1], seen[0], neighbours=neighbours)
    return found


def compare(records: Sequence[Record]) -> list[Comparison]:
    """kNN accuracy in percent, side by side."""
    first = records[0].recipe
    column = f"kNN (k={first['neighbours']}), % on {first['data']} test"
    return [
        Comparison(
            row=title,
            column=column,
            values=tuple(100 * record.metrics[name] for record in records),
        )
        for name, title in REFERENCES.items()
    ]


def simo_on(data: str, neighbours: int, profile: str, **changes: Any) -> Recipe:
    """A SiMo run with changed training settings as an experiment's recipe."""
    recipe = named_recipe("simo", profile)
    training = replace(recipe.training, **changes)
    # the warm-up keeps its share of a training of another length
    warmup = recipe.optimiser.warmup_epochs * training.epochs / recipe.training.epochs
    optimiser = replace(recipe.optimiser, warmup_epochs=warmup)
    recipe = replace(recipe, training=training, optimiser=optimiser)
    return {"data": data, "neighbours": neighbours, "training": recipe_to_dict(recipe)}


def units(recipe: Recipe) -> int:
    """Steps, as far as they are known before the data is opened: epochs on 50,000 images."""
    settings = recipe["training"]["training"]
    images = {"groceries": 675}.get(recipe["data"], 50_000)
    return int(settings["epochs"] * (images // settings["num_queries"]))


DEMO = Experiment(
    name="demo",
    title="SiMo with 16 negatives on the embedded photos",
    profiles={
        "smoke": [simo_on("groceries", 20, "demo", epochs=4, num_queries=64, diagnose_every=5)],
        "desk": [simo_on("groceries", 20, "demo")],
    },
    seeds={"smoke": (0,), "desk": (0, 1, 2)},
    size=units,
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
    size=units,
    run=pretrain,
    compare=compare,
)
