"""A study of ours: where f̂ begins to exceed the truth, with the best possible critic.

K, the negatives each query meets, goes from 2 to 512 and α from K to 65536, on correlated Gaussians
whose log-ratio is known (Eq. 3, 4). At α = K the value is a guaranteed bound; beyond, it is an
estimate, and this shows for which α it passes the truth.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.experiments.experiment import Advance, Comparison, Experiment, Recipe, RunResult
from eqco.lab import random_source
from eqco.runtime.records import Record
from eqco.theory import (
    gaussian_correlation,
    gaussian_log_ratio,
    gaussian_pairs,
    information_bound,
    is_guaranteed_bound,
)

__all__ = ["STUDY_BOUND", "crossing"]

CHUNK = 200  # queries drawn at once; each has as many negatives as the largest K


def run(recipe: Recipe, seed: int, advance: Advance) -> RunResult:
    """f̂ − truth for every K and α ≥ K, all on the same queries."""
    truth, alphas = recipe["information"], recipe["alphas"]
    positive, means = optimal_scores(recipe, seed, advance)
    metrics: dict[str, float] = {}
    excess: dict[str, list[float | None]] = {}
    for num_negatives, mean in zip(recipe["negatives"], means, strict=True):
        row = [
            excess_at(alpha, positive, mean, truth) if alpha >= num_negatives else None
            for alpha in alphas
        ]
        excess[str(num_negatives)] = row
        reached = crossing(alphas, row)
        if reached is not None:
            metrics[f"alpha at the truth, K={num_negatives}"] = reached
    limit = [excess_at(alpha, positive, torch.zeros_like(positive), truth) for alpha in alphas]
    return RunResult(metrics=metrics, curves={"excess": excess, "limit": limit})


def optimal_scores(recipe: Recipe, seed: int, advance: Advance) -> tuple[Tensor, Tensor]:
    """log-ratio of the positive, (Q,), and log of the mean ratio over K negatives, (K's, Q).

    Smaller K use the first of the negatives drawn for the largest, so that K alone differs.
    """
    ks, dim = recipe["negatives"], recipe["dim"]
    generator = random_source(seed, max(ks), recipe["information"], "bound study")
    correlation = gaussian_correlation(recipe["information"], dim)
    positives, means = [], []
    for start in range(0, recipe["queries"], CHUNK):
        count = min(CHUNK, recipe["queries"] - start)
        x, y = gaussian_pairs(correlation, dim, count, generator)
        others = torch.randn(count, max(ks), dim, dtype=torch.float64, generator=generator)
        negative = gaussian_log_ratio(x[:, None], others, correlation)
        positives.append(gaussian_log_ratio(x, y, correlation))
        means.append(
            torch.stack([torch.logsumexp(negative[:, :k], dim=1) - math.log(k) for k in ks])
        )
        advance(count)
    return torch.cat(positives), torch.cat(means, dim=1)


def excess_at(alpha: float, positive: Tensor, log_mean_negative: Tensor, truth: float) -> float:
    """f̂ − truth (Eq. 6), the loss of Eq. 1 in the form softplus(log α + mean − positive).

    A mean of zero is the limit K → ∞. The expected log-ratio of the positives is the truth itself,
    so what their sample mean is off by is taken out by regression.
    """
    values = information_bound(F.softplus(math.log(alpha) + log_mean_negative - positive), alpha)
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
    """For each K: the α at which f̂ reaches the truth, and the excess at the largest α."""
    by_information: dict[float, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.recipe["information"], record.seed)):
        by_information.setdefault(record.recipe["information"], []).append(record)
    cells = []
    for information, group in by_information.items():
        largest = group[0].recipe["alphas"][-1]
        for num_negatives in group[0].recipe["negatives"]:
            key = f"alpha at the truth, K={num_negatives}"
            reached = tuple(r.metrics[key] for r in group if key in r.metrics)
            row = f"K={num_negatives}"
            if reached:
                column = f"truth {information:g}: α that reaches it"
                cells.append(Comparison(row=row, column=column, values=reached))
            cells.append(
                Comparison(
                    row=row,
                    column=f"truth {information:g}: excess at α={largest}",
                    values=tuple(r.curves["excess"][str(num_negatives)][-1] for r in group),
                    kind="bound" if is_guaranteed_bound(largest, num_negatives) else "estimate",
                )
            )
    return cells


def doubling(first: int, last: int) -> list[int]:
    """first, 2·first, … up to last.

    >>> doubling(2, 16)
    [2, 4, 8, 16]
    """
    return [first * 2**i for i in range(int(math.log2(last / first)) + 1)]


def recipes(queries: int, informations: Sequence[float], largest_k: int) -> list[Recipe]:
    """One run for each true value."""
    return [
        {
            "information": information,
            "dim": 20,
            "queries": queries,
            "negatives": doubling(2, largest_k),
            "alphas": doubling(2, 65536),
        }
        for information in informations
    ]


STUDY_BOUND = Experiment(
    name="study-bound",
    title="Where f̂ exceeds the truth: the best critic, K = 2 to 512, alpha = K to 65536",
    profiles={
        "smoke": recipes(400, [2.0], 16),
        "desk": recipes(20_000, [2.0, 6.0, 10.0], 512),
    },
    seeds={"smoke": (0,), "desk": (0,)},
    size=lambda recipe: recipe["queries"],
    run=lambda recipe, seed, site: run(recipe, seed, site.advance),
    compare=compare,
)
