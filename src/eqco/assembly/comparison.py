"""An encoder beside raw pixels and random weights, by one protocol on the same images."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eqco.assembly.parts import build_evaluated_encoder
from eqco.assembly.weights import Weights, pixels, random_like
from eqco.data import Source, Split
from eqco.data.sources import evaluation_split
from eqco.encoders import Encoder, Precision
from eqco.evaluation.features import Features, extract_features
from eqco.evaluation.finetuning import FineTuning, fine_tune, first_layers, labelled_share
from eqco.evaluation.knn import knn_predictions, usual_neighbours
from eqco.evaluation.linear import LinearProtocol, train_linear
from eqco.evaluation.probe import probe_accuracy
from eqco.evaluation.scores import Interval, share_interval, top_k
from eqco.runtime.errors import InputError

__all__ = ["Evaluation", "Row", "Stage", "compare_encoder"]

ProtocolName = Literal["knn", "probe", "linear", "finetune"]
# title and units of a stretch of work -> a context that gives a function to call with units done
Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]

PIXEL_BYTES = 2**30  # the most that the train images' pixels may take as features


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: the encoder, the protocol and the accuracy."""

    name: str
    by: str
    scores: Tensor  # (N, C)
    top1: Interval
    top5: Interval | None  # None with five classes or fewer
    details: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The table, and what pictures are made of: the encoder's features."""

    weights: Weights
    protocol: ProtocolName
    data: str
    settings: str  # for people
    rows: tuple[Row, ...]  # the encoder itself is the last
    left_out: str  # the row that is missing and why; empty if none is
    train: Split
    test: Split
    train_features: Features
    test_features: Features


def compare_encoder(
    weights: Weights,
    source: Source,
    *,
    protocol: ProtocolName = "knn",
    neighbours: int | None = None,
    temperature: float = 0.07,
    linear: LinearProtocol | None = None,
    fine_tuning: FineTuning | None = None,
    test: str | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    precision: Precision = "float32",
    checkpoint: Path | None = None,
    overwrite: bool = False,
    stage: Stage = lambda title, total: nullcontext(lambda count: None),
) -> Evaluation:
    """What the encoder's features tell of the classes, beside pixels and untrained weights.

    By `linear` the references are measured by the probe, and so is the encoder once more: a
    classifier trained by SGD with a rate made for ResNets is no fair measure of pixels. By
    `finetune` the reference is the same network from untrained weights, trained alike.

    Args:
        neighbours: k of kNN; None: `usual_neighbours`.
        temperature: τ of kNN.
        linear: what `linear` does.
        fine_tuning: what `finetune` does.
        test: the split to test on; None: test, or val where there is none.
        seed: of random weights, of the probe's held-out part, of linear training.
        precision: that networks compute in.
        checkpoint: where linear training or fine-tuning leaves what it can resume from, beside it
            what is of the reference; `overwrite` begins anew where that is of another training.
        stage: shows the progress of each stretch of work.
    """
    train_split, test_split = labelled_splits(source, test)
    if source.channels != weights.in_channels:
        raise InputError(
            f"{source.name} has images of {source.channels} bands, and {weights.name} takes "
            f"{weights.in_channels}. Give images like those it was trained on."
        )
    if protocol == "finetune":
        return compare_fine_tuned(
            weights,
            source.name,
            train_split,
            test_split,
            fine_tuning or FineTuning(),
            seed=seed,
            device=device,
            workers=workers,
            precision=precision,
            checkpoint=checkpoint,
            overwrite=overwrite,
            stage=stage,
        )
    side = pixel_side(len(train_split), weights.image_size, source.channels)
    encoders = [(f"raw pixels, {side}×{side}", pixels(side, source.channels))]
    if weights.architecture is not None:
        encoders.append((f"random weights, {weights.architecture}", random_like(weights, seed)))
    encoders.append((Path(weights.name).name, weights))
    rows = []
    details: dict[str, Any]
    k = usual_neighbours(len(train_split)) if neighbours is None else neighbours
    for name, encoder in encoders:
        backbone = encoder.backbone.to(device)
        with stage(f"features of {name}", len(train_split) + len(test_split)) as advance:
            train_features, test_features = (
                extract_features(
                    backbone,
                    split,
                    size=encoder.image_size,
                    device=device,
                    workers=workers,
                    precision=precision,
                    advance=advance,
                )
                for split in (train_split, test_split)
            )
        with stage(f"{'kNN' if protocol == 'knn' else 'probe'} on {name}", 0):
            if protocol == "knn":
                scores = knn_predictions(
                    test_features, train_features, neighbours=k, temperature=temperature
                )
                # a class that no neighbour votes for is not among the first five
                scores = scores.masked_fill(scores == 0, -torch.inf)
                how, details = "kNN", {}
            else:
                found = probe_accuracy(test_features, train_features, seed=seed)
                scores, how = found.scores, "probe"
                details = {"penalty": found.penalty, "converged": found.converged}
        rows.append(make_row(name, how, scores, test_features.labels, details))
    if protocol == "linear":
        assert linear is not None
        steps = linear.epochs * (len(train_split) // linear.batch_size)
        with stage(f"linear classifier, {linear.epochs} epochs", steps) as advance:
            trained = train_linear(
                weights.backbone,
                train_split,
                test_split,
                protocol=linear,
                size=weights.image_size,
                seed=seed,
                device=device,
                workers=workers,
                precision=precision,
                checkpoint=checkpoint,
                overwrite=overwrite,
                advance=advance,
            )
        proof = {"backbone_before": trained.before, "backbone_after": trained.after}
        details = {**proof, "losses": trained.losses}
        rows.append(make_row(name, "linear", trained.scores, trained.labels, details))
    return Evaluation(
        weights=weights,
        protocol=protocol,
        data=source.name,
        settings=describe_protocol(protocol, k, temperature, linear),
        rows=tuple(rows),
        left_out=missing_row_note(weights),
        train=train_split,
        test=test_split,
        train_features=train_features,
        test_features=test_features,
    )


def compare_fine_tuned(
    weights: Weights,
    data: str,
    train: Split,
    test: Split,
    protocol: FineTuning,
    *,
    seed: int,
    device: torch.device | str,
    workers: int,
    precision: Precision,
    checkpoint: Path | None,
    overwrite: bool,
    stage: Stage,
) -> Evaluation:
    """The fine-tuned encoder beside the same network fine-tuned from untrained weights."""
    encoder = weights.encoder or Encoder(weights.backbone, nn.Identity())
    first_layers(encoder.head, protocol.head_layers)  # refused before anything is computed
    labelled = len(labelled_share(train, protocol.label_share, seed))
    settled = protocol.settled(labelled)
    assert settled.epochs is not None
    assert settled.batch_size is not None
    encoders = [(Path(weights.name).name, encoder, checkpoint)]
    if weights.architecture is not None:
        beside = None
        if checkpoint is not None:
            beside = checkpoint.with_name(f"{checkpoint.stem}-random{checkpoint.suffix}")
        name = f"random weights, {weights.architecture}"
        encoders.insert(0, (name, untrained_twin(weights, seed), beside))
    rows = []
    for name, each, place in encoders:
        steps = settled.epochs * (labelled // settled.batch_size)
        with stage(f"fine-tuning {name}, {settled.epochs} epochs", steps) as advance:
            tuned = fine_tune(
                each,
                train,
                test,
                protocol=protocol,
                size=weights.image_size,
                seed=seed,
                device=device,
                workers=workers,
                precision=precision,
                checkpoint=place,
                overwrite=overwrite,
                advance=advance,
            )
        details = {"losses": tuned.losses, "labelled_images": tuned.num_labelled}
        rows.append(make_row(name, "fine-tuning", tuned.scores, tuned.labels, details))
    with stage(f"features of {name}, fine-tuned", len(train) + len(test)) as advance:
        train_features, test_features = (
            extract_features(
                tuned.encoder.features,
                split,
                size=weights.image_size,
                device=device,
                workers=workers,
                precision=precision,
                advance=advance,
            )
            for split in (train, test)
        )
    kept = f", from layer {settled.head_layers} of the head" if settled.head_layers else ""
    return Evaluation(
        weights=weights,
        protocol="finetune",
        data=data,
        settings=f"Fine-tuning{kept}: {tuned.num_labelled} labelled images "
        f"({100 * settled.label_share:g} % of each class), SGD, rate "
        f"{settled.rate(0, 1):g}, weight decay {settled.weight_decay:g}, {settled.epochs} epochs, "
        f"batches of {settled.batch_size}.",
        rows=tuple(rows),
        left_out=missing_row_note(weights),
        train=train,
        test=test,
        train_features=train_features,
        test_features=test_features,
    )


def untrained_twin(weights: Weights, seed: int) -> Encoder:
    """The same network untrained: drawn as a run's recipe draws it, else from the seed.

    What a run was given to begin with (`--init`) was trained elsewhere, and is left out.
    """
    if weights.recipe is not None and weights.encoder is not None:
        return build_evaluated_encoder(weights.recipe, in_channels=weights.in_channels)
    return Encoder(random_like(weights, seed).backbone, nn.Identity())


def describe_protocol(
    protocol: ProtocolName, neighbours: int, temperature: float, linear: LinearProtocol | None
) -> str:
    """The settings of the protocol, for people."""
    if protocol == "knn":
        return f"kNN: k = {neighbours}, τ = {temperature:g}."
    if protocol == "probe" or linear is None:
        return "Probe: penalty chosen on a fifth of train."
    drops = " and ".join(f"{round(drop * linear.epochs)}" for drop in linear.drops)
    falling = "along a cosine" if linear.schedule == "cosine" else f"with drops after {drops}"
    return (
        f"Linear: SGD, rate {linear.learning_rate:g}, weight decay {linear.weight_decay:g}, "
        f"{linear.epochs} epochs {falling}, batches of {linear.batch_size}."
    )


def missing_row_note(weights: Weights) -> str:
    """Why there is no row of random weights; empty if there is one.

    >>> missing_row_note(pixels(8))
    'There is no row of random weights: pixels have none.'
    """
    if weights.architecture is not None:
        return ""
    why = f"{weights.name} is not a network by name, so that no untrained one can be built like it"
    if weights.origin == "pixels":
        why = "pixels have none"
    return f"There is no row of random weights: {why}."


def make_row(name: str, how: str, scores: Tensor, labels: Tensor, details: dict[str, Any]) -> Row:
    """A line of the table."""
    top5 = top_k(scores, labels, 5) if scores.shape[1] > 5 else None
    top1 = top_k(scores, labels, 1)
    return Row(name=name, by=how, scores=scores, top1=top1, top5=top5, details=details)


def labelled_splits(source: Source, test: str | None) -> tuple[Split, Split]:
    """What to train on and what to test on; refused before anything is computed."""
    labelled = [name for name, split in source.splits.items() if split.labels is not None]
    usual = evaluation_split(labelled) or evaluation_split(source.splits)
    if "train" not in source or (test is None and usual is None):
        raise no_labels_error(source, f"it has {' and '.join(source.splits)} alone")
    splits = source["train"], source[test or usual or "test"]
    for split in splits:
        if split.labels is None:
            raise no_labels_error(source, f"its split {split.name!r} has no labels")
    share_interval(0, len(splits[1]))  # refuses what has no interval
    return splits


def no_labels_error(source: Source, why: str) -> InputError:
    """The error of images that tell no classes to test by."""
    return InputError(
        f"{source.name} cannot be tested on: {why}, and a test needs labelled images both to "
        f"compare with and to ask about. Give a folder with train/CLASS/… and test/CLASS/…, or "
        f"with a folder for each class, of which a tenth is tested on."
    )


def pixel_side(images: int, image_size: int, channels: int = 3) -> int:
    """The side at which pixels are compared: 32, or less where images are small or too many.

    >>> pixel_side(50_000, 224), pixel_side(50_000, 28), pixel_side(1_281_167, 224)
    (32, 28, 8)
    """
    side = min(32, image_size)
    while side > 2 and images * channels * side * side * 4 > PIXEL_BYTES:
        side //= 2
    return side
