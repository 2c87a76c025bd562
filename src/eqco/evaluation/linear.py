"""The paper's linear protocol: a classifier on a frozen backbone, trained on random crops."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from eqco.data import Split
from eqco.encoders import Precision, autocast_to, feature_dim_of
from eqco.evaluation.classifier import (
    ClassifierTraining,
    check_splits,
    first_classifier,
    train_classifier,
)
from eqco.evaluation.features import extract_features, fingerprint
from eqco.runtime.errors import InputError
from eqco.training.schedules import learning_rate_factor

__all__ = ["LINEAR_PROTOCOLS", "LinearProtocol", "LinearResult", "train_linear"]


@dataclass(frozen=True, kw_only=True)
class LinearProtocol:
    """SGD with momentum 0.9; the rate falls along a cosine, or after shares of the epochs.

    The learning rate belongs to batches of 256 and is not scaled.

    Args:
        drops: shares of the epochs, after each of which the rate is multiplied with `drop_factor`.
        schedule: steps: by the drops; cosine: to 0, without drops.
    """

    learning_rate: float
    weight_decay: float
    epochs: int
    drops: tuple[float, ...] = ()
    drop_factor: float = 0.1
    schedule: Literal["steps", "cosine"] = "steps"
    batch_size: int = 256

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise InputError(f"epochs={self.epochs}; train for at least 1.")
        if self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size}; it must be at least 1.")

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate at a step, counted from 0."""
        total = self.epochs * steps_per_epoch
        ends = {round(drop * self.epochs) * steps_per_epoch for drop in self.drops}
        factor = learning_rate_factor(
            step,
            schedule=self.schedule,
            total_steps=total,
            # in a training too short for a share of its own, a drop is left out
            drops=tuple(sorted(end for end in ends if 0 < end < total)),
            drop_factor=self.drop_factor,
        )
        return self.learning_rate * factor


# Paper: MoCo's 100 epochs; the authors' release stops at 90, after the same drops. The others are
# those of each system's own code; docs/paper_notes.md has what differs.
LINEAR_PROTOCOLS = {
    "moco": LinearProtocol(learning_rate=30.0, weight_decay=0.0, epochs=100, drops=(0.6, 0.8)),
    "simclr": LinearProtocol(
        learning_rate=0.1, weight_decay=1e-6, epochs=90, drops=(60 / 90, 80 / 90)
    ),
    "pycontrast": LinearProtocol(
        learning_rate=30.0,
        weight_decay=0.0,
        epochs=60,
        drops=(1 / 2, 2 / 3, 5 / 6),
        drop_factor=0.2,
    ),
    "mocov3": LinearProtocol(learning_rate=0.1, weight_decay=0.0, epochs=90, schedule="cosine"),
    "mocov3-vit": LinearProtocol(learning_rate=3.0, weight_decay=0.0, epochs=90, schedule="cosine"),
    "byol": LinearProtocol(learning_rate=0.2, weight_decay=0.0, epochs=80, schedule="cosine"),
    "swav": LinearProtocol(learning_rate=0.3, weight_decay=1e-6, epochs=100, schedule="cosine"),
}


@dataclass(frozen=True, kw_only=True)
class LinearResult:
    """What the classifier makes of the test images, and the proof that it alone was trained."""

    scores: Tensor  # (N, C)
    labels: Tensor  # (N,)
    losses: list[float]  # mean of each epoch
    before: str  # fingerprint of the backbone before training
    after: str


def train_linear(
    backbone: nn.Module,
    train: Split,
    test: Split,
    *,
    protocol: LinearProtocol = LINEAR_PROTOCOLS["moco"],
    size: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    precision: Precision = "float32",
    checkpoint: Path | None = None,
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> LinearResult:
    """Train a linear classifier on what the frozen backbone makes of random crops, and test it.

    Args:
        backbone: images to features (N, feature_dim); in eval mode throughout, without gradient.
        train: labelled images; seen by random resized crop and flip.
        test: labelled images; seen at their centre, once, when training is over.
        size: pixels along each side.
        seed: of the order, the crops and the first weights.
        precision: that the backbone computes in; the classifier is float32 in any case.
        checkpoint: written after every epoch and at a signal, after which the process ends as the
            signal asks; if it is there, training resumes from it.
        overwrite: begin anew if the checkpoint is of another training, which else is refused.
        advance: takes the number of steps done since it was called last.
    """
    check_splits(train, test, protocol.batch_size)
    backbone = backbone.to(device).eval()
    before = fingerprint(backbone)
    classifier = first_classifier(feature_dim_of(backbone), len(train.classes), seed).to(device)

    def logits(images: Tensor) -> Tensor:
        with torch.no_grad(), autocast_to(precision, images.device):
            features = backbone(images)
        scores: Tensor = classifier(features.float())
        return scores

    losses = train_classifier(
        classifier,
        logits,
        train,
        ClassifierTraining(
            kind="linear",
            about={"protocol": asdict(protocol), "backbone": before, "precision": precision},
            epochs=protocol.epochs,
            batch_size=protocol.batch_size,
            rate=protocol.rate,
            weight_decay=protocol.weight_decay,
        ),
        size=size,
        seed=seed,
        device=device,
        workers=workers,
        checkpoint=checkpoint,
        overwrite=overwrite,
        advance=advance,
    )
    after = fingerprint(backbone)
    if after != before:
        raise RuntimeError(f"the backbone changed from {before} to {after} while it was frozen")
    seen = extract_features(
        backbone, test, size=size, device=device, workers=workers, precision=precision
    )
    with torch.no_grad():
        scores = classifier(seen.values.to(device)).cpu()
    return LinearResult(
        scores=scores, labels=seen.labels, losses=losses, before=before, after=after
    )
