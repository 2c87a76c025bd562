"""The truth about a training, on validation images: beside pixels, colours and random weights."""

import math
from bisect import bisect_left
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

__all__ = ["AssessedRow", "Assessment", "Undecided", "assess", "sample_features"]

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
class Undecided:
    """A baseline and a measure by which so few images cannot tell the encoder from it."""

    pair: tuple[str, str]
    winnable: bool
    """One right on all images would be clearly ahead, and the encoder is ahead, but not clearly."""
    images: int | None
    """About how many would make that lead clear, the encoder's or that of one right on all; None
    where the baseline is right on all."""


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
        return tuple(
            (row.name, measure)
            for row in self.rows[:-1]
            for measure in ("knn", "probe")
            if not is_clearly_above(*self.hits(row, measure))
        )

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """Those of `not_beaten` that so few images cannot decide."""
        rows = {row.name: row for row in self.rows}
        found = (
            find_undecided(pair, *self.hits(rows[pair[0]], pair[1])) for pair in self.not_beaten
        )
        return tuple(each for each in found if each is not None)

    def hits(self, row: AssessedRow, measure: str) -> tuple[Tensor, Tensor]:
        """Which images are right by the encoder, and by a row."""
        ours, theirs = (getattr(each, f"{measure}_hits") for each in (self.rows[-1], row))
        return ours, theirs


def find_undecided(pair: tuple[str, str], ours: Tensor, theirs: Tensor) -> Undecided | None:
    """What so few images cannot decide about an encoder that is not clearly ahead: whether it is
    better, where one right on all of them would not be clearly ahead either and it is not clearly
    behind; or whether its lead is more than chance.
    """
    count = len(theirs)
    if not is_clearly_above(torch.ones_like(theirs), theirs):
        if is_clearly_above(theirs, ours):
            return None
        missed = int((~theirs).sum())
        return Undecided(pair=pair, winnable=False, images=images_needed(missed, 0, count))
    better, worse = numbers_better(ours, theirs)
    # of more images, a lead that is not clear is a small one, and training may enlarge it
    if count >= ENOUGH or better <= worse:
        return None
    return Undecided(pair=pair, winnable=True, images=images_needed(better, worse, count))


def images_needed(better: int, worse: int, count: int) -> int | None:
    """About how many images would make a lead clear that stays as large a share of them.

    >>> images_needed(4, 0, 100), images_needed(8, 3, 20)  # 6 : 0 and 20 : 8 are clear
    (150, 50)
    """
    if better <= worse:
        return None
    # 500: what one image of less than `ENOUGH` needs, 50 : 49, is below 400
    sizes = range(count, 500 * count)
    place = bisect_left(
        sizes, True, key=lambda size: is_clear(better * size // count, -(-worse * size // count))
    )
    return sizes[place]


def numbers_better(ours: Tensor, theirs: Tensor) -> tuple[int, int]:
    """On how many images just the first is right, and on how many just the second."""
    return int((ours & ~theirs).sum()), int((theirs & ~ours).sum())


def is_clearly_above(ours: Tensor, theirs: Tensor) -> bool:
    """Whether one is right on more of the same images than the other, beyond 95 % of chance.

    >>> right = torch.arange(100) < 60
    >>> is_clearly_above(right, torch.arange(100) < 40), is_clearly_above(right, right)
    (True, False)
    >>> is_clearly_above(right[:5], ~right[:5]), is_clearly_above(right[:6], ~right[:6])
    (False, True)
    """
    return is_clear(*numbers_better(ours, theirs))


def is_clear(better: int, worse: int) -> bool:
    """The exact sign test, with two sides, of the images on which just one of two is right.

    >>> is_clear(5, 0), is_clear(6, 0), is_clear(8, 1)  # chances of 1/32, 1/64 and 10/512
    (False, True, True)
    """
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
