"""The experiment of Table 5: train critics on correlated Gaussians, freeze them, read f̂."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eqco.lab.critics import StackedCritics, Workspace
from eqco.lab.draws import PairDraws, random_source, require_pairs
from eqco.lab.estimators import Estimator
from eqco.runtime.errors import InputError
from eqco.theory import gaussian_correlation
from eqco.theory.rules import require_positive

__all__ = ["Reading", "measure"]

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One value of f̂ from one trained critic, and what it is worth."""

    estimator: str
    information: float  # the truth, in nats
    num_pairs: int  # K of Table 5: each query meets K − 1 negatives
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
        learning_rate: Adam's.
        steps: of training.
        repeats: frozen estimates that the value is the mean of.
        advance: called with the number of steps and repeats done since its last call.

    Returns:
        The readings, estimator by estimator, in the order given.
    """
    require_pairs(num_pairs)
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

    sources = [
        random_source(seed, num_pairs, information, "weights")
        for _ in estimators
        for information in informations
    ]
    critics = StackedCritics(sources, dim=dim, hidden=hidden_size, output=output_size)
    work = critics.workspace(num_pairs)

    def draws(purpose: str) -> PairDraws:
        return PairDraws(informations, dim=dim, seed=seed, num_pairs=num_pairs, purpose=purpose)

    with torch.no_grad():
        train(critics, work, estimators, draws("training"), learning_rate, steps, advance)
        values = frozen_values(critics, work, estimators, draws, repeats, advance)
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
    work: Workspace,
    estimators: Sequence[Estimator],
    draws: PairDraws,
    learning_rate: float,
    steps: int,
    advance: Advance,
) -> None:
    """Adam on fresh pairs at every step; each critic climbs its own estimator."""
    optimizer = torch.optim.Adam([critics.parameters], lr=learning_rate, fused=True)
    logits = by_estimator(work.logits, estimators)
    d_logits = by_estimator(work.d_logits, estimators)
    for _ in range(steps):
        fill_pairs(work, estimators, draws)
        critics.compare(work)
        for row, estimator in enumerate(estimators):
            estimator.set_d_logits(logits[row], out=d_logits[row])
        critics.set_gradients(work)
        optimizer.step()
        advance(1)


def frozen_values(
    critics: StackedCritics,
    work: Workspace,
    estimators: Sequence[Estimator],
    draws: Callable[[str], PairDraws],
    repeats: int,
    advance: Advance,
) -> Tensor:
    """The value of every estimate, (repeats, E, I), on fresh pairs each time; float64."""
    num_pairs = work.logits.shape[-1]
    shared, own = draws("estimation"), draws("estimation, separate negatives")
    logits = by_estimator(work.logits, estimators)
    room = by_estimator(work.d_logits, estimators)
    values = torch.empty(repeats, *logits.shape[:2], dtype=torch.float64)
    for repeat in range(repeats):
        fill_pairs(work, estimators, shared)
        critics.compare(work)
        for row, estimator in enumerate(estimators):
            if estimator.separate_queries is None:
                values[repeat, row] = estimator.in_batch_value(logits[row], room[row])
            else:
                count = estimator.separate_queries
                scores = separate(critics, row, own, count, num_pairs - 1)
                values[repeat, row] = estimator.value(*scores, num_pairs - 1)
        advance(1)
    return values


def separate(
    critics: StackedCritics, row: int, draws: PairDraws, num_queries: int, num_negatives: int
) -> tuple[Tensor, Tensor]:
    """Positive (I, n) and negative (I, n, K) scores, the negatives drawn for each query alone."""
    count = len(draws.sources)
    rows = slice(row * count, (row + 1) * count)
    x, y = draws.pairs(num_queries)
    others = draws.independent(num_queries * num_negatives)
    queries = critics.query_tower.embed(with_one(x), rows=rows)
    keys = critics.key_tower.embed(with_one(torch.cat([y, others], dim=1)), rows=rows)
    positive = (queries * keys[:, :num_queries]).sum(-1)
    own_keys = keys[:, num_queries:].unflatten(1, (num_queries, num_negatives))
    return positive, (own_keys @ queries[..., None])[..., 0]


def fill_pairs(work: Workspace, estimators: Sequence[Estimator], draws: PairDraws) -> None:
    """Put fresh pairs into the workspace: the same for every estimator."""
    x, y = draws.pairs(work.x.shape[1])
    by_estimator(work.x, estimators)[..., :-1] = x
    by_estimator(work.y, estimators)[..., :-1] = y


def with_one(inputs: Tensor) -> Tensor:
    """Inputs with the column of ones that carries the first layer's bias."""
    return torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=-1)


def by_estimator(stack: Tensor, estimators: Sequence[Estimator]) -> Tensor:
    """A view of a stack (E·I, …) as (E, I, …)."""
    return stack.unflatten(0, (len(estimators), -1))
