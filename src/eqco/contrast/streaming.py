r"""Eq. 1 over a pool of keys that all queries share, without the (N, K) matrix of similarities.

The keys pass by in chunks. For each query three things are kept: the largest logit so far, the sum
of exponentials and the weighted sum of keys. Together they give the loss and, in the same pass, its
gradient with respect to query, positive and temperature in closed form (Eq. 13):

    g     = logsumexp_i(q·k_i/τ) − q·k_0/τ + offset          the log-odds
    L     = softplus(g)                                       Eq. 1; g itself when decoupled
    dL/dq = σ(g)/τ · (Σ_i p_i k_i − k_0),   p = softmax_i(q·k_i/τ)

So one step costs two matrix products over the pool, and two more where keys want gradient: their
p_i are then made anew chunk by chunk, unless the pool fits one chunk and they are still at hand.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["streamed_loss"]

# Similarities per chunk: 1 MiB of float32, so that a chunk stays in the cache of one core from the
# product that makes it to the product that uses it (measured in benchmarks/loss.py).
CHUNK_ELEMENTS = 2**18
# Up to here, with gradient to keys, keeping all exponentials beats making them anew.
WHOLE_ELEMENTS = 2**21


def streamed_loss(
    queries: Tensor,
    positives: Tensor,
    keys: Tensor,
    temperature: Tensor,
    *,
    offset: float,
    margin: float,
    decoupled: bool,
    unit: bool,
    columns: Tensor | None = None,
    excluded: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Loss of each query over a shared pool, (N,), in float32 or float64.

    Args:
        queries: (N, D).
        positives: (N, D).
        keys: (M, D).
        temperature: τ, a scalar; may want gradient.
        offset: what is added to the log-odds whatever τ is: log(α/K).
        margin: what is added to the log-odds after division by τ: a handmade m.
        decoupled: leave the positive out of the denominator (α → ∞).
        unit: scale queries and keys to length one first.
        columns: the keys each query meets, (N, K); repeated ones count as often as they stand.
        excluded: the keys a query may never meet, (N, E).
        chunk: keys per chunk; None: chosen by what was measured to be fastest.
    """
    if chunk is None:
        chunk = max(64, CHUNK_ELEMENTS // len(queries))
        if keys.requires_grad and len(queries) * len(keys) <= WHOLE_ELEMENTS:
            chunk = len(keys)
    if torch.compiler.is_compiling():
        # one tensor in two roles stops the compiler; a view of it is another tensor
        positives, keys = positives.view_as(positives), keys.view_as(keys)
    loss: Tensor = StreamedContrast.apply(
        queries, positives, keys, temperature, columns, excluded,
        (offset, margin, decoupled, unit, min(chunk, len(keys))),
    )  # fmt: skip
    return loss


class StreamedContrast(torch.autograd.Function):
    """The pass over the keys, and its closed-form gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        positives: Tensor,
        keys: Tensor,
        temperature: Tensor,
        columns: Tensor | None,
        excluded: Tensor | None,
        setting: tuple[float, float, bool, bool, int],
    ) -> Tensor:
        """One pass: the loss, and what backward needs of each query."""
        offset, margin, decoupled, unit, chunk = setting
        want_query, want_positive, want_keys, want_temperature = ctx.needs_input_grad[:4]
        want_pull = want_query or want_temperature
        dtype = precision(queries, positives, keys)
        with without_autocast(queries):
            q, q_norm = scaled(queries, dtype, unit)
            k0, k0_norm = scaled(positives, dtype, unit)
            logits_of = q / temperature

            largest = q.new_full((len(q), 1), torch.finfo(q.dtype).min)
            total = torch.zeros_like(largest)
            pull = torch.zeros_like(q) if want_pull else None
            for start in range(0, len(keys), chunk):
                k, k_norm = scaled(keys[start : start + chunk], dtype, unit)
                part, met = logits(logits_of, k, start, columns, excluded)
                seen, largest = largest, torch.maximum(largest, part.amax(dim=1, keepdim=True))
                part.sub_(largest).exp_()
                if met is not None:
                    part.mul_(met)
                shrink = (seen - largest).exp_()
                total = torch.addcmul(part.sum(dim=1, keepdim=True), total, shrink)
                if pull is not None:
                    pull = torch.addmm(pull.mul_(shrink), part, k)

            closeness = (q * k0).sum(dim=1, keepdim=True)
            gap = total.log().add_(largest)
            odds = gap - (closeness - margin) / temperature + offset
            loss = odds if decoupled else F.softplus(odds)
            # dL/dg / τ: how much of the pull each query feels
            share = (torch.ones_like(odds) if decoupled else torch.sigmoid(odds)) / temperature

            to_query = to_positive = to_temperature = None
            if pull is not None:
                pull = pull / total
            if want_query and pull is not None:
                to_query = through_norm((pull - k0).mul_(share), q, q_norm)
            if want_positive:
                to_positive = through_norm(q * share.neg(), k0, k0_norm)
            if want_temperature and pull is not None:
                felt = (q * pull).sum(dim=1, keepdim=True) - closeness + margin
                to_temperature = share * felt / -temperature
            if want_keys:
                kept = (part, k, k_norm) if chunk >= len(keys) else (None, None, None)
                ctx.save_for_backward(
                    to_query, to_positive, to_temperature, q, keys, gap, total, share, temperature,
                    columns, excluded, *kept,
                )  # fmt: skip
            else:
                ctx.save_for_backward(to_query, to_positive, to_temperature)
        ctx.setting = unit, chunk
        ctx.types = queries.dtype, positives.dtype, temperature.dtype
        return loss[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Scale each query's own gradient; pass over the keys once more if they want theirs."""
        to_query, to_positive, to_temperature, *rest = ctx.saved_tensors
        upstream = upstream[:, None]
        query_type, positive_type, temperature_type = ctx.types
        grad_query = None if to_query is None else (to_query * upstream).to(query_type)
        grad_positive = None if to_positive is None else (to_positive * upstream).to(positive_type)
        grad_temperature = None
        if to_temperature is not None:
            grad_temperature = (to_temperature * upstream).sum().to(temperature_type)
        grad_keys = None
        if rest:
            with without_autocast(upstream):
                grad_keys = key_gradient(upstream, ctx.setting, *rest)
        return grad_query, grad_positive, grad_keys, grad_temperature, None, None, None


def key_gradient(
    upstream: Tensor,
    setting: tuple[bool, int],
    q: Tensor,
    keys: Tensor,
    gap: Tensor,
    total: Tensor,
    share: Tensor,
    temperature: Tensor,
    columns: Tensor | None,
    excluded: Tensor | None,
    kept_part: Tensor | None,
    kept_keys: Tensor | None,
    kept_norm: Tensor | None,
) -> Tensor:
    """dL/dk_i = Σ_n σ(g_n)/τ · p_ni · q_n, in the shape and type of the keys."""
    unit, chunk = setting
    if kept_part is not None and kept_keys is not None:
        weighted = q * (share * upstream / total)
        whole = through_norm(kept_part.t() @ weighted, kept_keys, kept_norm)
        return whole.to(keys.dtype)
    gradient = torch.empty_like(keys)
    weighted, logits_of = q * (share * upstream), q / temperature
    for start in range(0, len(keys), chunk):
        k, k_norm = scaled(keys[start : start + chunk], q.dtype, unit)
        part, met = logits(logits_of, k, start, columns, excluded)
        part.sub_(gap).exp_()
        if met is not None:
            part.mul_(met)
        gradient[start : start + chunk] = through_norm(part.t() @ weighted, k, k_norm)
    return gradient


def logits(
    logits_of: Tensor, k: Tensor, start: int, columns: Tensor | None, excluded: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """q·k_i/τ for one chunk, −∞ where a query does not meet a key, (N, chunk); and how often it
    meets each, (N, chunk), or None where every query meets every key.
    """
    part = logits_of @ k.t()
    places = excluded if columns is None else columns
    if places is None:
        return part, None
    # one column more than the chunk takes what lies outside of it
    place = places - start
    place = torch.where((place >= 0) & (place < len(k)), place, len(k))
    named = part.new_zeros(len(part), len(k) + 1)
    named = named.scatter_add_(1, place, named.new_ones(()).expand_as(place))[:, :-1]
    met = named if columns is not None else (named == 0).to(named.dtype)
    return part.masked_fill_(met == 0, -torch.inf), met


def precision(*tensors: Tensor) -> torch.dtype:
    """The type to compute in: float64 where an input is, float32 for all others."""
    doubles = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if doubles else torch.float32


def scaled(vectors: Tensor, dtype: torch.dtype, unit: bool) -> tuple[Tensor, Tensor | None]:
    """Vectors in the type to compute in, of length one where `unit`, and the lengths they had."""
    vectors = vectors.to(dtype)
    if not unit:
        return vectors, None
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-12)
    return vectors / norm, norm


def through_norm(gradient: Tensor, unit_vectors: Tensor, norm: Tensor | None) -> Tensor:
    """Carry a gradient back through v / ‖v‖: (g − v̂ (v̂·g)) / ‖v‖."""
    if norm is None:
        return gradient
    along = (unit_vectors * gradient).sum(dim=-1, keepdim=True)
    return torch.addcmul(gradient, unit_vectors, along, value=-1).div_(norm)


def without_autocast(tensor: Tensor) -> torch.autocast:
    """The loss is computed in float32 or better, also under autocast."""
    return torch.autocast(tensor.device.type, enabled=False)
