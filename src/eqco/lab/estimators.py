"""Estimators of information beside each other; each says what its value is worth.

All of them see the scores of a critic: of each query with its own key (positive) and with keys
drawn independently of it (negative). A **bound** cannot exceed the true information in expectation,
whatever the critic; an **estimate** can.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eqco.runtime.errors import InputError
from eqco.theory import (
    eqco_margin,
    info_nce,
    information_bound,
    largest_overshoot,
)
from eqco.theory.rules import require_negatives, require_positive

__all__ = ["ESTIMATORS", "EqCo", "Estimator", "InfoNCE", "MultiLabelCPC", "named_estimators"]


class Estimator(ABC):
    """What the lab asks of an estimator: a value, its gradient, and what the value is worth.

    K below is the number of negatives each query really meets.
    """

    name: str
    # How many queries, each with K negatives drawn for it alone, make one frozen estimate.
    # None: the pairs of a batch are each other's negatives.
    separate_queries: int | None = None

    @abstractmethod
    def alpha_at(self, num_negatives: int) -> float:
        """The α of the ceiling log(1 + α) that the value cannot pass."""

    @abstractmethod
    def overshoot(self, num_negatives: int) -> float:
        """By how much the value may exceed the truth in expectation, at the most; 0 for a bound."""

    @abstractmethod
    def value(self, positive: Tensor, negative: Tensor, num_negatives: int) -> Tensor:
        """The value in nats, (B,), of scores (B, N) and (B, N, M).

        M may be larger than K = `num_negatives` if the rest is −∞, which stands for "not met".
        """

    @abstractmethod
    def in_batch_value(self, logits: Tensor, room: Tensor) -> Tensor:
        """The value of in-batch scores (B, N, N), positives on the diagonal; uses both up."""

    @abstractmethod
    def set_d_logits(self, logits: Tensor, out: Tensor) -> None:
        """Write −N·d(value)/d(logits) of in-batch scores (B, N, N) to `out`; uses `logits` up."""

    def kind(self, num_negatives: int) -> str:
        """ "bound" where the value is guaranteed not to exceed the truth, else "estimate"."""
        return "estimate" if self.overshoot(num_negatives) > 0 else "bound"


@dataclass(frozen=True)
class InfoNCE(Estimator):
    """log(1 + K) − L without a margin: always a bound, and never above log(1 + K).

    >>> InfoNCE().kind(63)
    'bound'
    """

    name = "infonce"

    def alpha_at(self, num_negatives: int) -> float:
        """K itself."""
        return num_negatives

    def overshoot(self, num_negatives: int) -> float:
        """None."""
        return largest_overshoot(num_negatives, num_negatives)

    def value(self, positive: Tensor, negative: Tensor, num_negatives: int) -> Tensor:
        """f̂ of Eq. 4 with m = 0."""
        return margin_value(positive, negative, num_negatives, num_negatives)

    def in_batch_value(self, logits: Tensor, room: Tensor) -> Tensor:
        """The same, K = N − 1."""
        return in_batch_margin_value(logits, logits.shape[-1] - 1, room)

    def set_d_logits(self, logits: Tensor, out: Tensor) -> None:
        """The posterior over keys, less 1 for the query's own (Eq. 13)."""
        set_posterior_error(logits, 0.0, out)


@dataclass(frozen=True)
class EqCo(Estimator):
    """log(1 + α) − L with the margin log(α/K): steady in K; a bound only while α ≤ K.

    >>> EqCo(512).kind(63), EqCo(512).kind(512)
    ('estimate', 'bound')
    """

    alpha: float
    name = "eqco"

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)

    def alpha_at(self, num_negatives: int) -> float:
        """α, whatever K is."""
        return self.alpha

    def overshoot(self, num_negatives: int) -> float:
        """log((1+α)/(1+K)) where α > K."""
        return largest_overshoot(self.alpha, num_negatives)

    def value(self, positive: Tensor, negative: Tensor, num_negatives: int) -> Tensor:
        """f̂ of Eq. 6."""
        return margin_value(positive, negative, num_negatives, self.alpha)

    def in_batch_value(self, logits: Tensor, room: Tensor) -> Tensor:
        """The same, K = N − 1."""
        return in_batch_margin_value(logits, self.alpha, room)

    def set_d_logits(self, logits: Tensor, out: Tensor) -> None:
        """The posterior under the margin, less 1 for the query's own key (Eq. 13)."""
        margin = eqco_margin(self.alpha, logits.shape[-1] - 1, temperature=1.0)
        set_posterior_error(logits, margin, out)


@dataclass(frozen=True)
class MultiLabelCPC(Estimator):
    r"""Multi-label CPC, re-weighted (Song & Ermon 2020): all queries share one denominator.

    .. math::
        J = \mathbb{E}\Big[\frac1n \sum_{i=1}^n \log \frac{n m\, g_{i1}}
            {w \sum_j g_{j1} + \frac{m-w}{m-1} \sum_j \sum_{k=2}^m g_{jk}}\Big],
        \qquad m = 1 + K, \quad w = \frac{1+K}{1+\alpha}

    g is e^score, column 1 holds the positives. The weight w is written through α, so that α means
    the same as in EqCo: J cannot pass log(1 + α). **A bound for w between m/(n(m−1)+1) and 1, that
    is for K ≤ α ≤ nK**, if the negatives of each query are drawn for it alone: so the frozen
    estimate is made. Training uses the pairs of a batch for each other, as the authors' code does.

    >>> MultiLabelCPC(512).kind(63), MultiLabelCPC(512).kind(15)
    ('bound', 'estimate')

    Args:
        alpha: α > 0.
        separate_queries: n of one frozen estimate.
    """

    alpha: float
    separate_queries: int = 16
    name = "ml-cpc"

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)
        if self.separate_queries < 1:
            raise InputError(f"separate_queries={self.separate_queries}; it must be at least 1.")

    def alpha_at(self, num_negatives: int) -> float:
        """α, whatever K is."""
        return self.alpha

    def overshoot(self, num_negatives: int) -> float:
        r"""log((1+α)/(1+nK)) where α > nK, and log(K/(m−w)) where α < K.

        Both compare the denominator with that of the nearest weight inside the range.
        """
        require_negatives(num_negatives)
        if self.alpha > self.separate_queries * num_negatives:
            return math.log1p(self.alpha) - math.log1p(self.separate_queries * num_negatives)
        if self.alpha < num_negatives:
            return -math.log(self.weights(num_negatives)[1])
        return 0.0

    def weights(self, num_negatives: int) -> tuple[float, float]:
        """w of the positives and (m−w)/(m−1) of the negatives."""
        own = (1 + num_negatives) / (1 + self.alpha)
        return own, (1 + num_negatives - own) / num_negatives

    def value(self, positive: Tensor, negative: Tensor, num_negatives: int) -> Tensor:
        """J of the scores, (B,)."""
        own, other = self.weights(num_negatives)
        positives = math.log(own) + torch.logsumexp(positive, dim=1)
        negatives = math.log(other) + torch.logsumexp(negative, dim=(1, 2))
        count = positive.shape[1] * (1 + num_negatives)
        return positive.mean(1) + math.log(count) - torch.logaddexp(positives, negatives)

    def in_batch_value(self, logits: Tensor, room: Tensor) -> Tensor:
        """J with the pairs of the batch as each other's negatives: then it is no bound."""
        diagonal = logits.diagonal(dim1=-2, dim2=-1)
        positive = diagonal.clone()
        diagonal.fill_(-math.inf)
        return self.value(positive, logits, logits.shape[-1] - 1)

    def set_d_logits(self, logits: Tensor, out: Tensor) -> None:
        """N times the weighted share of each score in the common denominator, less 1 on its own."""
        own, other = self.weights(logits.shape[-1] - 1)
        logits.diagonal(dim1=-2, dim2=-1).add_(math.log(own / other))
        torch.softmax(logits.flatten(1), dim=-1, out=out.view(len(out), -1))
        out.mul_(logits.shape[-1]).diagonal(dim1=-2, dim2=-1).sub_(1)


def margin_value(positive: Tensor, negative: Tensor, num_negatives: int, alpha: float) -> Tensor:
    """Mean f̂ over the queries, (B,), of Eq. 1 with EqCo's margin (none at α = K)."""
    margin = eqco_margin(alpha, num_negatives, temperature=1.0)
    loss = info_nce(positive.flatten(), negative.flatten(0, 1), temperature=1.0, margin=margin)
    return information_bound(loss.view_as(positive).mean(1), alpha)


def in_batch_margin_value(logits: Tensor, alpha: float, room: Tensor) -> Tensor:
    """`margin_value` of in-batch scores: Eq. 1 as −log softmax, nine times as fast at K = 512."""
    margin = eqco_margin(alpha, logits.shape[-1] - 1, temperature=1.0)
    logits.diagonal(dim1=-2, dim2=-1).sub_(margin)
    log_posterior = torch.log_softmax(logits, dim=-1, out=room).diagonal(dim1=-2, dim2=-1)
    return information_bound(-log_posterior.mean(1), alpha)


def set_posterior_error(logits: Tensor, margin: float, out: Tensor) -> None:
    """Eq. 13 per score, (B, N, N): Eq. 2 over all keys of the batch, less 1 on the diagonal."""
    logits.diagonal(dim1=-2, dim2=-1).sub_(margin)
    torch.softmax(logits, dim=-1, out=out)
    out.diagonal(dim1=-2, dim2=-1).sub_(1)


# name -> estimator at a given alpha
ESTIMATORS: dict[str, Callable[[float], Estimator]] = {
    "infonce": lambda alpha: InfoNCE(),
    "eqco": EqCo,
    "ml-cpc": MultiLabelCPC,
}


def named_estimators(names: list[str], alpha: float) -> list[Estimator]:
    """Estimators by name, at one α.

    >>> [estimator.name for estimator in named_estimators(["infonce", "eqco"], alpha=512)]
    ['infonce', 'eqco']
    """
    for name in names:
        if name not in ESTIMATORS:
            raise InputError(f"there is no estimator {name!r}. There are: {', '.join(ESTIMATORS)}.")
    if not names:
        raise InputError(f"no estimators given. There are: {', '.join(ESTIMATORS)}.")
    require_positive("alpha", alpha)
    return [ESTIMATORS[name](alpha) for name in names]
