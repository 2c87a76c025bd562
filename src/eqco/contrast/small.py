r"""Eq. 1 over a small pool that holds the positives too, with all similarities at once.

Where the batch is its own pool, the positive key is one column of the similarities, and one matrix
carries the whole gradient. With p = softmax_i(q·k_i/τ) over the negatives, and −1 in the column of
the positive,

    W = σ(g)/τ · p,    dL/dq = W k,    dL/dk = Wᵀ q

This takes half as many calls as the pass of `eqco.contrast.streaming`, and calls are what counts
where matrices are small.
"""

from typing import Any

import torch
from torch import Tensor

from eqco.contrast.streaming import fits_unshifted, refuse_second_derivative
from eqco.contrast.vectors import precision, through_norm, with_lengths, without_autocast
from eqco.theory.infonce import softplus

__all__ = ["SMALL_ELEMENTS", "small_loss"]

# Similarities up to which calls take longer than arithmetic.
SMALL_ELEMENTS = 2**14


def small_loss(
    queries: Tensor,
    pool: Tensor | None,
    temperature: float,
    *,
    positive_at: Tensor,
    offset: float,
    margin: float,
    decoupled: bool,
    unit: bool,
) -> Tensor:
    """Loss of each query, (N,), in float32 or float64.

    Args:
        queries: (N, D).
        pool: the keys, positives among them, (M, D); None: the queries, each a key
            of all others.
        temperature: τ.
        positive_at: the row of each query's positive in the pool, (N, 1).
        offset: what is added to the log-odds: log(α/K).
        margin: what is added to the log-odds after division by τ: a handmade m.
        decoupled: leave the positive out of the denominator (α → ∞).
        unit: scale queries and keys to length one first.
    """
    offset += margin / temperature
    loss: Tensor = SmallContrast.apply(
        queries, pool, positive_at, temperature, offset, decoupled, unit
    )
    return loss


class SmallContrast(torch.autograd.Function):
    """The loss, and its closed-form gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        pool: Tensor | None,
        positive_at: Tensor,
        temperature: float,
        offset: float,
        decoupled: bool,
        unit: bool,
    ) -> Tensor:
        """The loss, and W."""
        dtype = precision(queries, queries if pool is None else pool)
        with without_autocast(queries):
            q, q_norm = with_lengths(queries, dtype, unit)
            k, k_norm = (q, q_norm) if pool is None else with_lengths(pool, dtype, unit)
            tau = torch.scalar_tensor(temperature, dtype=dtype, device=q.device)
            weights = (q / tau) @ k.t()
            positive = weights.gather(1, positive_at)
            weights.scatter_(1, positive_at, -torch.inf)
            if pool is None:
                weights.fill_diagonal_(-torch.inf)
            if not fits_unshifted(temperature, unit):
                largest = weights.amax(dim=1, keepdim=True)
                weights.sub_(largest)
                positive = positive - largest
            total = weights.exp_().sum(dim=1, keepdim=True)
            odds = total.log().sub_(positive)
            if offset:
                odds.add_(offset)
            loss, missed = (odds, None) if decoupled else (softplus(odds), torch.sigmoid(odds))
            weights.div_(total).scatter_(1, positive_at, -1.0)
            weights.div_(tau) if missed is None else weights.mul_(missed.div_(tau))
        ctx.save_for_backward(weights, q, q_norm, *(() if pool is None else (k, k_norm)))
        ctx.types = queries.dtype, None if pool is None else pool.dtype
        return loss.squeeze(1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """W times the keys, and its transpose times the queries."""
        refuse_second_derivative()
        weights, q, q_norm, *rest = ctx.saved_tensors
        query_type, pool_type = ctx.types
        grad_pool = None
        with without_autocast(upstream):
            weights = weights * upstream[:, None]
            if not rest:
                grad_query = torch.addmm(weights @ q, weights.t(), q)
            else:
                k, k_norm = rest
                grad_query = weights @ k
                if ctx.needs_input_grad[1]:
                    grad_pool = through_norm(weights.t() @ q, k, k_norm).to(pool_type)
            grad_query = through_norm(grad_query, q, q_norm).to(query_type)
        return grad_query, grad_pool, None, None, None, None, None
