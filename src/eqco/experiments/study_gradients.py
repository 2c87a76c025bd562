"""A study of ours: what few negatives do to the gradient, its direction and its noise.

One SiMo is trained with all negatives of the batch, without EqCo. At its last weights, batches of
it are scored again against K negatives drawn for each query, many times, under the losses of
study-few-negatives; each draw gives the gradient of all weights. Beside it stands the gradient of
the same loss with all negatives of the batch. The mean over draws has a length and a direction: a
wrong length can be mended by the learning rate, a wrong direction is bias. What draws differ by is
noise; so is what batches differ by with all negatives, which every training has.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from eqco.assembly import build_components
from eqco.contrast import Contrast, RunningNormaliser, contrastive_loss
from eqco.experiments.coordinates import Coordinates, Loss, Place
from eqco.experiments.experiment import Comparison, Experiment, RunContext, RunResult
from eqco.experiments.fig2 import with_negatives
from eqco.experiments.grid import SEEDS, by_run
from eqco.experiments.studies import REMEDIES
from eqco.experiments.tasks import TrainingTask, simo
from eqco.experiments.training_runs import train_once, training_steps
from eqco.recipes import recipe_to_dict
from eqco.recipes.profiles import FEW_IMAGES, PAPER, SMOKE, Scale
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record

__all__ = ["STUDY_GRADIENTS", "GradientMoments"]

VISITS = 50  # before a remembered normaliser is as it will stay
FURTHER = {  # beside the cosine between the mean gradient and that with all negatives
    "noise": "Noise of the draws over the length of the mean gradient",
    "length": "Length of the mean gradient over that with all negatives",
}
BATCHES = "batches, all negatives"


@dataclass(frozen=True, kw_only=True)
class FewNegativesTask:
    """One training, and how many batches of it, and draws of K negatives, to measure."""

    training: TrainingTask
    counts: tuple[int, ...]
    batches: int
    draws: int

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        return {
            "data": self.training.data,
            "training": recipe_to_dict(self.training.recipe),
            "counts": list(self.counts),
            "batches": self.batches,
            "draws": self.draws,
        }


class GradientMoments:
    """Length of the mean of gradients, its product with another, and their variance.

    All are free of bias: the mean of n draws is longer than it should be by the nth part of the
    variance, which is taken off.

    >>> moments = GradientMoments(torch.tensor([1.0, 0.0]))
    >>> for noise in (-1.0, 1.0):
    ...     moments.add(torch.tensor([2.0, noise]))
    >>> moments.variance, moments.squared_length, moments.product
    (2.0, 3.0, 2.0)
    """

    def __init__(self, reference: Tensor):
        self.reference = reference
        self.sum = torch.zeros_like(reference)
        self.squares = 0.0
        self.count = 0

    def add(self, gradient: Tensor) -> None:
        """One more draw."""
        self.sum += gradient
        self.squares += float(gradient.square().sum())
        self.count += 1

    @property
    def variance(self) -> float:
        """The mean squared distance of a draw from the mean of all draws that there could be."""
        mean = float((self.sum / self.count).square().sum())
        return (self.squares / self.count - mean) * self.count / (self.count - 1)

    @property
    def squared_length(self) -> float:
        """Of the mean."""
        return float((self.sum / self.count).square().sum()) - self.variance / self.count

    @property
    def product(self) -> float:
        """Of the mean with the reference."""
        return float((self.sum / self.count) @ self.reference)


def measure(task: FewNegativesTask, seed: int, context: RunContext) -> RunResult:
    """Train, or find it trained, and measure at the last weights."""
    run = train_once(task.training, seed, context)
    components = build_components(run.training, run.source, device=context.device)
    state = read_checkpoint(run.directory.last)
    components.method.load_state_dict(state["method"])
    method = components.method.train()
    weights = [each for each in method.parameters() if each.requires_grad]
    temperature = components.objective.temperature
    losses = {metric_name(loss, kept): (alpha, kept) for loss, alpha, kept in REMEDIES}
    found: dict[str, list[GradientMoments]] = {}
    whole: dict[str, GradientMoments] = {}
    for number in range(task.batches):
        step = int(state["step"]) + number
        (batch,) = components.loader.micro_batches(step)
        (contrast,) = method(batch, step).contrasts
        for name, (alpha, kept) in losses.items():
            reference = gradient_of(contrast, None, alpha, temperature, weights)
            whole.setdefault(name, GradientMoments(reference)).add(reference)
            for count in task.counts:
                moments = GradientMoments(reference)
                normaliser = normaliser_for(contrast, alpha, kept, temperature)
                for drawn in draws_of(contrast, count, task.draws, seed, step, normaliser):
                    moments.add(gradient_of(drawn, normaliser, alpha, temperature, weights))
                found.setdefault(f"{name} K={count}", []).append(moments)
        context.advance(1)
    metrics: dict[str, float] = {}
    for name, several in found.items():
        metrics |= {f"{name} {what}": value for what, value in summary(several).items()}
    for name, over_batches in whole.items():
        noise = math.sqrt(over_batches.variance * over_batches.count / over_batches.squares)
        metrics[f"{name} {BATCHES} noise"] = noise
    return RunResult(metrics=metrics, curves={"trained_by": run.code}, earlier=run.earlier)


def metric_name(loss: Loss, kept: float | None) -> str:
    """A loss within a record.

    >>> metric_name("sogclr", 0.9), metric_name("eqco", None)
    ('sogclr 0.9', 'eqco')
    """
    return loss if kept is None else f"{loss} {kept:g}"


def summary(several: Sequence[GradientMoments]) -> dict[str, float]:
    """Direction, noise and length over batches."""
    length = fmean(each.squared_length for each in several)
    if length <= 0:
        raise InputError(
            f"{sum(each.count for each in several)} draws of the gradient differ so much that "
            f"their mean cannot be told from zero. Measure more draws."
        )
    reference = fmean(float(each.reference.square().sum()) for each in several)
    return {
        "direction": fmean(each.product for each in several) / math.sqrt(length * reference),
        "noise": math.sqrt(fmean(each.variance for each in several) / length),
        "length": math.sqrt(length / reference),
    }


def normaliser_for(
    contrast: Contrast, alpha: float | None, kept: float | None, temperature: float
) -> RunningNormaliser | None:
    """The memory of one batch's images, empty; None for losses that have none."""
    if kept is None:
        return None
    return RunningNormaliser(
        len(contrast.queries), temperature=temperature, alpha=alpha, decay=kept
    )


def draws_of(
    contrast: Contrast,
    count: int,
    draws: int,
    seed: int,
    step: int,
    normaliser: RunningNormaliser | None,
) -> Iterator[Contrast]:
    """The batch with `count` negatives for each query, drawn anew each time.

    A memory has been filled by earlier draws when the first one comes.
    """
    earlier = 0 if normaliser is None else VISITS
    for turn in range(earlier + draws):
        drawn = with_negatives(contrast, count, seed, 10_000 * step + turn)
        if turn >= earlier:
            yield drawn
        elif normaliser is not None:
            with torch.no_grad():
                index = torch.arange(len(drawn.queries), device=drawn.queries.device)
                normaliser(drawn.queries, drawn.positives, drawn.negatives, index=index)


def gradient_of(
    contrast: Contrast,
    normaliser: RunningNormaliser | None,
    alpha: float | None,
    temperature: float,
    weights: Sequence[Tensor],
) -> Tensor:
    """The gradient of all weights, one after another, in float64."""
    queries = contrast.queries.detach().requires_grad_()
    if normaliser is None:
        loss = contrastive_loss(
            queries, contrast.positives, contrast.negatives, temperature=temperature, alpha=alpha
        )
    else:
        index = torch.arange(len(queries), device=queries.device)
        loss = normaliser(queries, contrast.positives, contrast.negatives, index=index)
    (at_queries,) = torch.autograd.grad(loss, queries)
    found = torch.autograd.grad(contrast.queries, weights, at_queries, retain_graph=True)
    return torch.cat([each.flatten() for each in found]).double().cpu()


def table(records: Sequence[Record], quantity: str) -> list[Comparison]:
    """One row for each loss, one column for each K."""
    if not records:
        return []
    (several,) = by_run(records).values()
    columns: dict[str, Place] = {
        f"K={count}": Coordinates(num_negatives=count) for count in records[0].recipe["counts"]
    }
    if quantity == "noise":
        columns[BATCHES] = f"{BATCHES}, over their root mean square"
    return [
        Comparison.of(
            Coordinates(loss=loss, alpha=alpha, history_kept=kept),
            column,
            {
                seed: record.metrics[f"{metric_name(loss, kept)} {name} {quantity}"]
                for seed, record in several.items()
            },
        )
        for loss, alpha, kept in REMEDIES
        for name, column in columns.items()
    ]


def tasks(
    scale: Scale, counts: tuple[int, ...], *, batches: int, draws: int
) -> list[FewNegativesTask]:
    """One plain training with all negatives of the batch."""
    training = simo(scale, count=None, alpha=None)
    return [FewNegativesTask(training=training, counts=counts, batches=batches, draws=draws)]


STUDY_GRADIENTS = Experiment(
    name="study-gradients",
    title="Bias and noise of the gradient with few negatives, at fixed weights",
    profiles={
        "smoke": tasks(SMOKE, (4,), batches=2, draws=8),
        "few-images": tasks(FEW_IMAGES, (4, 16, 64), batches=16, draws=16),
        "paper": tasks(PAPER, (4, 16, 64), batches=16, draws=16),
    },
    seeds=SEEDS,
    size=lambda task: training_steps(task.training) + task.batches,
    run=measure,
    compare=lambda records: table(records, "direction"),
    further=lambda records: (
        {title: table(records, each) for each, title in FURTHER.items()} if records else {}
    ),
    training=lambda task: task.training,
)
