"""Estimators of mutual information side by side; each says whether its value is a bound.

All of them read the scores of a critic: of each query with its own key (positive) and with keys
drawn independently of it (negative). A **bound** cannot exceed the true information in expectation,
whatever the critic; an **estimate** can.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.runtime.errors import InputError
from eqco.theory import eqco_margin, information_bound, largest_overshoot
from eqco.theory.rules import require_negatives, require_positive

__all__ = ["ESTIMATORS", "EqCo", "Estimator", "InfoNCE", "MultiLabelCPC", "named_estimators"]


class Estimator(ABC):
    """A value to train a critic by and to read from it, with its guarantee.

    K below is the number of negatives each query is scored against.
    """

    name: str
    # How many queries, each with K negatives drawn for it alone, make one frozen estimate.
    # None: the pairs of a batch are each other's negatives.
    separate_queries: int | None = None

    alpha: float

    def alpha_at(self, num_negatives: int) -> float:
        """The α of the ceiling log(1 + α) that the value cannot pass, at K negatives."""
        return self.alpha

    @abstractmethod
    def overshoot(self, num_negatives: int) -> float:
        """By how much the value may exceed the truth in expectation, at the most; 0 for a bound."""

    @abstractmethod
    def value(self, scores: Tensor, positive: Tensor) -> Tensor:
        """The value in nats, (B,), of scores (B, N, 1 + K).

        The positive of query n is in column `positive[n]`: n itself if the pairs of a batch are
        each other's negatives.
        """

    def kind(self, num_negatives: int) -> str:
        """ "bound" where the value is guaranteed not to exceed the truth, else "estimate"."""
        return "estimate" if self.overshoot(num_negatives) > 0 else "bound"


class MarginEstimator(Estimator):
    """log(1 + α) − L, with L of Eq. 1 under EqCo's margin, which is 0 at α = K."""

    def overshoot(self, num_negatives: int) -> float:
        """log((1+α)/(1+K)) where α > K."""
        return largest_overshoot(self.alpha_at(num_negatives), num_negatives)

    def value(self, scores: Tensor, positive: Tensor) -> Tensor:
        """f̂ of Eq. 4 and 6, the mean over queries; Eq. 1 as the cross entropy of the positive."""
        num_negatives = scores.shape[-1] - 1
        alpha = self.alpha_at(num_negatives)
        scores = add_to_positives(
            scores, positive, -eqco_margin(alpha, num_negatives, temperature=1.0)
        )
        labels = positive.repeat(len(scores))
        loss = F.cross_entropy(scores.flatten(0, 1), labels, reduction="none")
        return information_bound(loss.view(scores.shape[:2]).mean(1), alpha)


@dataclass(frozen=True)
class InfoNCE(MarginEstimator):
    """log(1 + K) − L without a margin: always a bound, and never above log(1 + K).

    >>> InfoNCE().kind(63)
    'bound'
    """

    name = "infonce"

    def alpha_at(self, num_negatives: int) -> float:
        """K itself."""
        return num_negatives


@dataclass(frozen=True)
class EqCo(MarginEstimator):
    """log(1 + α) − L with the margin log(α/K): steady in K; a bound only while α ≤ K.

    >>> EqCo(512).kind(63), EqCo(512).kind(512)
    ('estimate', 'bound')
    """

    alpha: float
    name = "eqco"

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)


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
    """

    alpha: float
    separate_queries: int = 16  # n of one frozen estimate
    name = "ml-cpc"

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)
        if self.separate_queries < 1:
            raise InputError(f"separate_queries={self.separate_queries}; it must be at least 1.")

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

    def value(self, scores: Tensor, positive: Tensor) -> Tensor:
        """J of the scores; it is a bound only if the negatives are drawn for each query alone."""
        own, other = self.weights(scores.shape[-1] - 1)
        own_scores = scores[:, torch.arange(len(positive)), positive]
        weighted = add_to_positives(scores, positive, math.log(own / other))
        denominator = math.log(other) + torch.logsumexp(weighted, dim=(1, 2))
        return own_scores.mean(1) + math.log(scores[0].numel()) - denominator


def add_to_positives(scores: Tensor, positive: Tensor, amount: float) -> Tensor:
    """Scores (B, N, 1 + K) with `amount` added to the positive of each query."""
    if amount == 0:
        return scores
    return scores + torch.zeros_like(scores[0]).scatter_(1, positive[:, None], amount)


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
