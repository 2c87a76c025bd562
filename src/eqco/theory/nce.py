"""Noise-contrastive estimation as the systems with a memory bank published it, for comparison."""

import math

import torch
from torch import Tensor

from eqco.theory.infonce import require_similarities, softplus

__all__ = ["first_log_normaliser", "noise_contrastive"]


def noise_contrastive(
    positive: Tensor,
    negative: Tensor,
    *,
    temperature: float,
    log_normaliser: float | Tensor,
    num_instances: int,
) -> Tensor:
    r"""Binary NCE with a fixed normaliser Z, one value per query (CMC, PIRL).

    .. math::
        L = -\log \frac{p_0}{p_0 + K/n} - \sum_{i=1}^K \log \frac{K/n}{p_i + K/n},
        \qquad p_i = \frac{e^{q^\top k_i/\tau}}{Z}

    Computed as softplus(−a_0) + Σ softplus(a_i) with a = q·k/τ − log Z − log(K/n): the same number,
    and finite for any temperature. There is no margin in it, and so no α.

    Args:
        positive: similarity with the positive key, (N,).
        negative: similarities with the K negative keys, (N, K).
        temperature: τ > 0.
        log_normaliser: log Z; `first_log_normaliser` has the published value.
        num_instances: n, of which the noise draws each with probability 1/n.

    Returns:
        Loss of each query, (N,).

    At Z = n and similarities of 0, p is 1/n and each key has the odds 1 : K:

    >>> loss = noise_contrastive(torch.zeros(1), torch.zeros(1, 3), temperature=1.0,
    ...     log_normaliser=math.log(10), num_instances=10)
    >>> round(float(loss), 4), round(math.log(4) + 3 * math.log(4 / 3), 4)
    (2.2493, 2.2493)
    """
    require_similarities(positive, negative, temperature)
    shift = log_normaliser + math.log(negative.shape[1] / num_instances)
    return softplus(shift - positive / temperature) + softplus(negative / temperature - shift).sum(
        dim=1
    )


def first_log_normaliser(
    positive: Tensor, negative: Tensor, *, temperature: float, num_instances: int
) -> Tensor:
    r"""log Z from the similarities of one batch: Z = n · mean of e^{s/τ} over all its pairs.

    >>> same = torch.full((2,), 0.5)
    >>> first_log_normaliser(same, same.expand(3, 2).T, temperature=0.5, num_instances=1)
    tensor(1.)
    """
    require_similarities(positive, negative, temperature)
    every = torch.cat([positive[:, None], negative], dim=1) / temperature
    return every.flatten().logsumexp(0) + math.log(num_instances / every.numel())
