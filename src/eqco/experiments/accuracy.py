"""What a trained encoder is worth: a linear classifier first, nearest neighbours second."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from eqco.assembly import build_encoder, load
from eqco.data import Source
from eqco.data.sources import evaluation_split
from eqco.encoders import Pixels
from eqco.evaluation import Features, extract_features, knn_accuracy
from eqco.evaluation.linear import LinearProtocol, train_linear
from eqco.evaluation.probe import probe_accuracy
from eqco.experiments.experiment import Recipe, Site
from eqco.experiments.training_runs import TrainedRun
from eqco.recipes import Recipe as TrainingRecipe
from eqco.recipes import recipe_to_dict
from eqco.runtime.records import recipe_hash
from eqco.runtime.run_directory import read_json, write_json

__all__ = ["accuracies", "reference_accuracies"]


def accuracies(run: TrainedRun, recipe: Recipe, site: Site) -> dict[str, float]:
    """Accuracies of the trained encoder between 0 and 1, beside raw pixels and first weights.

    What was measured is kept beside the training, for other experiments that ask for it.
    """
    protocol = recipe["accuracy"]
    kept = run.directory.path / f"{measurement_name(recipe)}.json"
    if not kept.exists():
        measure = linear_protocol if protocol == "linear" else probe
        write_json(kept, {protocol: measure(run, recipe, site)})
    found = {**read_json(kept), "knn": run.knn(recipe["neighbours"])}
    if protocol == "linear":  # pixels of ImageNet are too many for a classifier of their own
        return found
    return found | reference_accuracies(run, recipe["neighbours"], site)


def measurement_name(recipe: Recipe) -> str:
    """The files of an accuracy are named after all that it depends on beside the training."""
    if recipe["accuracy"] == "probe":  # has no settings
        return "probe"
    return f"linear-{recipe_hash(recipe['linear'])}"


def probe(run: TrainedRun, recipe: Recipe, site: Site) -> float:
    """A logistic regression on features of the images as they are."""
    encoder = load(run.directory.path).to(site.device)
    train, test = features_of(encoder.features, run.source, run.training, site.device)
    return probe_accuracy(test, train).accuracy


def linear_protocol(run: TrainedRun, recipe: Recipe, site: Site) -> float:
    """The paper's protocol, with the settings of `recipe["linear"]`; gone on with after a stop."""
    settings = {**recipe["linear"], "drops": tuple(recipe["linear"]["drops"])}
    result = train_linear(
        load(run.directory.path).backbone,
        run.source["train"],
        run.source[tested_split(run.source)],
        protocol=LinearProtocol(**settings),
        size=run.training.data.image_size,
        seed=run.training.training.seed,
        device=site.device,
        workers=run.training.data.workers,
        checkpoint=run.directory.path / f"{measurement_name(recipe)}.pt",
    )
    return float((result.scores.argmax(dim=1) == result.labels).double().mean())


def tested_split(source: Source) -> str:
    """The split that accuracies are of: ImageNet has no test labels."""
    return evaluation_split(source.splits) or "test"


def features_of(
    encode: Callable[[Tensor], Tensor], source: Source, training: TrainingRecipe, device: str
) -> tuple[Features, Features]:
    """Features of the training and of the test images."""
    train, test = (
        extract_features(
            encode,
            source[split],
            size=training.data.image_size,
            device=device,
            workers=training.data.workers,
        )
        for split in ("train", tested_split(source))
    )
    return train, test


def reference_accuracies(run: TrainedRun, neighbours: int, site: Site) -> dict[str, float]:
    """What pixels and the encoder's first weights reach: what training must beat.

    Kept in the site's folder, since all trainings of one network, data set and seed share them.
    """
    kept = reference_file(run, neighbours, site.work)
    if kept.exists():
        return dict(read_json(kept))
    untrained = build_encoder(run.training).eval().to(site.device)
    pixels = Pixels(run.training.data.image_size)
    found = {}
    for name, encode in (("pixels", pixels), ("random", untrained.features)):
        train, test = features_of(encode, run.source, run.training, site.device)
        found[f"{name}_probe"] = probe_accuracy(test, train).accuracy
        found[f"{name}_knn"] = knn_accuracy(test, train, neighbours=neighbours)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, found)
    return found


def reference_file(run: TrainedRun, neighbours: int, work: Path) -> Path:
    """The file of the references: named after all that they depend on."""
    settings = recipe_to_dict(run.training)
    named = recipe_hash(
        {
            "data": run.source.name,
            "image_size": settings["data"]["image_size"],
            "encoder": settings["encoder"],
            "seed": run.training.training.seed,
            "neighbours": neighbours,
        }
    )
    return work / f"references-{named}.json"
