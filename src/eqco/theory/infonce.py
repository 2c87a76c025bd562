"""Eq. 1 and 2 on similarities, and their gradient (Eq. 13): the form checked against the paper."""

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.runtime.errors import InputError
from eqco.theory.rules import require_positive

__all__ = ["info_nce", "info_nce_gradient", "posterior"]


def log_odds(
    positive: Tensor, negative: Tensor, temperature: float | Tensor, margin: float
) -> Tensor:
    """log of (all negatives / positive) in Eq. 1: logsumexp_i(q·k_i/τ) − (q·k_0 − m)/τ, (N,)."""
    gap = torch.logsumexp(negative / temperature, dim=1) - positive / temperature
    return gap + margin / temperature


def softplus(odds: Tensor) -> Tensor:
    """log(1 + e^x), exact in float64 too: beyond 40 it is x to the last digit."""
    return F.softplus(odds, threshold=40.0)


def require_similarities(positive: Tensor, negative: Tensor, temperature: float) -> None:
    """Refuse shapes that would spread over each other, and a τ that divides by nothing."""
    if positive.dim() != 1 or negative.dim() != 2 or len(negative) != len(positive):
        raise InputError(
            f"similarities of shape {tuple(positive.shape)} with the positive and "
            f"{tuple(negative.shape)} with the negatives; they must be (N,) and (N, K). "
            f"eqco.contrastive_loss takes embeddings."
        )
    if negative.shape[1] < 1:
        raise InputError(
            f"similarities of shape {tuple(negative.shape)} with the negatives; each query needs "
            f"at least 1 negative."
        )
    if not isinstance(temperature, Tensor):
        require_positive("temperature", temperature)


def info_nce(
    positive: Tensor, negative: Tensor, *, temperature: float, margin: float = 0.0
) -> Tensor:
    r"""InfoNCE loss with a margin, one value per query (Eq. 1; Eq. 12 with EqCo's margin).

    .. math::
        L = -\log \frac{e^{(q^\top k_0 - m)/\tau}}
                       {e^{(q^\top k_0 - m)/\tau} + \sum_{i=1}^K e^{q^\top k_i/\tau}}

    Computed as softplus(logsumexp_i(q·k_i/τ) − q·k_0/τ + m/τ): the same number, and finite for any
    temperature.

    Args:
        positive: similarity with the positive key, (N,).
        negative: similarities with the negative keys, (N, K).
        temperature: τ > 0.
        margin: m; `eqco_margin` gives the value that makes the bound independent of K.

    Returns:
        Loss of each query, (N,).

    >>> info_nce(torch.tensor([1.0]), torch.zeros(1, 2), temperature=0.5)
    tensor([0.2395])
    """
    require_similarities(positive, negative, temperature)
    return softplus(log_odds(positive, negative, temperature, margin))


def posterior(
    positive: Tensor, negative: Tensor, *, temperature: float, margin: float = 0.0
) -> Tensor:
    r"""Probability that key 0 is the positive one, given the query and all keys (Eq. 2).

    .. math::
        \Pr[x \sim H_0 \mid q, X] =
            \frac{\frac{P^+}{P^-} r_0}{\frac{P^+}{P^-} r_0 + \sum_{i=1}^K r_i},
        \qquad r_i = \frac{P(k_i \mid q)}{P(k_i)} \propto e^{q^\top k_i/\tau},
        \quad \frac{P^+}{P^-} = e^{-m/\tau}

    Computed as sigmoid of the log-odds; Eq. 1 is its negative logarithm.

    Args:
        positive: similarity with the positive key, (N,).
        negative: similarities with the negative keys, (N, K).
        temperature: τ > 0.
        margin: m = −τ·log(P⁺/P⁻).

    Returns:
        Probability of each query's positive, (N,).

    Equal similarities leave the prior 1/(K+1):

    >>> posterior(torch.zeros(1), torch.zeros(1, 3), temperature=0.2)
    tensor([0.2500])
    """
    require_similarities(positive, negative, temperature)
    return torch.sigmoid(-log_odds(positive, negative, temperature, margin))


def info_nce_gradient(
    positive: Tensor,
    negative: Tensor,
    positive_keys: Tensor,
    negative_keys: Tensor,
    *,
    temperature: float,
    margin: float = 0.0,
) -> Tensor:
    r"""dL/dq in closed form (Eq. 13 with its misprint corrected).

    .. math::
        \frac{dL}{dq} = -\frac{1}{\tau}\Big(1 - \frac{s_0}{Z}\Big) k_0
            + \frac{\alpha}{\tau K} \sum_{i=1}^K \frac{s_i}{Z} k_i,
        \qquad s_i = e^{q^\top k_i/\tau}, \quad Z = s_0 + \frac{\alpha}{K} \sum_i s_i

    Exact for the dot product q·k, that is at the unit query and before the normalisation's own
    Jacobian. The weights α·s_i/(K·Z) are computed as (1 − posterior)·softmax_i(q·k_i/τ).

    Args:
        positive: similarity with the positive key, (N,).
        negative: similarities with the negative keys, (N, K).
        positive_keys: k_0 of each query, (N, D).
        negative_keys: keys shared by all queries, (K, D), or those of each query, (N, K, D).
        temperature: τ > 0.
        margin: m; EqCo's is τ·log(α/K), which puts α/K in front of the sums.

    Returns:
        Gradient of each query's own loss, without the 1/N of the batch mean, (N, D).

    >>> similarity = torch.zeros(1)
    >>> keys = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> info_nce_gradient(similarity, similarity[:, None], *keys, temperature=1.0)
    tensor([[-0.5000,  0.5000]])
    """
    require_similarities(positive, negative, temperature)
    # Paper: Eq. 13 prints s_0 in the second sum; s_i is meant. See docs/paper_notes.md#eq-13
    missed = torch.sigmoid(log_odds(positive, negative, temperature, margin))
    weight = missed[:, None] * torch.softmax(negative / temperature, dim=1)
    if negative_keys.dim() == 2:
        weighted_keys = weight @ negative_keys
    else:
        weighted_keys = (weight[:, None, :] @ negative_keys)[:, 0]
    return (weighted_keys - missed[:, None] * positive_keys) / temperature
