"""How good a trained encoder is: a linear classifier first, nearest neighbours second."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from eqco.assembly import build_evaluated_encoder, load
from eqco.data import Source
from eqco.data.sources import evaluation_split
from eqco.encoders import Pixels
from eqco.evaluation import Features, extract_features, knn_accuracy
from eqco.evaluation.linear import LinearProtocol, train_linear
from eqco.evaluation.probe import probe_accuracy
from eqco.experiments.experiment import RunContext
from eqco.experiments.tasks import TrainingTask
from eqco.experiments.training_runs import TrainedRun
from eqco.recipes import Recipe, recipe_to_dict
from eqco.runtime.records import recipe_hash
from eqco.runtime.run_directory import read_json, write_json

__all__ = ["accuracies"]


def accuracies(run: TrainedRun, task: TrainingTask, context: RunContext) -> dict[str, float]:
    """Accuracies of the trained encoder between 0 and 1, beside raw pixels and first weights.

    What was measured is stored beside the training, for other experiments that need it.
    """
    if isinstance(task.accuracy, LinearProtocol):
        # pixels of ImageNet are too many for a classifier of their own
        knn = frozen_accuracies(run, task.neighbours, context, probe=False)
        return knn | {"linear": linear_accuracy(run, task.accuracy, context)}
    found = frozen_accuracies(run, task.neighbours, context, probe=task.accuracy == "probe")
    return found | reference_accuracies(run, task.neighbours, context)


def frozen_accuracies(
    run: TrainedRun, neighbours: int, context: RunContext, *, probe: bool
) -> dict[str, float]:
    """kNN and, if asked for, a logistic regression on features of the images as they are."""
    path = run.directory.path / f"accuracy-{neighbours}{'-probe' * probe}.json"
    if not path.exists():
        encoder = load(run.directory.path).to(context.device)
        train, test = features_of(encoder.features, run.source, run.training, context.device)
        found = {"knn": knn_accuracy(test, train, neighbours=neighbours)}
        if probe:
            found["probe"] = probe_accuracy(test, train).accuracy
        write_json(path, found)
    return dict(read_json(path))


def linear_accuracy(run: TrainedRun, protocol: LinearProtocol, context: RunContext) -> float:
    """Top-1 by the paper's protocol, resumed after a stop."""
    path = run.directory.path / f"{protocol_name(protocol)}.json"
    if not path.exists():
        result = train_linear(
            load(run.directory.path).backbone,
            run.source["train"],
            run.source[tested_split(run.source)],
            protocol=protocol,
            size=run.training.data.image_size,
            seed=run.training.training.seed,
            device=context.device,
            workers=run.training.data.workers,
            checkpoint=path.with_suffix(".pt"),
        )
        accuracy = (result.scores.argmax(dim=1) == result.labels).double().mean()
        write_json(path, {"linear": float(accuracy)})
    return float(read_json(path)["linear"])


def protocol_name(protocol: LinearProtocol) -> str:
    """The files of an accuracy are named after all that it depends on beside the training."""
    return f"linear-{recipe_hash({**asdict(protocol), 'drops': list(protocol.drops)})}"


def tested_split(source: Source) -> str:
    """The split that accuracies are of: ImageNet has no test labels."""
    return evaluation_split(source.splits) or "test"


def features_of(
    encode: Callable[[Tensor], Tensor], source: Source, training: Recipe, device: str
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


def reference_accuracies(run: TrainedRun, neighbours: int, context: RunContext) -> dict[str, float]:
    """What pixels and the encoder's first weights reach: what training must beat.

    Kept in the context's folder, since all trainings of one network, data set and seed share them.
    """
    path = reference_file(run, neighbours, context.work)
    if path.exists():
        return dict(read_json(path))
    untrained = build_evaluated_encoder(run.training).eval().to(context.device)
    pixels = Pixels(run.training.data.image_size)
    found = {}
    for name, encode in (("pixels", pixels), ("random", untrained.features)):
        train, test = features_of(encode, run.source, run.training, context.device)
        found[f"{name}_probe"] = probe_accuracy(test, train).accuracy
        found[f"{name}_knn"] = knn_accuracy(test, train, neighbours=neighbours)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)
    return found


def reference_file(run: TrainedRun, neighbours: int, work: Path) -> Path:
    """The file of the references: named after all that they depend on."""
    settings = recipe_to_dict(run.training)
    encoder = settings["encoder"]
    encoder["backbone"] = run.training.method.evaluated_backbone(encoder["backbone"])
    named = recipe_hash(
        {
            "data": run.source.name,
            "image_size": settings["data"]["image_size"],
            "encoder": encoder,
            "seed": run.training.training.seed,
            "neighbours": neighbours,
        }
    )
    return work / f"references-{named}.json"
