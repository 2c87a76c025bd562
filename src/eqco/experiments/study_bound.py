"""A study of ours: where f̂ begins to exceed the truth, and by how much.

K, the negatives per query, goes from 2 to 512 and α from K to 65536, on correlated Gaussians
whose log-ratio is known (Eq. 3, 4). At α = K the value is a guaranteed bound, and the true
log-ratio is the best critic. Beyond, it is an estimate, and a multiple of the true log-ratio has a
lower loss: both are shown, beside log((1+α)/(1+K)), which no critic's excess passes.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from eqco.experiments.coordinates import group_by
from eqco.experiments.experiment import Comparison, Experiment, RunContext, RunResult
from eqco.runtime.records import Record, as_read
from eqco.runtime.seeds import random_source
from eqco.theory import (
    best_critic_scale,
    eqco_margin,
    gaussian_correlation,
    gaussian_log_ratio,
    gaussian_pairs,
    info_nce,
    information_bound,
    is_guaranteed_bound,
    largest_overshoot,
)

__all__ = ["STUDY_BOUND", "crossing"]

CHUNK = 200  # queries drawn at once; each has as many negatives as the largest K
CRITICS = {"excess": "true ratio", "best": "best multiple"}  # curve -> the critic it is of


@dataclass(frozen=True, kw_only=True)
class BoundTask:
    """One true value: queries to draw, and the K and α to try.

    The search for the best multiple of the true log-ratio ends at `largest_scale`.
    """

    information: float
    queries: int
    negatives: tuple[int, ...]
    alphas: tuple[int, ...] = tuple(2**power for power in range(1, 17))
    dim: int = 20
    largest_scale: float = 32.0

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        return as_read(asdict(self))


def run(task: BoundTask, seed: int, context: RunContext) -> RunResult:
    """f̂ − truth for every K and α ≥ K, of the true ratio and of its best multiple.

    Smaller K use the first of the negatives drawn for the largest, so that K alone differs.
    """
    truth, alphas = task.information, task.alphas
    positive, negative = log_ratios(task, seed)
    metrics: dict[str, float] = {}
    curves: dict[str, dict[str, list[float | None]]] = {"excess": {}, "best": {}, "scale": {}}
    for count in task.negatives:
        drawn = negative[:, :count]
        cells: list[tuple[float | None, ...]] = []
        for alpha in alphas:
            if alpha < count:
                cells.append((None, None, None))
                continue
            scale = best_critic_scale(positive, drawn, alpha=alpha, largest=task.largest_scale)
            plain = excess_at(alpha, positive, drawn, truth)
            cells.append((plain, excess_at(alpha, positive, drawn, truth, scale=scale), scale))
            context.advance(1)
        for name, row in zip(curves, zip(*cells, strict=True), strict=True):
            curves[name][str(count)] = list(row)
        for name, critic in CRITICS.items():
            reached = crossing(alphas, curves[name][str(count)])
            if reached is not None:
                metrics[crossing_name(critic, count)] = reached
    no_noise = torch.zeros(len(positive), 1, dtype=torch.float64)  # the mean ratio is 1: K → ∞
    limit = [excess_at(alpha, positive, no_noise, truth) for alpha in alphas]
    return RunResult(metrics=metrics, curves={**curves, "limit": limit})


def crossing_name(critic: str, count: int) -> str:
    """The name of a metric: the α at which f̂ reaches the truth."""
    return f"alpha at the truth, {critic}, K={count}"


def log_ratios(task: BoundTask, seed: int) -> tuple[Tensor, Tensor]:
    """The true log-ratio of the positives, (Q,), and of the negatives, (Q, largest K)."""
    largest, dim = max(task.negatives), task.dim
    generator = random_source(seed, largest, task.information, "bound study")
    correlation = gaussian_correlation(task.information, dim)
    positives, negatives = [], []
    for start in range(0, task.queries, CHUNK):
        count = min(CHUNK, task.queries - start)
        x, y = gaussian_pairs(correlation, dim, count, generator)
        others = torch.randn(count, largest, dim, dtype=torch.float64, generator=generator)
        positives.append(gaussian_log_ratio(x, y, correlation))
        negatives.append(gaussian_log_ratio(x[:, None], others, correlation))
    return torch.cat(positives), torch.cat(negatives)


def excess_at(
    alpha: float, positive: Tensor, negative: Tensor, truth: float, *, scale: float = 1.0
) -> float:
    """f̂ − truth (Eq. 6) with a multiple of the true log-ratio as critic.

    The expected log-ratio of the positives is the truth itself, so what their sample mean is off by
    is taken out by regression.
    """
    margin = eqco_margin(alpha, negative.shape[1], temperature=1.0)
    loss = info_nce(scale * positive, scale * negative, temperature=1.0, margin=margin)
    values = information_bound(loss, alpha)
    centred = positive - positive.mean()
    slope = (centred * values).sum() / (centred * centred).sum()
    return float(values.mean() - slope * (positive.mean() - truth)) - truth


def crossing(alphas: Sequence[float], excess: Sequence[float | None]) -> float | None:
    """The α at which f̂ reaches the truth, between two tried values by log α; None if it never does.

    >>> round(crossing([1, 100], [-1.0, 1.0]), 6)
    10.0
    >>> crossing([1, 10, 100], [None, -1.0, -0.5])
    """
    known = [(a, e) for a, e in zip(alphas, excess, strict=True) if e is not None]
    for (low, below), (high, above) in pairwise(known):
        if below < 0 <= above:
            share = below / (below - above)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None


def compare(records: Sequence[Record]) -> list[Comparison]:
    """For each K: f̂ − truth at the largest α, and what no critic exceeds."""
    cells = []
    for truth, several in by_truth(records).items():
        largest = several[0].recipe["alphas"][-1]
        for count in several[0].recipe["negatives"]:
            row, ceiling = f"K={count}", largest_overshoot(largest, count)
            kind = "bound" if is_guaranteed_bound(largest, count) else "estimate"
            cells.append(Comparison(row=row, column="no critic exceeds", values=(ceiling,)))
            for curve, critic in CRITICS.items():
                values = tuple(record.curves[curve][str(count)][-1] for record in several)
                column = f"truth {truth:g}: {critic}"
                cells.append(Comparison(row=row, column=column, values=values, kind=kind))
    return cells


def crossings(records: Sequence[Record]) -> dict[str, list[Comparison]]:
    """For each K: the α at which f̂ reaches the truth."""
    cells = [
        Comparison(row=f"K={count}", column=f"truth {truth:g}: {critic}", values=values)
        for truth, several in by_truth(records).items()
        for count in several[0].recipe["negatives"]
        for critic in CRITICS.values()
        if (name := crossing_name(critic, count))
        and (values := tuple(r.metrics[name] for r in several if name in r.metrics))
    ]
    return {"α at which f̂ reaches the truth": cells}


def by_truth(records: Sequence[Record]) -> dict[float, list[Record]]:
    """The records of each true value, the smallest first."""
    ordered = sorted(records, key=lambda record: (record.recipe["information"], record.seed))
    return group_by(ordered, key=lambda record: record.recipe["information"])


def tasks(queries: int, informations: Sequence[float], largest_k: int) -> list[BoundTask]:
    """One run for each true value."""
    negatives = tuple(2**power for power in range(1, largest_k.bit_length()))
    return [
        BoundTask(information=information, queries=queries, negatives=negatives)
        for information in informations
    ]


STUDY_BOUND = Experiment(
    name="study-bound",
    title="Where f̂ exceeds the truth: by how much for K = 2 to 512, the table at alpha = 65536",
    profiles={
        "smoke": tasks(400, [2.0], 16),
        "desk": tasks(20_000, [2.0, 6.0, 10.0], 512),
    },
    seeds={"smoke": (0,), "desk": (0,)},
    size=lambda task: sum(a >= k for k in task.negatives for a in task.alphas),
    run=run,
    compare=compare,
    further=crossings,
)
