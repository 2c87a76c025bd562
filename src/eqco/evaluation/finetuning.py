"""Fine-tuning: the whole network, trained on with a share of the labels."""

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from eqco.data import Split
from eqco.encoders import (
    Encoder,
    Precision,
    autocast_to,
    choose_precision,
    in_channels_of,
    unset_gradients,
)
from eqco.encoders.colours import HeadPair
from eqco.evaluation.classifier import (
    ClassifierTraining,
    check_splits,
    first_classifier,
    train_classifier,
)
from eqco.evaluation.features import extract_features, fingerprint, require_labels
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for
from eqco.training.schedules import learning_rate_factor

__all__ = [
    "FineTuned",
    "FineTuning",
    "choose_tuning_precision",
    "fine_tune",
    "first_layers",
    "labelled_share",
]

LARGEST_BATCH = 256
FEW_LABELS = 0.01


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """SGD with momentum 0.9 on all weights, the rate falling to 0 along a cosine.

    As SimCLR does it, without weight decay, by random crops and flips. The learning rate is for
    batches of 256 and follows the size of others.

    Args:
        label_share: share of the training images of each class that are learned from.
        head_layers: how many linear layers of the projection head are kept, with what follows
            each: 1 in SimCLR v2, where few labels gain by it.
        epochs: passes over those images; None: 60, or 30 with more than 1 % of the labels.
        batch_size: None: 256, or all where there are fewer.
    """

    label_share: float = 1.0
    head_layers: int = 0
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 0.05
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.label_share <= 1:
            raise InputError(
                f"--labels {self.label_share:g}; the share of labels is more than 0 and at most 1, "
                f"such as 0.01 for one in a hundred."
            )
        if self.epochs is not None and self.epochs < 1:
            raise InputError(f"epochs={self.epochs}; train for at least 1.")
        if self.batch_size is not None and self.batch_size < 2:
            raise InputError(f"batch_size={self.batch_size}; batch norm needs at least 2.")

    def settled(self, num_images: int) -> "FineTuning":
        """With epochs and batches for so many labelled images.

        >>> found = FineTuning(label_share=0.1).settled(90)
        >>> found.epochs, found.batch_size
        (30, 90)
        """
        epochs = 60 if self.label_share <= FEW_LABELS else 30
        size = min(LARGEST_BATCH, num_images)
        return replace(self, epochs=self.epochs or epochs, batch_size=self.batch_size or size)

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate at a step, counted from 0, of settings that are settled."""
        assert self.epochs is not None
        assert self.batch_size is not None
        factor = learning_rate_factor(
            step, schedule="cosine", total_steps=self.epochs * steps_per_epoch
        )
        return self.learning_rate * self.batch_size / 256 * factor


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """What the fine-tuned network makes of the test images."""

    scores: Tensor  # (N, C)
    labels: Tensor  # (N,)
    losses: list[float]  # mean of each epoch
    num_labelled: int  # images that were learned from
    encoder: Encoder  # as it is now, in eval mode


def labelled_share(train: Split, share: float, seed: int) -> Split:
    """A share of the images of each class, rounded; a class that gets none is refused by name.

    A smaller share of the same seed is part of a larger one.
    """
    require_labels(train)
    assert train.labels is not None
    if share == 1:
        return train
    labels, counts = train.labels.unique(return_counts=True)
    fewest, label = min(zip(counts.tolist(), labels.tolist(), strict=True))
    if rounded_share(share, fewest) == 0:
        raise InputError(
            f"--labels {share:g} of the {fewest} training images of class "
            f"{train.classes[label]!r} is none. Give at least {smallest_share(fewest):g}."
        )
    chosen = []
    for label in labels.tolist():
        members = (train.labels == label).nonzero()[:, 0]
        count = rounded_share(share, len(members))
        generator = generator_for("labels", seed, label)
        order = torch.randperm(len(members), generator=generator, device="cpu")
        chosen.append(members[order[:count]])
    return train.subset(torch.cat(chosen).sort().values.tolist())


def rounded_share(share: float, num_images: int) -> int:
    """How many of so many images a share is, halves rounded up.

    >>> rounded_share(0.1, 4), rounded_share(0.1, 5)
    (0, 1)
    """
    return math.floor(share * num_images + 0.5)


def smallest_share(num_images: int) -> float:
    """The smallest share of so many images that is one of them, two digits of it, rounded up.

    >>> smallest_share(7), smallest_share(50)
    (0.072, 0.01)
    """
    halves = 2 * num_images
    scale = 10 ** (len(str(halves)) + 1)
    return math.ceil(scale / halves) / scale


def first_layers(head: nn.Module, count: int) -> nn.Sequential:
    """The first linear layers of a head, each with what follows it up to the next.

    >>> from eqco.encoders import mlp_head
    >>> first_layers(mlp_head(8, 4), 1)
    Sequential(
      (0): Linear(in_features=8, out_features=8, bias=True)
      (1): ReLU()
    )
    """
    if count and isinstance(head, HeadPair):
        raise InputError(
            f"--head-layers {count}, but this head is two side by side, for luminance and for "
            f"colour, of which layers cannot be kept. Leave --head-layers out."
        )
    layers = list(head) if isinstance(head, nn.Sequential) else [head]
    starts = [place for place, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    if count and not 0 < count < len(starts):
        most = len(starts) - 1
        last = ", of which the last is for the contrast alone" if starts else ""
        remedy = f"Give 0 to {most}" if most > 0 else "Leave --head-layers out"
        raise InputError(
            f"--head-layers {count}, but this head has {len(starts)} linear "
            f"layer{'s' * (len(starts) != 1)}{last}. {remedy}."
        )
    return nn.Sequential(*layers[: starts[count]] if count else ())


def choose_tuning_precision(
    asked: Literal["auto"] | Precision, backbone: nn.Module, size: int, device: torch.device
) -> Precision:
    """The precision to train a backbone in; bfloat16 is refused where gradients are wrong.

    auto is float32 there.

    >>> halving = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1))
    >>> choose_tuning_precision("bfloat16", halving, 2, torch.device("cpu"))
    'bfloat16'
    """
    precision = choose_precision(asked, device)
    if precision != "bfloat16" or device.type != "cpu":
        return precision
    names = unset_gradients(backbone, size, in_channels_of(backbone))
    if names and asked == "auto":
        return "float32"
    if names:
        raise InputError(
            f"--precision bfloat16, but in images of {size} pixels the convolution {names[0]!r} of "
            f"{type(backbone).__name__} sees less than its stride, and on CPUs torch does not set "
            f"its gradient then. Give --precision float32, or a larger --image-size."
        )
    return precision


def fine_tune(
    encoder: Encoder,
    train: Split,
    test: Split,
    *,
    protocol: FineTuning,
    size: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    precision: Precision = "float32",
    checkpoint: Path | None = None,
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> FineTuned:
    """Train a copy of an encoder with a classifier on it, and test both.

    Args:
        encoder: backbone and head, of which `protocol.head_layers` are kept; it is not changed.
        train: labelled images, of which a share is learned from, by random resized crop and flip.
        test: labelled images; seen at their centre, once, when training is over.
        size: pixels along each side.
        seed: of the choice of labels, the order, the crops and the classifier's first weights.
        precision: that the encoder computes in, checked by `choose_tuning_precision`; weights and
            classifier are float32 in any case.
        checkpoint, overwrite, advance: as in `train_classifier`.
    """
    labelled = labelled_share(train, protocol.label_share, seed)
    protocol = protocol.settled(len(labelled))
    assert protocol.epochs is not None
    assert protocol.batch_size is not None
    check_splits(labelled, test, protocol.batch_size)
    before = fingerprint(encoder)
    kept = first_layers(encoder.head, protocol.head_layers)
    tuned = copy.deepcopy(Encoder(encoder.backbone, kept)).requires_grad_(True).to(device).train()
    precision = choose_tuning_precision(precision, tuned.backbone, size, torch.device(device))
    classifier = first_classifier(tuned.embedding_dim, len(train.classes), seed).to(device)

    def logits(images: Tensor) -> Tensor:
        with autocast_to(precision, images.device):
            features = tuned(images)
        scores: Tensor = classifier(features.float())
        return scores

    losses = train_classifier(
        nn.ModuleDict({"encoder": tuned, "classifier": classifier}),
        logits,
        labelled,
        ClassifierTraining(
            kind="finetune",
            about={"protocol": asdict(protocol), "encoder": before, "precision": precision},
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
    tuned.eval()
    seen = extract_features(
        tuned, test, size=size, device=device, workers=workers, precision=precision
    )
    with torch.no_grad():
        scores = classifier(seen.values.to(device)).cpu()
    return FineTuned(
        scores=scores,
        labels=seen.labels,
        losses=losses,
        num_labelled=len(labelled),
        encoder=tuned,
    )
