"""Correlated Gaussians (Eq. 9), their information (Eq. 10) and their true log-ratio (Eq. 3, 4)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from eqco.runtime.errors import InputError
from eqco.theory.bounds import information_bound
from eqco.theory.infonce import info_nce, require_similarities, softplus
from eqco.theory.rules import eqco_margin, require_negatives, require_positive

__all__ = [
    "approximate_gaussian_bound",
    "best_critic_scale",
    "exact_gaussian_bound",
    "gaussian_correlation",
    "gaussian_information",
    "gaussian_log_ratio",
    "gaussian_pairs",
]


def gaussian_information(correlation: float, dim: int) -> float:
    r"""Information between the correlated Gaussians of Eq. 9, in nats (Eq. 10).

    .. math:: I(X, Y) = -\frac{d}{2} \log(1 - \rho^2)

    >>> round(gaussian_information(0.5, dim=20), 4)
    2.8768
    """
    require_dimension(dim)
    require_correlation(correlation)
    return -dim / 2 * math.log1p(-correlation * correlation)


def gaussian_correlation(information: float, dim: int) -> float:
    r"""The correlation ρ ≥ 0 that gives a wanted information: the inverse of Eq. 10.

    .. math:: \rho = \sqrt{1 - e^{-2 I / d}}

    >>> round(gaussian_correlation(2.876820724517809, dim=20), 10)
    0.5
    """
    require_dimension(dim)
    if not (information >= 0 and math.isfinite(information)):
        raise InputError(
            f"information={information}; it must be a finite number of nats, 0 or more."
        )
    correlation = math.sqrt(-math.expm1(-2 * information / dim))
    if correlation >= 1:
        raise InputError(
            f"information={information} in {dim} dimensions needs a correlation that rounds to 1. "
            f"Lower the information or raise the dimension."
        )
    return correlation


def gaussian_log_ratio(x: Tensor, y: Tensor, correlation: float) -> Tensor:
    r"""log P(y|x)/P(y) for the Gaussians of Eq. 9: the critic with the least InfoNCE loss.

    That is without a margin. With one, a multiple of it has a lower loss: see `best_critic_scale`.

    .. math::
        \sum_{j=1}^d \Big[ -\tfrac12\log(1-\rho^2)
            + \frac{2\rho x_j y_j - \rho^2 (x_j^2 + y_j^2)}{2(1-\rho^2)} \Big]

    Args:
        x: (..., d).
        y: (..., d), broadcast against x.
        correlation: ρ.

    Returns:
        The log-ratio, (...).

    >>> gaussian_log_ratio(torch.zeros(1, 20), torch.zeros(1, 20), 0.5)
    tensor([2.8768])
    """
    information = gaussian_information(correlation, x.shape[-1])
    square = correlation * correlation
    dot = (x * y).sum(-1)
    norms = (x * x).sum(-1) + (y * y).sum(-1)
    return information + (2 * correlation * dot - square * norms) / (2 * (1 - square))


def exact_gaussian_bound(
    correlation: float,
    dim: int,
    *,
    num_negatives: int,
    alpha: float | None = None,
    scale: float = 1.0,
    num_queries: int = 20_000,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""f_bound with the true density ratio on correlated Gaussians (Eq. 4, first line of Eq. 3).

    .. math::
        f = \log(1+\alpha) - \mathbb{E} \log\Big(1 + \frac{\alpha}{K} \frac{P(k_0)}{P(k_0|q)}
            \sum_{i=1}^K \frac{P(k_i|q)}{P(k_i)}\Big)

    Exact but for the mean over `num_queries` drawn queries, each with K negatives of its own.
    Paper: it calls this the optimum of the loss; for α ≠ K another `scale` reads more. See
    docs/paper_notes.md#l_opt

    Args:
        correlation: ρ of Eq. 9.
        dim: d of Eq. 9.
        num_negatives: K.
        alpha: α; None is plain InfoNCE, α = K.
        scale: s; the critic is s times the true log-ratio.
        num_queries: how many queries the expectation is taken over.
        generator: source of the draws.

    Returns:
        The value in nats, a scalar in float64.

    >>> generator = torch.Generator().manual_seed(0)
    >>> value = exact_gaussian_bound(0.0, 20, num_negatives=8, generator=generator)
    >>> bool(value.abs() < 1e-9)
    True
    """
    require_negatives(num_negatives)
    if num_queries < 1:
        raise InputError(f"num_queries={num_queries}; the mean needs at least 1.")
    alpha = num_negatives if alpha is None else alpha
    margin = eqco_margin(alpha, num_negatives, temperature=1.0)
    total = torch.zeros((), dtype=torch.float64)
    chunk = max(1, 2_000_000 // (num_negatives * dim))
    for start in range(0, num_queries, chunk):
        count = min(chunk, num_queries - start)
        x, y = gaussian_pairs(correlation, dim, count, generator)
        others = torch.randn(count, num_negatives, dim, dtype=torch.float64, generator=generator)
        positive = scale * gaussian_log_ratio(x, y, correlation)
        negative = scale * gaussian_log_ratio(x[:, None], others, correlation)
        total += info_nce(positive, negative, temperature=1.0, margin=margin).sum()
    return information_bound(total / num_queries, alpha)


def best_critic_scale(
    positive: Tensor, negative: Tensor, *, alpha: float, largest: float = 32.0
) -> float:
    r"""The multiple s of a critic whose f̂ is highest, between 0 and `largest`.

    .. math:: L(s) = \mathbb{E} \log\Big(1 + \frac{\alpha}{K}
        \sum_{i=1}^K e^{s\,(c_i - c_0)}\Big)

    is convex in s, so a golden-section search finds its least value.

    Args:
        positive: the critic's values for the positive pairs, (N,).
        negative: its values for the negative pairs, (N, K).
        alpha: α.
        largest: where the search ends.

    Returns:
        s, to a ten-thousandth of `largest`.

    >>> positive = torch.tensor([1.0, 1.0, 1.0, -1.0])
    >>> round(best_critic_scale(positive, torch.zeros(4, 1), alpha=3), 1)
    1.9
    """
    require_positive("alpha", alpha)
    require_similarities(positive, negative, temperature=1.0)
    gaps = negative - positive[:, None]
    log_weight = math.log(alpha / negative.shape[1])

    def loss(scale: float) -> float:
        return float(softplus(torch.logsumexp(scale * gaps, dim=1) + log_weight).mean())

    return golden_section(loss, 0.0, largest, tolerance=largest / 10_000)


def golden_section(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float
) -> float:
    """Where a convex function is least between two ends.

    >>> round(golden_section(lambda x: (x - 2) ** 2, 0.0, 5.0, tolerance=1e-6), 4)
    2.0
    """
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > tolerance:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = function(right)
    return (low + high) / 2


def approximate_gaussian_bound(
    correlation: float,
    dim: int,
    *,
    alpha: float,
    num_queries: int = 100_000,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The K-free form of f_bound on correlated Gaussians (Eq. 6; third line of Eq. 3).

    .. math::
        f \approx \log(1+\alpha) - \mathbb{E} \log\Big(1 + \alpha \frac{P(k_0)}{P(k_0|q)}\Big)

    The paper's approximation: the mean over K negatives is replaced by its expectation, 1. It is
    the limit of `exact_gaussian_bound` as K grows while α stays.

    Args:
        correlation: ρ of Eq. 9.
        dim: d of Eq. 9.
        alpha: α.
        num_queries: how many queries the expectation is taken over.
        generator: source of the draws.

    Returns:
        The value in nats, a scalar in float64.

    >>> bool(approximate_gaussian_bound(0.0, 20, alpha=512).abs() < 1e-9)
    True
    """
    require_positive("alpha", alpha)
    x, y = gaussian_pairs(correlation, dim, num_queries, generator)
    log_ratio = gaussian_log_ratio(x, y, correlation)
    return information_bound(softplus(math.log(alpha) - log_ratio).mean(), alpha)


def gaussian_pairs(
    correlation: float, dim: int, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    r"""Pairs of correlated Gaussian vectors (Eq. 9), each (count, d), float64.

    .. math:: Y = \rho X + \sqrt{1 - \rho^2}\, \epsilon

    >>> x, y = gaussian_pairs(0.6, 20, 50_000, torch.Generator().manual_seed(0))
    >>> round(float((x * y).mean()), 2)
    0.6
    """
    require_dimension(dim)
    require_correlation(correlation)
    if count < 1:
        raise InputError(f"{count} pairs; at least 1 must be drawn.")
    x, noise = torch.randn(2, count, dim, dtype=torch.float64, generator=generator)
    return x, correlation * x + math.sqrt(1 - correlation * correlation) * noise


def require_dimension(dim: int) -> None:
    """Refuse vectors without entries."""
    if dim < 1:
        raise InputError(f"dim={dim}; the vectors need at least 1 dimension.")


def require_correlation(correlation: float) -> None:
    """Refuse what is no correlation, and a perfect one, whose information has no end."""
    if not -1 < correlation < 1:
        raise InputError(f"correlation={correlation}; it must lie strictly between -1 and 1.")
