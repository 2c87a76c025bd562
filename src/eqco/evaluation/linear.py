"""The paper's linear protocol: a classifier on a frozen backbone, trained on random crops."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.data import Split, StepLoader, ViewSpec, find_pipeline
from eqco.data.images import MemoryImages
from eqco.encoders import Precision, autocast_to, feature_dim_of
from eqco.evaluation.features import (
    extract_features,
    fingerprint,
    refuse_unknown_classes,
    require_labels,
)
from eqco.runtime.checkpointing import checkpointing, stop_by
from eqco.runtime.checkpoints import read_checkpoint, write_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for
from eqco.training.optimisers import load_optimiser, sgd
from eqco.training.schedules import learning_rate_factor

__all__ = ["LINEAR_PROTOCOLS", "LinearProtocol", "LinearResult", "images_hash", "train_linear"]


@dataclass(frozen=True, kw_only=True)
class LinearProtocol:
    """SGD with momentum 0.9; the rate falls to a tenth after each share of the epochs in `drops`.

    The learning rate belongs to batches of 256 and is not scaled.
    """

    learning_rate: float
    weight_decay: float
    epochs: int
    drops: tuple[float, ...]
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
            schedule="steps",
            total_steps=total,
            # in a training too short for a share of its own, a drop is left out
            drops=tuple(sorted(end for end in ends if 0 < end < total)),
        )
        return self.learning_rate * factor


# Paper: MoCo's 100 epochs; the authors' release stops at 90, after the same drops.
LINEAR_PROTOCOLS = {
    "moco": LinearProtocol(learning_rate=30.0, weight_decay=0.0, epochs=100, drops=(0.6, 0.8)),
    "simclr": LinearProtocol(
        learning_rate=0.1, weight_decay=1e-6, epochs=90, drops=(60 / 90, 80 / 90)
    ),
}


@dataclass(frozen=True, kw_only=True)
class LinearResult:
    """What the classifier makes of the test images, and the proof that it alone was trained."""

    scores: Tensor  # (N, C)
    labels: Tensor  # (N,)
    losses: list[float]  # mean of each epoch
    before: str  # fingerprint of the backbone before training
    after: str


def images_hash(split: Split) -> str:
    """A hash of the name and label of every image, in their order, and of pixels in memory."""
    assert split.labels is not None
    digest = hashlib.sha256()
    if isinstance(split.images, MemoryImages):  # which have no names but their numbers
        for part in split.images.pixels.split(4096):
            digest.update(part.contiguous().numpy().tobytes())
    for number, label in enumerate(split.labels.tolist()):
        name = split.images.name(number).encode(errors="surrogateescape")
        digest.update(name + b"\0%d\0" % label)
    return digest.hexdigest()[:16]


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
    for split in (train, test):
        require_labels(split)
    assert train.labels is not None
    assert test.labels is not None
    refuse_unknown_classes(test.labels, train.labels, test.classes)
    if protocol.batch_size > len(train):
        raise InputError(
            f"batch_size={protocol.batch_size}, but there are {len(train)} training images. "
            f"Choose --batch-size of at most {len(train)}."
        )
    backbone = backbone.to(device).eval()
    before = fingerprint(backbone)
    steps = StepLoader(
        train,
        [ViewSpec(find_pipeline("linear"), size)],
        num_queries=protocol.batch_size,
        seed=seed,
        workers=workers,
        device=device,
    )
    classifier = first_classifier(feature_dim_of(backbone), len(train.classes), seed).to(device)
    optimiser = sgd(
        classifier.parameters(), protocol.learning_rate, weight_decay=protocol.weight_decay
    )
    about = {"protocol": asdict(protocol), "seed": seed, "size": size, "backbone": before}
    about |= {"images": images_hash(train), "classes": list(train.classes), "precision": precision}
    losses: list[float] = []
    loss_sum = torch.zeros((), device=device)  # of the epoch so far
    first, epoch = 0, steps.steps_per_epoch
    if checkpoint is not None and checkpoint.exists():
        state = read_state(checkpoint, about, overwrite=overwrite)
        if state is not None:
            classifier.load_state_dict(state["classifier"])
            load_optimiser(optimiser, state["optimiser"])
            loss_sum += state["loss_sum"].to(device)
            losses, first = state["losses"], state["step"]
            advance(first)

    def save(step: int) -> None:
        assert checkpoint is not None
        state = {"linear": about, "step": step, "losses": losses, "loss_sum": loss_sum}
        parts = {"classifier": classifier.state_dict(), "optimiser": optimiser.state_dict()}
        write_checkpoint(checkpoint, state | parts)

    last = protocol.epochs * epoch
    assert train.labels is not None  # `check_splits` has seen to it
    labels = train.labels.to(device)
    with checkpointing(
        None if checkpoint is None else save, total_steps=last, every=(epoch,)
    ) as checkpoints:
        for step, (batch,) in enumerate(steps.iterate(first, last), first):
            with torch.no_grad(), autocast_to(precision, batch.index.device):
                features = backbone(batch.views[0])
            features = features.float()
            for group in optimiser.param_groups:
                group["lr"] = protocol.rate(step, epoch)
            loss = F.cross_entropy(classifier(features), labels[batch.index])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            loss_sum += loss.detach()
            advance(1)
            if (step + 1) % epoch == 0:
                losses.append(float(loss_sum) / epoch)
                if not math.isfinite(losses[-1]):
                    raise InputError(
                        f"the loss is {losses[-1]} with learning_rate={protocol.learning_rate:g}: "
                        f"the features are not finite, or so large that the classifier ran away. "
                        f"Lower --learning-rate."
                    )
                loss_sum.zero_()
            if checkpoints.after_step(step + 1):
                break
    if checkpoints.stopped_by is not None:
        stop_by(checkpoints.stopped_by)
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


def first_classifier(feature_dim: int, num_classes: int, seed: int) -> nn.Linear:
    """A linear layer with small weights and no bias to begin with, as in MoCo."""
    classifier = nn.Linear(feature_dim, num_classes)
    with torch.no_grad():
        classifier.weight.normal_(0, 0.01, generator=generator_for("classifier", seed))
        classifier.bias.zero_()
    return classifier


def read_state(path: Path, about: dict[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
    """A checkpoint of the same training; None: of another, which `overwrite` allows to replace."""
    state = read_checkpoint(path)
    # as JSON, which knows no tuples
    theirs, ours = (json.dumps(each, default=str) for each in (state.get("linear"), about))
    if theirs == ours and "step" in state:
        return state
    if overwrite:
        return None
    raise InputError(
        f"{path} belongs to another linear training (other weights, data, settings or version of "
        f"eqco). Pass --overwrite to begin anew, or choose another --out."
    )
