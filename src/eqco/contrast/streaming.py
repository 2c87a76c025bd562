r"""Eq. 1 over a pool of keys that all queries share, without the (N, K) matrix of similarities.

The keys pass by in chunks. For each query three things are kept: the largest logit so far (where
logits could be too large for exp), the sum of exponentials and the weighted sum of keys. Together
they give the loss and, in the same pass, its gradient with respect to query, positive and
temperature in closed form (Eq. 13):

    g     = logsumexp_i(q·k_i/τ) − q·k_0/τ + offset          the log-odds
    L     = softplus(g)                                       Eq. 1; g itself when decoupled
    dL/dq = σ(g)/τ · (Σ_i p_i k_i − k_0),   p = softmax_i(q·k_i/τ)

So one step costs two matrix products over the pool. Where keys want gradient it costs two more,
since their p_i are made anew chunk by chunk, or one where all fit one chunk and are still at hand.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.theory.infonce import softplus

__all__ = ["streamed_loss"]

# Similarities per chunk: 1 MiB of float32, so that a chunk stays in the cache of one core from the
# product that makes it to the product that uses it (measured in benchmarks/loss.py).
CHUNK_ELEMENTS = 2**18
# Up to here, with gradient to keys, keeping all exponentials beats making them anew.
WHOLE_ELEMENTS = 2**22
# Logits up to this size need no shift before exp: e^40 times any number of keys fits float32.
LARGEST_UNSHIFTED = 40.0
# Vectors no longer than this have no direction to speak of, and count as zero.
SHORTEST = 1e-12


def streamed_loss(
    queries: Tensor,
    positives: Tensor,
    keys: Tensor,
    temperature: float | Tensor,
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
        temperature: τ; a tensor of one value may want gradient.
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
    setting = Setting(offset, margin, decoupled, unit, min(chunk, len(keys)))
    loss: Tensor = StreamedContrast.apply(
        queries, positives, keys, temperature, columns, excluded, setting
    )
    return loss


class Setting(NamedTuple):
    """What the pass over the keys needs besides tensors; see `streamed_loss`."""

    offset: float
    margin: float
    decoupled: bool
    unit: bool
    chunk: int


class StreamedContrast(torch.autograd.Function):
    """The pass over the keys, and its closed-form gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        positives: Tensor,
        keys: Tensor,
        temperature: float | Tensor,
        columns: Tensor | None,
        excluded: Tensor | None,
        setting: Setting,
    ) -> Tensor:
        """One pass: the loss, and the gradient of each query's own loss."""
        want_query, want_positive, want_keys, want_temperature = ctx.needs_input_grad[:4]
        want_pull = want_query or want_temperature
        dtype, unit, chunk = precision(queries, positives, keys), setting.unit, setting.chunk
        with without_autocast(queries):
            q, q_norm = scaled(queries, dtype, unit)
            k0, k0_norm = scaled(positives, dtype, unit)
            logits_of = q / temperature

            counts = meetings(columns, q, len(keys))
            shifted = not fits_unshifted(temperature, unit)
            largest: Tensor | None = None
            total = pull = q  # set by the first chunk
            for start in range(0, len(keys), chunk):
                # queries or positives that are the whole pool too are scaled already
                if chunk == len(keys) and keys is positives:
                    k, k_norm = k0, k0_norm
                elif chunk == len(keys) and keys is queries:
                    k, k_norm = q, q_norm
                else:
                    k, k_norm = scaled(keys[start : start + chunk], dtype, unit)
                part, met = logits(logits_of, k, start, len(keys), counts, excluded)
                shrink: Tensor | float = 1.0
                if shifted:
                    # a query may meet nothing in a chunk: then all its logits there are −∞
                    top = part.amax(dim=1, keepdim=True).clamp_min_(torch.finfo(dtype).min)
                    if largest is not None:
                        top = torch.maximum(largest, top)
                        shrink = largest.sub_(top).exp_()
                    largest = top
                    part.sub_(top)
                part.exp_()
                if met is not None:
                    part.mul_(met)
                here = part.sum(dim=1, keepdim=True)
                if start == 0:
                    total, pull = here, part @ k if want_pull else q
                else:
                    total = here.add_(total * shrink)
                    pull = torch.addmm(pull.mul_(shrink), part, k) if want_pull else q

            gap = total.log()
            if largest is not None:
                gap.add_(largest)
            closeness = (q * k0).sum(dim=1, keepdim=True)
            held_back = closeness - setting.margin if setting.margin else closeness
            odds = gap - held_back / temperature
            if setting.offset:
                odds = odds + setting.offset
            # dL/dg / τ: how much of the pull each query feels
            if setting.decoupled:
                loss, share = odds, torch.ones_like(odds) / temperature
            else:
                loss, share = softplus(odds), torch.sigmoid(odds) / temperature

            to_query = to_positive = to_temperature = None
            if want_pull:
                pull = pull.div_(total)
            if want_temperature:
                felt = (q * pull).sum(dim=1, keepdim=True) - closeness + setting.margin
                to_temperature = share * felt / -temperature
            if want_query:
                to_query = through_norm((pull - k0).mul_(share), q, q_norm)
            if want_positive:
                to_positive = through_norm(q * share.neg(), k0, k0_norm)
            learned = temperature if isinstance(temperature, Tensor) else None
            for_keys: tuple[Tensor | None, ...] = ()
            if want_keys:
                kept = (part, k, k_norm) if chunk == len(keys) else (None, None, None)
                for_keys = (q, keys, gap, total, share, learned, columns, excluded, *kept)
            ctx.save_for_backward(to_query, to_positive, to_temperature, *for_keys)
        ctx.types = queries.dtype, positives.dtype, None if learned is None else learned.dtype
        ctx.temperature = temperature if learned is None else None
        ctx.unit, ctx.chunk = unit, chunk
        return loss.squeeze(1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Scale each query's own gradient; pass over the keys once more if they want theirs."""
        refuse_second_derivative()
        to_query, to_positive, to_temperature, *rest = ctx.saved_tensors
        upstream = upstream[:, None]
        query_type, positive_type, temperature_type = ctx.types
        grad_query = None if to_query is None else (to_query * upstream).to(query_type)
        grad_positive = None if to_positive is None else (to_positive * upstream).to(positive_type)
        grad_keys = grad_temperature = None
        if to_temperature is not None:
            grad_temperature = (to_temperature * upstream).sum().to(temperature_type)
        if rest:
            with without_autocast(upstream):
                grad_keys = key_gradient(upstream, ctx.temperature, ctx.unit, ctx.chunk, *rest)
        return grad_query, grad_positive, grad_keys, grad_temperature, None, None, None


def refuse_second_derivative() -> None:
    """Refuse to build a graph of the gradient: the closed form has none."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "contrastive_loss is differentiable once, and create_graph=True asks for more. "
            "Use eqco.info_nce on similarities, which is differentiable any number of times."
        )


def key_gradient(
    upstream: Tensor,
    fixed_temperature: float | None,
    unit: bool,
    chunk: int,
    q: Tensor,
    keys: Tensor,
    gap: Tensor,
    total: Tensor,
    share: Tensor,
    learned_temperature: Tensor | None,
    columns: Tensor | None,
    excluded: Tensor | None,
    kept_part: Tensor | None,
    kept_keys: Tensor | None,
    kept_norm: Tensor | None,
) -> Tensor:
    """dL/dk_i = Σ_n σ(g_n)/τ · p_ni · q_n, in the shape and type of the keys."""
    if kept_part is not None and kept_keys is not None:
        weighted = q * (share * upstream / total)
        whole = through_norm(kept_part.t() @ weighted, kept_keys, kept_norm)
        return whole.to(keys.dtype)
    gradient = torch.empty_like(keys)
    temperature = fixed_temperature if learned_temperature is None else learned_temperature
    assert temperature is not None
    shifted = not fits_unshifted(temperature, unit)
    weighted = q * (share * upstream if shifted else share * upstream / total)
    logits_of, counts = q / temperature, meetings(columns, q, len(keys))
    for start in range(0, len(keys), chunk):
        k, k_norm = scaled(keys[start : start + chunk], q.dtype, unit)
        part, met = logits(logits_of, k, start, len(keys), counts, excluded)
        if shifted:
            part.sub_(gap)
        part.exp_()
        if met is not None:
            part.mul_(met)
        gradient[start : start + chunk] = through_norm(part.t() @ weighted, k, k_norm)
    return gradient


def fits_unshifted(temperature: float | Tensor, unit: bool) -> bool:
    """Whether no logit can be too large for exp: cosines over a temperature that is known."""
    return unit and not isinstance(temperature, Tensor) and 1 / temperature <= LARGEST_UNSHIFTED


def meetings(columns: Tensor | None, q: Tensor, size: int) -> Tensor | None:
    """How often each query meets each of `size` keys, (N, M), where columns say so."""
    if columns is None:
        return None
    # two bytes for each pair, where the columns themselves take eight, unless one key may be met
    # more often than two bytes can count
    kind = torch.int16 if columns.shape[1] < 2**15 else torch.int32
    counts = torch.zeros(len(q), size, dtype=kind, device=q.device)
    return counts.scatter_add_(1, columns, counts.new_ones(()).expand_as(columns))


def logits(
    logits_of: Tensor,
    k: Tensor,
    start: int,
    size: int,
    counts: Tensor | None,
    excluded: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """q·k_i/τ for one chunk of `size` keys, −∞ where a query does not meet a key, (N, chunk); and
    how often it meets each, (N, chunk), where that is not once.
    """
    part = logits_of @ k.t()
    if counts is not None:
        met = counts[:, start : start + len(k)].to(part.dtype)
        return part.masked_fill_(met == 0, -torch.inf), met
    if excluded is not None and len(k) == size:
        part.scatter_(1, excluded, -torch.inf)
    elif excluded is not None:
        place = excluded - start
        inside = (place >= 0) & (place < len(k))
        # one column more than the chunk takes what lies outside of it
        barred = part.new_zeros(len(part), len(k) + 1, dtype=torch.bool)
        barred.scatter_(1, torch.where(inside, place, len(k)), True)
        part.masked_fill_(barred[:, :-1], -torch.inf)
    return part, None


def precision(*tensors: Tensor) -> torch.dtype:
    """The type to compute in: float64 where an input is, float32 for all others."""
    doubles = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if doubles else torch.float32


def scaled(vectors: Tensor, dtype: torch.dtype, unit: bool) -> tuple[Tensor, Tensor | None]:
    """Vectors in the type to compute in, of length one where `unit`, and the lengths they had."""
    vectors = vectors.to(dtype)
    if not unit:
        return vectors, None
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    # over an infinite length short vectors become zero, and so does what is carried back to them
    norm = F.threshold(norm, SHORTEST, torch.inf, inplace=not norm.requires_grad)
    return vectors / norm, norm


def through_norm(gradient: Tensor, unit_vectors: Tensor, norm: Tensor | None) -> Tensor:
    """Carry a gradient back through v / ‖v‖: (g − v̂ (v̂·g)) / ‖v‖."""
    if norm is None:
        return gradient
    along = (unit_vectors * gradient).sum(dim=-1, keepdim=True)
    return torch.addcmul(gradient, unit_vectors, along, value=-1).div_(norm)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """The loss is computed in float32 or better, also under autocast."""
    device = tensor.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
