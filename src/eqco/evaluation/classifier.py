"""The loop that linear training and fine-tuning share: labelled crops, SGD, exact resumption."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.data import Split, StepLoader, ViewSpec, find_pipeline
from eqco.data.images import MemoryImages
from eqco.evaluation.features import refuse_unknown_classes, require_labels
from eqco.runtime.checkpointing import checkpointing, stop_by
from eqco.runtime.checkpoints import read_checkpoint, write_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for
from eqco.training.optimisers import load_optimiser, sgd

__all__ = ["ClassifierTraining", "first_classifier", "images_hash", "train_classifier"]

# what a training is called where its checkpoint is refused, by the key it is kept under
KINDS = {"linear": "linear training", "finetune": "fine-tuning"}


@dataclass(frozen=True, kw_only=True)
class ClassifierTraining:
    """What the two protocols do differently.

    Args:
        kind: linear or finetune.
        about: what decides the outcome, as plain values: a checkpoint of another is not used.
        epochs: passes over the labelled images.
        batch_size: images in a step.
        rate: the learning rate at a step, for so many steps per epoch.
        weight_decay: of all that is trained.
    """

    kind: str
    about: dict[str, Any]
    epochs: int
    batch_size: int
    rate: Callable[[int, int], float]
    weight_decay: float


def check_splits(train: Split, test: Split, batch_size: int) -> None:
    """Refuse images that cannot be learned from, or tested on."""
    for split in (train, test):
        require_labels(split)
    assert train.labels is not None
    assert test.labels is not None
    refuse_unknown_classes(test.labels, train.labels, test.classes)
    if batch_size > len(train):
        raise InputError(
            f"batch_size={batch_size}, but there are {len(train)} training images. "
            f"Choose --batch-size of at most {len(train)}."
        )


def train_classifier(
    trained: nn.Module,
    logits: Callable[[Tensor], Tensor],
    train: Split,
    how: ClassifierTraining,
    *,
    size: int,
    seed: int,
    device: torch.device | str,
    workers: int,
    checkpoint: Path | None,
    overwrite: bool,
    advance: Callable[[int], None],
) -> list[float]:
    """Train by cross-entropy on random crops of labelled images; returns each epoch's mean loss.

    Args:
        trained: what is trained, on the device.
        logits: scores of images, through `trained`.
        train: labelled images, seen by random resized crop and flip.
        checkpoint: written after every epoch and at a signal, after which the process ends as the
            signal asks; if it is there, training resumes from it.
        overwrite: begin anew if the checkpoint is of another training, which else is refused.
        advance: takes the number of steps done since it was called last.
    """
    device = torch.device(device)
    steps = StepLoader(
        train,
        [ViewSpec(find_pipeline("linear"), size)],
        num_queries=how.batch_size,
        seed=seed,
        workers=workers,
        device=device,
    )
    epoch = steps.steps_per_epoch
    first_rate = how.rate(0, epoch)
    optimiser = sgd(trained.parameters(), first_rate, weight_decay=how.weight_decay)
    about = how.about | {"seed": seed, "size": size, "images": images_hash(train)}
    about |= {"classes": list(train.classes)}
    losses: list[float] = []
    loss_sum = torch.zeros((), device=device)  # of the epoch so far
    first, last = 0, how.epochs * epoch
    assert train.labels is not None  # `check_splits` has seen to it
    labels = train.labels.to(device)

    def save(step: int) -> None:
        assert checkpoint is not None
        state = {how.kind: about, "step": step, "losses": losses, "loss_sum": loss_sum}
        parts = {"classifier": trained.state_dict(), "optimiser": optimiser.state_dict()}
        write_checkpoint(checkpoint, state | parts | {"random": random_states(device)})

    on_gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):  # layers that draw by themselves, as dropout does
        torch.manual_seed(generator_for("classifier training", seed).initial_seed())
        if checkpoint is not None and checkpoint.exists():
            state = read_state(checkpoint, how.kind, about, overwrite=overwrite)
            if state is not None:
                trained.load_state_dict(state["classifier"])
                load_optimiser(optimiser, state["optimiser"])
                set_random_states(state["random"], device)
                loss_sum += state["loss_sum"].to(device)
                losses, first = state["losses"], state["step"]
                advance(first)
        with checkpointing(
            None if checkpoint is None else save, total_steps=last, every=(epoch,)
        ) as checkpoints:
            for step, (batch,) in enumerate(steps.iterate(first, last), first):
                for group in optimiser.param_groups:
                    group["lr"] = how.rate(step, epoch)
                loss = F.cross_entropy(logits(batch.views[0]), labels[batch.index])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                loss_sum += loss.detach()
                advance(1)
                if (step + 1) % epoch == 0:
                    losses.append(float(loss_sum) / epoch)
                    if not math.isfinite(losses[-1]):
                        raise InputError(
                            f"the loss is {losses[-1]} with learning_rate={first_rate:g}: the "
                            f"features are not finite, or so large that the classifier ran away. "
                            f"Lower --learning-rate."
                        )
                    loss_sum.zero_()
                if checkpoints.after_step(step + 1):
                    break
    if checkpoints.stopped_by is not None:
        stop_by(checkpoints.stopped_by)
    return losses


def random_states(device: torch.device) -> list[Tensor]:
    """Of the CPU, and of a GPU that computes."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def set_random_states(states: list[Tensor], device: torch.device) -> None:
    """Put them back."""
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


def first_classifier(feature_dim: int, num_classes: int, seed: int) -> nn.Linear:
    """A linear layer with small weights and no bias to begin with, as in MoCo."""
    classifier = nn.Linear(feature_dim, num_classes)
    with torch.no_grad():
        classifier.weight.normal_(0, 0.01, generator=generator_for("classifier", seed))
        classifier.bias.zero_()
    return classifier


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


def read_state(
    path: Path, kind: str, about: dict[str, Any], *, overwrite: bool
) -> dict[str, Any] | None:
    """A checkpoint of the same training; None: of another, which `overwrite` allows to replace."""
    state = read_checkpoint(path)
    # as JSON, which knows no tuples
    theirs, ours = (json.dumps(each, default=str) for each in (state.get(kind), about))
    if theirs == ours and {"step", "random"} <= state.keys():
        return state
    if overwrite:
        return None
    raise InputError(
        f"{path} belongs to another {KINDS[kind]} (other weights, data, settings or version of "
        f"eqco). Pass --overwrite to begin anew, or choose another --out."
    )
