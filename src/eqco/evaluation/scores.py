"""Accuracies of test images from their scores, with intervals, class by class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from eqco.runtime.errors import InputError

__all__ = [
    "ClassScore",
    "Interval",
    "class_scores",
    "confusion",
    "hits",
    "interval_of_mean",
    "share_interval",
    "top_k",
]

NORMAL = 1.959964  # that a normal variable stays within with probability 95 %
ENOUGH = 100  # test images; differences of accuracy between fewer say little
# that Student's t stays within with this probability, for 2, 3, … values; for more than there are
# here the last, which is a little too wide
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)


@dataclass(frozen=True)
class Interval:
    """A share of the test images, and between what it lies over all such images (95 %)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """In percent."""
        return f"{100 * self.value:.1f} ({100 * self.low:.1f}–{100 * self.high:.1f})"


@dataclass(frozen=True)
class ClassScore:
    """How one class fares; `mistaken_for` is the class its images are given most often instead."""

    name: str
    images: int
    accuracy: float
    mistaken_for: str
    mistakes: int


def hits(scores: Tensor, labels: Tensor, k: int = 1) -> Tensor:
    """Whether the class is among the k with the highest scores, (N,).

    Equal scores count for the class with the lower number, as a vote without a winner must. A class
    whose score is −∞, which nothing speaks for, is never among them.
    """
    if scores.isnan().any():
        raise InputError(
            f"{int(scores.isnan().any(dim=1).sum())} of {len(scores)} images have scores that are "
            f"NaN; nothing can be said of them. Look for NaN in the features or the training."
        )
    own = scores.gather(1, labels[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > own) | ((scores == own) & before)
    return (ahead.sum(dim=1) < k) & (own[:, 0] > -torch.inf)


def top_k(scores: Tensor, labels: Tensor, k: int = 1) -> Interval:
    """Share of images whose class is among the k highest scores, with its interval.

    >>> scores = torch.tensor([[3.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    >>> top_k(scores, torch.tensor([0, 1]), k=1).value, top_k(scores, torch.tensor([0, 1]), 2).value
    (0.5, 1.0)
    """
    return share_interval(int(hits(scores, labels, k).sum()), len(labels))


def share_interval(right: int, images: int) -> Interval:
    r"""The share p = right/images with its 95 % interval over test images (Wilson's).

    .. math::
        \frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}, \qquad z = 1.96

    It holds the shares under which p is no surprise, so that it is no point where all images are
    right or none is. It covers the choice of test images alone: not the training, whose seeds
    differ.

    >>> str(share_interval(380, 1000)), str(share_interval(0, 6))
    ('38.0 (35.0–41.0)', '0.0 (0.0–39.0)')
    """
    if images < 2:
        raise InputError(
            f"{images} test image{'s' * (images != 1)}; an accuracy with an interval needs at "
            f"least 2, and says something from about {ENOUGH}."
        )
    p, n, z = right / images, images, NORMAL
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((centre + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    return Interval(p, 0.0 if right == 0 else low, 1.0 if right == images else high)  # no rounding


def confusion(scores: Tensor, labels: Tensor) -> Tensor:
    """How many images of class i (row) are taken for class j (column), (C, C).

    >>> confusion(torch.eye(2)[[0, 1, 1]], torch.tensor([0, 0, 1]))
    tensor([[1, 1],
            [0, 1]])
    """
    classes = scores.shape[1]
    pairs = labels * classes + scores.argmax(dim=1)
    return pairs.bincount(minlength=classes * classes).view(classes, classes)


def class_scores(table: Tensor, classes: Sequence[str]) -> list[ClassScore]:
    """A line for each class that has test images, from the table of confusions."""
    wrong = table - table.diag().diag()
    mistakes, others = (each.tolist() for each in wrong.max(dim=1))
    images, right = table.sum(dim=1).tolist(), table.diag().tolist()
    return [
        ClassScore(
            name=name,
            images=images[n],
            accuracy=right[n] / images[n],
            mistaken_for=classes[others[n]] if mistakes[n] else "",
            mistakes=mistakes[n],
        )
        for n, name in enumerate(classes)
        if images[n]
    ]


def interval_of_mean(values: Sequence[float]) -> tuple[float, float]:
    """Where the mean of so many values would lie with ever more of them (95 %), if they are normal:
    Student's interval.

    >>> [round(end, 2) for end in interval_of_mean([1.0, 2.0, 3.0])]  # 2 ± 4.303 · 1/√3
    [-0.48, 4.48]
    """
    if len(values) < 2:
        raise InputError(f"{len(values)} value has no interval; measure at least 2.")
    mean = fmean(values)
    freedom = min(len(values) - 1, len(STUDENT))
    half = STUDENT[freedom - 1] * stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half
