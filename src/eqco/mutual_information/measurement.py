"""The experiment of Table 5: train critics on correlated Gaussians, freeze them, read f̂."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eqco.mutual_information.critics import StackedCritics
from eqco.mutual_information.draws import PairDraws
from eqco.mutual_information.estimators import Estimator
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import random_source
from eqco.theory import gaussian_correlation
from eqco.theory.rules import require_positive

__all__ = ["Reading", "measure"]

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One value of f̂ from one trained critic, and its guarantee."""

    estimator: str
    information: float  # the truth, in nats
    num_pairs: int  # K of Table 5: each query has K − 1 negatives
    alpha: float
    seed: int
    value: float  # nats
    standard_error: float  # of the mean over the frozen estimates
    kind: str  # "bound" or "estimate"
    overshoot: float  # at the most, in expectation; 0 for a bound


def measure(
    informations: Sequence[float],
    num_pairs: int,
    estimators: Sequence[Estimator],
    *,
    seed: int = 0,
    dim: int = 20,
    hidden_size: int = 256,
    output_size: int = 32,
    learning_rate: float = 5e-4,
    steps: int = 5000,
    repeats: int = 1000,
    advance: Advance | None = None,
) -> list[Reading]:
    """Train one critic for each estimator and information, all at one K together, and read them.

    The draws of a critic depend on seed, K and information alone: estimators are compared on the
    same data from the same first weights, and what is measured together with it changes a
    reading by rounding only. The defaults are the paper's; it leaves the output size and τ open
    (here 32 and 1).

    Args:
        informations: true values, in nats.
        num_pairs: K of Table 5, at least 2: fresh pairs per step, K − 1 negatives per query.
        estimators: what is trained and read.
        seed: of all draws.
        dim: d of Eq. 9.
        hidden_size: units in the hidden layer of each MLP.
        output_size: entries of an embedding.
        repeats: frozen estimates that the value is the mean of.
        advance: called with the number of steps and repeats done since its last call.

    Returns:
        The readings, estimator by estimator, in the order given.
    """
    if num_pairs < 2:
        raise InputError(
            f"pairs={num_pairs}; K counts pairs here, and each query has the other K - 1 as "
            f"negatives. Use at least 2."
        )
    require_positive("learning_rate", learning_rate)
    if steps < 1:
        raise InputError(f"steps={steps}; it must be at least 1.")
    if repeats < 2:
        raise InputError(f"repeats={repeats}; a mean with a standard error needs at least 2.")
    for name, given in (("information", informations), ("estimators", estimators)):
        if not given:
            raise InputError(f"no {name} given; name at least one.")
    for information in informations:
        gaussian_correlation(information, dim)
    advance = advance or (lambda count: None)

    generators = [
        random_source(seed, num_pairs, information, "weights")
        for _ in estimators
        for information in informations
    ]
    critics = StackedCritics(generators, dim=dim, hidden=hidden_size, output=output_size)

    def draws(purpose: str) -> PairDraws:
        return PairDraws(informations, dim=dim, seed=seed, num_pairs=num_pairs, purpose=purpose)

    keep_freed_memory()
    train(critics, estimators, draws("training"), num_pairs, learning_rate, steps, advance)
    values = frozen_values(critics, estimators, draws, num_pairs, repeats, advance)
    if not bool(values.isfinite().all()):
        raise InputError(
            f"training diverged at pairs={num_pairs}: the values read are not finite. "
            f"Lower learning_rate={learning_rate}."
        )

    error = values.std(0) / math.sqrt(repeats)
    return [
        Reading(
            estimator=estimator.name,
            information=information,
            num_pairs=num_pairs,
            alpha=estimator.alpha_at(num_pairs - 1),
            seed=seed,
            value=float(values[:, row, column].mean()),
            standard_error=float(error[row, column]),
            kind=estimator.kind(num_pairs - 1),
            overshoot=estimator.overshoot(num_pairs - 1),
        )
        for row, estimator in enumerate(estimators)
        for column, information in enumerate(informations)
    ]


def train(
    critics: StackedCritics,
    estimators: Sequence[Estimator],
    draws: PairDraws,
    num_pairs: int,
    learning_rate: float,
    steps: int,
    advance: Advance,
) -> None:
    """Adam on fresh pairs at every step; each critic climbs its own estimator."""
    optimizer = torch.optim.Adam(critics.parameters(), lr=learning_rate, fused=True)
    positive = torch.arange(num_pairs)
    for _ in range(steps):
        scores = in_batch_scores(critics, estimators, *draws.pairs(num_pairs))
        values = [e.value(s, positive) for e, s in zip(estimators, scores, strict=True)]
        optimizer.zero_grad()
        (-torch.cat(values).sum()).backward()
        optimizer.step()
        advance(1)


@torch.no_grad()
def frozen_values(
    critics: StackedCritics,
    estimators: Sequence[Estimator],
    draws: Callable[[str], PairDraws],
    num_pairs: int,
    repeats: int,
    advance: Advance,
) -> Tensor:
    """The value of every estimate, (repeats, E, I), on fresh pairs each time; float64."""
    shared, separate = draws("estimation"), draws("estimation, separate negatives")
    positive = torch.arange(num_pairs)
    values = torch.empty(repeats, len(estimators), len(shared.sources), dtype=torch.float64)
    for repeat in range(repeats):
        scores = in_batch_scores(critics, estimators, *shared.pairs(num_pairs))
        for row, estimator in enumerate(estimators):
            count = estimator.separate_queries
            if count is None:
                values[repeat, row] = estimator.value(scores[row], positive)
            else:
                own = separate_scores(critics, row, separate, count, num_pairs - 1)
                values[repeat, row] = estimator.value(own, torch.zeros(count, dtype=torch.long))
        advance(1)
    return values


def in_batch_scores(
    critics: StackedCritics, estimators: Sequence[Estimator], x: Tensor, y: Tensor
) -> list[Tensor]:
    """Every query with every key, (I, N, N), for each estimator: all see the same pairs."""
    count = len(estimators)
    queries = critics.query_mlp(x.repeat(count, 1, 1)).chunk(count)
    keys = critics.key_mlp(y.repeat(count, 1, 1)).chunk(count)
    return [torch.bmm(q, k.mT) for q, k in zip(queries, keys, strict=True)]


def separate_scores(
    critics: StackedCritics, row: int, draws: PairDraws, num_queries: int, num_negatives: int
) -> Tensor:
    """Scores (I, n, 1 + K), the positive first, the negatives drawn for each query alone."""
    count = len(draws.sources)
    rows = slice(row * count, (row + 1) * count)
    x, y = draws.pairs(num_queries)
    others = draws.independent(num_queries * num_negatives)
    queries = critics.query_mlp(x, rows)[..., None]
    positive = critics.key_mlp(y, rows)[:, :, None]
    negative = critics.key_mlp(others, rows).unflatten(1, (num_queries, num_negatives))
    return (torch.cat([positive, negative], dim=2) @ queries)[..., 0]


def keep_freed_memory() -> None:
    """Let the allocator keep what a step frees, so that the next need not fetch it anew.

    glibc returns a freed block to the system at once unless a larger one has been freed before.
    Without this line steps at large K take longer.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)  # 32 MiB is the largest size that glibc remembers
