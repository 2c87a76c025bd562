"""The truth about a training, on validation images: beside pixels, colours and random weights."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from eqco.assembly.comparison import Stage, pixel_side
from eqco.assembly.parts import training_split, validation_splits
from eqco.assembly.weights import Weights, random_like
from eqco.data import Source, Split
from eqco.data.decoding import UnreadableImageError
from eqco.data.pipelines import MOCO_V2
from eqco.data.stored import OnUnreadable
from eqco.encoders import ColourHistogram, Pixels
from eqco.evaluation.features import Features, extract_features, extract_several
from eqco.evaluation.knn import knn_predictions, usual_neighbours
from eqco.evaluation.probe import probe_accuracy
from eqco.evaluation.scores import ENOUGH, Interval, hits, share_interval

__all__ = ["AssessedRow", "Assessment", "assess", "sample_features"]

SAMPLE = 2000  # images among which neighbours are looked for where there are no labels


@dataclass(frozen=True, kw_only=True)
class AssessedRow:
    """One encoder or baseline: accuracies, and which validation images are right."""

    name: str
    knn: Interval
    probe: Interval
    knn_hits: Tensor
    probe_hits: Tensor


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """All rows, the trained encoder last, and what pictures are made of."""

    rows: tuple[AssessedRow, ...]
    train: Split
    val: Split
    train_features: Features
    val_features: Features

    @property
    def not_beaten(self) -> tuple[tuple[str, str], ...]:
        """(baseline, measure) pairs that the encoder is not clearly ahead of.

        Clearly: the difference on the same images is above 0 with 95 % confidence.
        """
        encoder = self.rows[-1]
        pairs = []
        for row in self.rows[:-1]:
            for measure in ("knn", "probe"):
                ours, theirs = (getattr(each, f"{measure}_hits") for each in (encoder, row))
                if not is_clearly_above(ours, theirs):
                    pairs.append((row.name, measure))
        return tuple(pairs)

    @property
    def undecided(self) -> tuple[tuple[str, str], ...]:
        """Those of `not_beaten` that so few images cannot decide: one that is right on all of them
        would not be clearly ahead either, and the encoder is not clearly behind.
        """
        encoder = self.rows[-1]
        rows = {row.name: row for row in self.rows}
        pairs = []
        for name, measure in self.not_beaten:
            ours, theirs = (getattr(each, f"{measure}_hits") for each in (encoder, rows[name]))
            best = torch.ones_like(theirs)
            too_few = len(theirs) < ENOUGH and not is_clearly_above(best, theirs)
            if too_few and not is_clearly_above(theirs, ours):
                pairs.append((name, measure))
        return tuple(pairs)


def is_clearly_above(ours: Tensor, theirs: Tensor) -> bool:
    """Whether one is right on more of the same images than the other, beyond 95 % of chance.

    The exact sign test, with two sides, of the images on which just one of them is right.

    >>> right = torch.arange(100) < 60
    >>> is_clearly_above(right, torch.arange(100) < 40), is_clearly_above(right, right)
    (True, False)
    >>> is_clearly_above(right[:5], ~right[:5]), is_clearly_above(right[:6], ~right[:6])
    (False, True)
    """
    better, worse = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    count = better + worse
    at_least = torch.arange(better, count + 1, dtype=torch.float64)
    whole = torch.tensor(count + 1.0, dtype=torch.float64)
    ways = whole.lgamma() - (at_least + 1).lgamma() - (count - at_least + 1).lgamma()
    chance = float((ways - count * math.log(2)).logsumexp(0).exp())
    return chance <= 0.025


def assess(
    weights: Weights,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
    on_unreadable: OnUnreadable = "error",
    stage: Stage = lambda title, total: nullcontext(lambda count: None),
) -> Assessment | None:
    """kNN and probe on validation images; None where too few have labels to ask about."""
    splits = validation_splits(source)
    if splits is None or len(splits[1]) < 2:
        return None
    train, val = splits
    side = pixel_side(len(train), weights.image_size, source.channels)
    encoders: list[tuple[str, nn.Module, int]] = [
        (f"raw pixels, {side}×{side}", Pixels(side, source.channels), side),
        ("colour histogram", ColourHistogram(*MOCO_V2.normalisation(source.channels)), side),
    ]
    if weights.architecture is not None:
        untrained = random_like(weights).backbone
        encoders.append((f"random weights, {weights.architecture}", untrained, weights.image_size))
    own_name = f"this encoder ({Path(weights.name).resolve().name})"
    encoders.append((own_name, weights.backbone, weights.image_size))
    title = f"features of the encoder and {len(encoders) - 1} others"
    with stage(title, len(train) + len(val)) as advance:
        of_train, of_val = (
            extract_several(
                [(encoder.to(device), size) for _, encoder, size in encoders],
                split,
                device=device,
                workers=workers,
                on_unreadable=on_unreadable,
                advance=advance,
            )
            for split in (train, val)
        )
    rows = []
    for (name, _, _), train_features, val_features in zip(encoders, of_train, of_val, strict=True):
        with stage(f"accuracy of {name}", 0):
            rows.append(assessed_row(name, train_features, val_features))
    return Assessment(
        rows=tuple(rows),
        train=train,
        val=val,
        train_features=train_features,
        val_features=val_features,
    )


def sample_features(
    weights: Weights,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
    on_unreadable: OnUnreadable = "error",
    stage: Stage = lambda title, total: nullcontext(lambda count: None),
) -> tuple[Split, Tensor]:
    """Some of the training images, spread over all, and what the encoder makes of them, (N, D).

    For a look at neighbours, which needs no labels. An image that cannot be read is left out.
    """
    sample = training_split(source).spread(SAMPLE)
    if on_unreadable == "skip":
        sample = sample.subset(
            [place for place in range(len(sample)) if is_readable(sample, place)]
        )
    # one class for all, since features are those of labelled images elsewhere
    alike = replace(sample, labels=torch.zeros(len(sample), dtype=torch.long), classes=("",))
    with stage("features for a look at neighbours", len(sample)) as advance:
        found = extract_features(
            weights.backbone.to(device),
            alike,
            size=weights.image_size,
            device=device,
            workers=workers,
            advance=advance,
        )
    return sample, found.values


def is_readable(split: Split, number: int) -> bool:
    """Whether an image can be decoded."""
    try:
        split.images.read(number)
    except UnreadableImageError:
        return False
    return True


def assessed_row(name: str, train: Features, val: Features) -> AssessedRow:
    """Both accuracies of one encoder."""
    neighbours = usual_neighbours(len(train.values))
    scores = knn_predictions(val, train, neighbours=neighbours)
    knn_hits = hits(scores, val.labels)
    probe_hits = hits(probe_accuracy(val, train).scores, val.labels)
    return AssessedRow(
        name=name,
        knn=share_interval(int(knn_hits.sum()), len(knn_hits)),
        probe=share_interval(int(probe_hits.sum()), len(probe_hits)),
        knn_hits=knn_hits,
        probe_hits=probe_hits,
    )
