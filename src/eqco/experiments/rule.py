"""The rule on random embeddings: loss, f̂ and gradient norm against K, with and without EqCo."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from eqco.runtime.seeds import generator_for
from eqco.theory import (
    effective_alpha,
    eqco_margin,
    gradient_bound,
    info_nce,
    info_nce_gradient,
    information_bound,
    is_guaranteed_bound,
)

__all__ = ["RulePoint", "rule_against_k"]


@dataclass(frozen=True, kw_only=True)
class RulePoint:
    """What one loss says of one number of negatives, as means over queries."""

    with_eqco: bool
    num_negatives: int
    loss: float
    information: float
    kind: str  # "bound" or "estimate"
    gradient_norm: float
    gradient_bound: float


def rule_against_k(
    counts: Sequence[int],
    *,
    alpha: float,
    temperature: float,
    num_queries: int = 256,
    dim: int = 128,
    seed: int = 0,
) -> list[RulePoint]:
    """Measure both losses on the same embeddings under each number of negatives.

    Queries and negatives are random directions; a positive is its query with as much noise, so that
    their cosine is about 0.7.
    """
    generator = generator_for("rule", seed)
    draws = torch.randn(2 * num_queries + max(counts), dim, generator=generator).double()
    queries, noise, pool = F.normalize(draws, dim=1).split([num_queries, num_queries, max(counts)])
    positives = F.normalize(queries + noise, dim=1)
    positive = (queries * positives).sum(dim=1)
    points = []
    for with_eqco in (False, True):
        for count in counts:
            keys = pool[:count]
            negative = queries @ keys.T
            margin = eqco_margin(alpha, count, temperature) if with_eqco else 0.0
            imitated = effective_alpha(margin, count, temperature)
            loss = info_nce(positive, negative, temperature=temperature, margin=margin).mean()
            gradient = info_nce_gradient(
                positive, negative, positives, keys, temperature=temperature, margin=margin
            )
            bound = gradient_bound(positive, negative, temperature=temperature, margin=margin)
            guaranteed = is_guaranteed_bound(alpha if with_eqco else count, count)
            points.append(
                RulePoint(
                    with_eqco=with_eqco,
                    num_negatives=count,
                    loss=float(loss),
                    information=float(information_bound(loss, imitated)),
                    kind="bound" if guaranteed else "estimate",
                    gradient_norm=float(gradient.norm(dim=1).mean()),
                    gradient_bound=float(bound.mean()),
                )
            )
    return points


def swing(points: Sequence[RulePoint], quantity: str) -> float:
    """Largest over smallest value of a quantity: 1 means that K makes no difference."""
    values = [getattr(point, quantity) for point in points]
    return max(values) / min(values) if min(values) > 0 else math.inf
