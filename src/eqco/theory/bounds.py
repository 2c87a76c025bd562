"""What the loss says about information (Eq. 4 and 6) and about the gradient (Eq. 7)."""

import math

import torch
from torch import Tensor

from eqco.runtime.errors import InputError
from eqco.theory.infonce import log_odds, require_similarities
from eqco.theory.rules import require_negatives, require_positive

__all__ = [
    "expected_gradient_bound",
    "gradient_bound",
    "information_bound",
    "is_guaranteed_bound",
    "largest_overshoot",
]


def information_bound(loss: Tensor, alpha: float) -> Tensor:
    r"""The empirical information bound f̂ of a measured loss, in nats (Eq. 4 and 6).

    .. math:: \hat f = \log(1 + \alpha) - L, \qquad \alpha = K e^{m/\tau}

    Without a margin α is K. **With α ≤ K this is a guaranteed lower bound of the information
    (in expectation, for any critic); with α > K it is an estimate** that can exceed the truth by up
    to log((1+α)/(1+K)): see `is_guaranteed_bound` and `largest_overshoot`. On 20-dimensional
    Gaussians of true information 2, with K = 4 and α = 512, it reads 2.8 with the true log-ratio of
    densities as critic, and 3.7 with three times that:

    >>> from eqco.theory.gaussians import exact_gaussian_bound, gaussian_correlation
    >>> correlation = gaussian_correlation(2.0, dim=20)
    >>> for scale in (1, 3):
    ...     generator = torch.Generator().manual_seed(0)
    ...     reading = exact_gaussian_bound(
    ...         correlation, 20, num_negatives=4, alpha=512, scale=scale, generator=generator)
    ...     print(round(float(reading), 1))
    2.8
    3.7
    >>> is_guaranteed_bound(512, num_negatives=4)
    False

    Args:
        loss: any InfoNCE or EqCo loss, any shape.
        alpha: the α of its margin, or K where there is none.

    >>> information_bound(torch.tensor(0.0), alpha=255)
    tensor(5.5452)
    """
    if alpha == math.inf:
        raise InputError(
            "alpha=inf, the decoupled loss, whose reading is log(K) − loss and never a guaranteed "
            "bound. Subtract the loss from math.log(K)."
        )
    require_positive("alpha", alpha)
    return math.log1p(alpha) - loss


def is_guaranteed_bound(alpha: float, num_negatives: int) -> bool:
    """Whether f̂ cannot exceed the true information in expectation: when α ≤ K.

    The proof is in docs/paper_notes.md#bound-or-estimate.

    >>> is_guaranteed_bound(256, num_negatives=256), is_guaranteed_bound(65536, num_negatives=256)
    (True, False)
    """
    require_positive("alpha", alpha)
    require_negatives(num_negatives)
    return alpha <= num_negatives


def largest_overshoot(alpha: float, num_negatives: int) -> float:
    r"""By how much f̂ may exceed the true information in expectation, at the most.

    .. math:: \max\Big(0, \log\frac{1+\alpha}{1+K}\Big)

    since log(1+K) − L is a guaranteed bound whatever the margin.

    >>> round(largest_overshoot(512, num_negatives=4), 2)
    4.63
    >>> largest_overshoot(16, num_negatives=16)
    0.0
    """
    if is_guaranteed_bound(alpha, num_negatives):
        return 0.0
    return math.log1p(alpha) - math.log1p(num_negatives)


def gradient_bound(
    positive: Tensor, negative: Tensor, *, temperature: float, margin: float = 0.0
) -> Tensor:
    r"""Upper bound of ‖dL/dq‖ for unit keys, per query (Eq. 14, the proof's per-sample form).

    .. math::
        \Big\|\frac{dL}{dq}\Big\| \le
            \frac{2}{\tau}\Big(1 - \frac{s_0}{s_0 + \frac{\alpha}{K}\sum_i s_i}\Big)
            = \frac{2}{\tau}(1 - \Pr[x \sim H_0 \mid q, X])

    Args:
        positive: cosines with the positive key, (N,).
        negative: cosines with the negative keys, (N, K).
        temperature: τ > 0.
        margin: m; EqCo's is τ·log(α/K).

    Returns:
        The bound of each query, (N,); never more than 2/τ.

    >>> gradient_bound(torch.zeros(1), torch.zeros(1, 1), temperature=0.5)
    tensor([2.])
    """
    require_similarities(positive, negative, temperature)
    # sigmoid of the log-odds is 1 − posterior without the cancellation
    return 2 / temperature * torch.sigmoid(log_odds(positive, negative, temperature, margin))


def expected_gradient_bound(
    positive: Tensor, log_mean_exp_negative: Tensor, *, temperature: float, alpha: float
) -> Tensor:
    r"""Upper bound of the expected ‖dL/dq‖ over draws of negatives (Theorem 2: Eq. 7, 11, 15).

    .. math::
        \mathbb{E}_{k_i} \Big\|\frac{dL}{dq}\Big\| \le
            \frac{2}{\tau}\Big(1 - \frac{s_0}{s_0 + \alpha\, \mathbb{E}_{k_i}[s_i]}\Big)

    K does not appear: that is the theorem.

    Args:
        positive: cosines with the positive key, (N,).
        log_mean_exp_negative: log E[exp(q·k/τ)] over the distribution of keys, (N,).
        temperature: τ > 0.
        alpha: α > 0.

    >>> expected_gradient_bound(torch.zeros(1), torch.zeros(1), temperature=0.5, alpha=1)
    tensor([2.])
    """
    require_positive("alpha", alpha)
    require_positive("temperature", temperature)
    gap = log_mean_exp_negative + math.log(alpha) - positive / temperature
    return 2 / temperature * torch.sigmoid(gap)
