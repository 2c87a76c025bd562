r"""Eq. 1 over a pool of keys that all queries share, without the (N, K) matrix of similarities.

The keys pass by in chunks. For each query three things are kept: the largest logit so far (where
logits could be too large for exp), the sum of exponentials and the weighted sum of keys. Together
they give the loss and, in the same pass, its gradient with respect to query, positive and
temperature in closed form (Eq. 13):

    g     = logsumexp_i(q·k_i/τ) − q·k_0/τ + offset          the log-odds
    L     = softplus(g)                                       Eq. 1; g itself when decoupled
    dL/dq = σ(g)/τ · (Σ_i p_i k_i − k_0),   p = softmax_i(q·k_i/τ)

So one step costs two matrix products over the pool. Where keys want gradient it costs one more if
the exponentials are kept, for which the contrasts of a step share 64 MiB, and else two, since they
are made anew by chunks.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eqco.contrast.vectors import (
    lengths,
    precision,
    through_norm,
    through_norm_,
    with_lengths,
    without_autocast,
)
from eqco.theory.infonce import softplus

__all__ = ["streamed_loss"]

# Similarities per chunk: 1 MiB of float32, so that a chunk stays in the cache of one core from the
# product that makes it to the product that uses it (measured in benchmarks/loss.py).
CHUNK_ELEMENTS = 2**18
# Up to here, with gradient to keys, one chunk of all keys is fastest; it is kept.
WHOLE_ELEMENTS = 2**22
# Of more, with gradient to keys, the exponentials are kept chunk by chunk where they fit: 64 MiB,
# which the contrasts of a step share.
KEPT_BYTES = 2**26
# From this ratio of all keys to those drawn for each query, gathering these beats the products with
# all, where all do not fit one chunk (measured at N = 256, D = 128).
GATHER_RATIO_MANY_CHUNKS = 32
# Numbers gathered at once: half a MiB of float32, which stays in the cache of one core.
GATHERED_ELEMENTS = 2**17
# Logits up to this size need no shift before exp: e^40 times any number of keys fits float32.
LARGEST_UNSHIFTED = 40.0


def streamed_loss(
    queries: Tensor,
    positives: Tensor,
    keys: Tensor,
    temperature: float | Tensor,
    *,
    offset: float | Tensor,
    margin: float,
    decoupled: bool,
    unit: bool,
    indices: Tensor | None = None,
    excluded: Tensor | None = None,
    mask: Tensor | None = None,
    ids: Tensor | None = None,
    key_ids: Tensor | None = None,
    log_weights: Tensor | None = None,
    trained: int | None = None,
    chunk: int | None = None,
    kept_bytes: int = KEPT_BYTES,
) -> Tensor:
    """Loss of each query over a shared pool, (N,), in float32 or float64.

    Args:
        queries: (N, D).
        positives: (N, D).
        keys: (M, D).
        temperature: τ; a tensor of one value may want gradient.
        offset: what is added to the log-odds whatever τ is: log(α/K), one number or (N,).
        margin: what is added to the log-odds after division by τ: a handmade m.
        decoupled: leave the positive out of the denominator (α → ∞).
        unit: scale queries and keys to length one first.
        indices: the keys each query is scored against, (N, K); a repeated one counts each
            time.
        excluded: the keys that are no negatives of a query, (N, E), where neither `indices` nor
            `mask` says which are.
        mask: True for the keys each query is scored against, (N, M), in place of `indices`.
        ids: of the queries, (N,): a key of the same id is no negative.
        key_ids: of the keys, (M,); only with `ids`.
        log_weights: what is added to the logit of each key, (M,), or of each pair, (N, M).
        trained: how many keys, the first of all, want gradient; None: all, if `keys` does.
        chunk: keys per chunk; None: chosen by what was measured to be fastest, which for few
            indices of many keys is to gather each query's own.
        kept_bytes: what the exponentials of several chunks may take until backward, where keys want
            gradient.
    """
    gathered, plain = False, ids is None and log_weights is None
    if chunk is None:
        chunk = chunk_size(len(queries), len(keys), keys.requires_grad)
        # its many small blocks would all become part of a compiled graph
        if indices is not None and plain and not torch.compiler.is_compiling():
            gathered = gathering_pays(chunk, len(keys), indices.shape[1])
    if torch.compiler.is_compiling():
        # one tensor in two roles stops the compiler; a view of it is another tensor
        positives, keys = positives.view_as(positives), keys.view_as(keys)
    trained = len(keys) if trained is None else trained
    setting = Setting(margin, decoupled, unit, min(chunk, len(keys)), gathered, trained, kept_bytes)
    choice = Choice(indices if mask is None else mask, excluded, ids, key_ids, log_weights)
    offset = offset[:, None] if isinstance(offset, Tensor) else offset
    loss: Tensor = StreamedContrast.apply(
        queries, positives, keys, temperature, offset, setting, *choice
    )
    return loss


class Choice(NamedTuple):
    """Which keys are negatives of each query, and how much each counts; see `streamed_loss`."""

    chosen: Tensor | None = None
    excluded: Tensor | None = None
    ids: Tensor | None = None
    key_ids: Tensor | None = None
    log_weights: Tensor | None = None


class Setting(NamedTuple):
    """What the pass over the keys needs besides tensors; see `streamed_loss`."""

    margin: float
    decoupled: bool
    unit: bool
    chunk: int
    gathered: bool
    trained: int
    kept_bytes: int


def chunk_size(num_queries: int, num_keys: int, keys_want_gradient: bool) -> int:
    """Keys per chunk that was measured to be fastest."""
    if keys_want_gradient and num_queries * num_keys <= WHOLE_ELEMENTS:
        return num_keys
    return max(64, CHUNK_ELEMENTS // num_queries)


def gathering_pays(chunk: int, num_keys: int, count: int) -> bool:
    """Whether gathering `count` keys for each query beats the products with all keys."""
    return num_keys > chunk and num_keys >= GATHER_RATIO_MANY_CHUNKS * count


class StreamedContrast(torch.autograd.Function):
    """The pass over the keys, and its closed-form gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        positives: Tensor,
        keys: Tensor,
        temperature: float | Tensor,
        offset: float | Tensor,
        setting: Setting,
        *chosen: Tensor | None,
    ) -> Tensor:
        """One pass: the loss, and the gradient of each query's own loss."""
        want_query, want_positive, want_keys, want_temperature = ctx.needs_input_grad[:4]
        want_weighted = want_query or want_temperature
        dtype, unit, choice = precision(queries, positives, keys), setting.unit, Choice(*chosen)
        with without_autocast(queries):
            q, q_norm = with_lengths(queries, dtype, unit)
            k0, k0_norm = with_lengths(positives, dtype, unit)
            logits_of = q / temperature

            shifted = not fits_unshifted(temperature, unit, choice)
            kept: tuple[Tensor | None, ...] = None, None, None
            if setting.gathered:
                assert choice.chosen is not None
                total, largest, weighted_keys = gathered_sums(
                    logits_of, keys, choice.chosen, unit, shifted, want_weighted
                )
            else:
                # a shift changes from chunk to chunk, so that exponentials do not stay as they are
                fits = len(q) * setting.trained * dtype.itemsize <= setting.kept_bytes
                keep = setting.trained if want_keys and not shifted and fits else 0
                kept, (total, largest, weighted_keys) = streamed_sums(
                    logits_of, keys, choice, unit, shifted, setting.chunk, want_weighted, keep
                )
            # ids and weights may leave a query without negatives
            if choice.ids is not None or choice.log_weights is not None:
                total.clamp_min_(torch.finfo(dtype).tiny)  # so that all stays finite

            gap = total.log()
            if largest is not None:
                gap.add_(largest)
            positive_similarity = (q * k0).sum(dim=1, keepdim=True)
            odds = gap - (positive_similarity - setting.margin) / temperature + offset
            # dL/dg / τ
            if setting.decoupled:
                loss, grad_scale = odds, torch.ones_like(odds) / temperature
            else:
                loss, grad_scale = softplus(odds), torch.sigmoid(odds) / temperature

            to_query = to_positive = to_temperature = None
            if want_weighted:
                weighted_keys = weighted_keys.div_(total)
            if want_temperature:
                mean_similarity = (q * weighted_keys).sum(dim=1, keepdim=True)
                d_temperature = mean_similarity - positive_similarity + setting.margin
                to_temperature = grad_scale * d_temperature / -temperature
            if want_query:
                to_query = through_norm((weighted_keys - k0).mul_(grad_scale), q, q_norm)
            if want_positive:
                to_positive = through_norm(q * grad_scale.neg(), k0, k0_norm)
            learned = temperature if isinstance(temperature, Tensor) else None
            for_keys: tuple[Tensor | None, ...] = ()
            if want_keys:
                for_keys = (q, keys, gap, total, grad_scale, learned, *kept, *choice)
            ctx.save_for_backward(to_query, to_positive, to_temperature, *for_keys)
        ctx.types = queries.dtype, positives.dtype, None if learned is None else learned.dtype
        ctx.temperature = temperature if learned is None else None
        ctx.setting = setting
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
                grad_keys = key_gradient(upstream, ctx.temperature, ctx.setting, *rest)
        others = (None,) * (len(ctx.needs_input_grad) - 4)
        return grad_query, grad_positive, grad_keys, grad_temperature, *others


class Sums(NamedTuple):
    """Over the negatives of each query: Σ exp(logit − largest), and the same with keys."""

    total: Tensor
    largest: Tensor | None
    weighted_keys: Tensor


def streamed_sums(
    logits_of: Tensor,
    keys: Tensor,
    choice: Choice,
    unit: bool,
    shifted: bool,
    chunk: int,
    want_weighted: bool,
    keep: int,
) -> tuple[tuple[Tensor | None, ...], Sums]:
    """All keys in chunks; and exponentials, keys and their lengths where there is one chunk, or
    one after the other the exponentials of the chunks that have the first keys, as many as to
    `keep`.
    """
    counts = key_counts(choice.chosen, logits_of, len(keys))
    keep = -(-keep // chunk) * chunk
    buffers = Buffers.of(logits_of, keys, chunk, keep)
    sums: Sums | None = None
    for start in range(0, len(keys), chunk):
        k, k_norm = with_lengths(keys[start : start + chunk], logits_of.dtype, unit, buffers.keys)
        memory = buffers.logits
        if memory is not None:
            memory = memory[min(start, keep) * len(logits_of) :]
        part, count = logits(logits_of, k, start, counts, choice, shifted, memory)
        sums = add_chunk(sums, part, k, count, shifted, want_weighted)
    assert sums is not None
    if chunk == len(keys):
        return (part, k, k_norm), sums
    return (buffers.logits if keep else None, None, None), sums


class Buffers(NamedTuple):
    """Memory that all chunks use in turn: fresh memory costs a page fault for every 4 KiB."""

    logits: Tensor | None
    keys: Tensor | None

    @classmethod
    def of(cls, logits_of: Tensor, keys: Tensor, chunk: int, keep: int = 0) -> "Buffers":
        """Flat memory for the logits of the keys to `keep`, then for the largest chunk of others;
        none for a single chunk, nor for the compiler.
        """
        if chunk == len(keys) or torch.compiler.is_compiling():
            return cls(None, None)
        return cls(
            logits_of.new_empty(len(logits_of) * min(len(keys), keep + chunk)),
            logits_of.new_empty(chunk, keys.shape[1]),
        )


def gathered_sums(
    logits_of: Tensor,
    keys: Tensor,
    indices: Tensor,
    unit: bool,
    shifted: bool,
    want_weighted: bool,
) -> Sums:
    """The keys of each query's own, a few queries at a time."""
    found = []
    for rows, blocks in gathered_blocks(indices, keys.shape[1]):
        sums: Sums | None = None
        for block in blocks:
            k, k_norm = gathered_keys(keys, block, logits_of.dtype, unit)
            part = (k @ logits_of[rows, :, None]).squeeze(2).div_(k_norm)
            sums = add_chunk(sums, part, k, None, shifted, want_weighted, k_norm)
        assert sums is not None
        found.append(sums)
    totals, largest, weighted = zip(*found, strict=True)
    tops = torch.cat(largest) if shifted else None
    return Sums(torch.cat(totals), tops, torch.cat(weighted))


def gathered_blocks(indices: Tensor, dim: int) -> Iterator[tuple[slice, Sequence[Tensor]]]:
    """Rows of `indices` with their blocks of columns, so that a block's keys stay in the cache."""
    num_queries, count = indices.shape
    rows = max(1, GATHERED_ELEMENTS // (count * dim))
    columns = max(1, GATHERED_ELEMENTS // dim)
    for start in range(0, num_queries, rows):
        here = slice(start, start + rows)
        yield here, torch.split(indices[here], columns, dim=1)


def gathered_keys(
    keys: Tensor, indices: Tensor, dtype: torch.dtype, unit: bool
) -> tuple[Tensor, Tensor | float]:
    """keys[indices] in the type to compute in, (n, k, D), and what to divide products with them by:
    their lengths where `unit`, (n, k).
    """
    k = keys.index_select(0, indices.reshape(-1)).view(*indices.shape, keys.shape[1]).to(dtype)
    return k, lengths(k).squeeze(2) if unit else 1.0


def add_chunk(
    sums: Sums | None,
    part: Tensor,
    k: Tensor,
    count: Tensor | None,
    shifted: bool,
    want_weighted: bool,
    k_norm: Tensor | float = 1.0,
) -> Sums:
    """Add a chunk's logits (N, chunk), which become their exponentials in place."""
    largest: Tensor | None = None
    shrink: Tensor | float = 1.0
    if shifted:
        # a query may have no key in a chunk: then all its logits there are −∞
        largest = part.amax(dim=1, keepdim=True).clamp_min_(torch.finfo(part.dtype).min)
        if sums is not None and sums.largest is not None:
            largest = torch.maximum(sums.largest, largest)
            shrink = sums.largest.sub_(largest).exp_()
        part.sub_(largest)
    part.exp_()
    if count is not None:
        part.mul_(count)
    total = part.sum(dim=1, keepdim=True)
    if sums is not None:
        total.add_(sums.total * shrink if shifted else sums.total)
        weighted = sums.weighted_keys.mul_(shrink) if shifted else sums.weighted_keys
    if not want_weighted:
        weighted = total  # unused
    elif k.dim() == 3:
        pulled = ((part / k_norm)[:, None] @ k).squeeze(1)
        weighted = pulled if sums is None else weighted.add_(pulled)
    else:
        weighted = part @ k if sums is None else weighted.addmm_(part, k)
    return Sums(total, largest, weighted)


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
    setting: Setting,
    q: Tensor,
    keys: Tensor,
    gap: Tensor,
    total: Tensor,
    grad_scale: Tensor,
    learned_temperature: Tensor | None,
    kept_part: Tensor | None,
    kept_keys: Tensor | None,
    kept_norm: Tensor | None,
    *chosen: Tensor | None,
) -> Tensor:
    """dL/dk_i = Σ_n σ(g_n)/τ · p_ni · q_n, in the shape and type of the keys."""
    if kept_part is not None and kept_keys is not None:
        weighted = q * (grad_scale * upstream / total)
        whole = through_norm(kept_part.t() @ weighted, kept_keys, kept_norm)
        return whole.to(keys.dtype)
    temperature = fixed_temperature if learned_temperature is None else learned_temperature
    assert temperature is not None
    unit, chunk, choice = setting.unit, setting.chunk, Choice(*chosen)
    shifted = not fits_unshifted(temperature, unit, choice)
    weighted = q * (grad_scale * upstream if shifted else grad_scale * upstream / total)
    logits_of = q / temperature
    if setting.gathered:
        assert choice.chosen is not None
        whole = torch.zeros(keys.shape, dtype=q.dtype, device=q.device)
        for rows, blocks in gathered_blocks(choice.chosen, keys.shape[1]):
            for block in blocks:
                own, length = gathered_keys(keys, block, q.dtype, unit)
                part = (own @ logits_of[rows, :, None]).squeeze(2).div_(length)
                if shifted:
                    part.sub_(gap[rows])
                to_key = part.exp_()[:, :, None] * weighted[rows, None]
                whole.index_add_(0, block.reshape(-1), to_key.flatten(0, 1))
        return through_norm(whole, *with_lengths(keys, q.dtype, unit)).to(keys.dtype)
    # of what else is in the chunks of those trained, and of other keys, no use is made
    gradient = torch.zeros_like(keys) if setting.trained < len(keys) else torch.empty_like(keys)
    counts = None if kept_part is not None else key_counts(choice.chosen, q, len(keys))
    buffers = Buffers.of(logits_of, keys, chunk)
    for start in range(0, setting.trained, chunk):
        k, k_norm = with_lengths(keys[start : start + chunk], q.dtype, unit, buffers.keys)
        if kept_part is not None:
            part = kept_part[start * len(q) : (start + len(k)) * len(q)].view(len(q), len(k))
        else:
            part, count = logits(logits_of, k, start, counts, choice, shifted, buffers.logits)
            if shifted:
                part.sub_(gap)
            part.exp_()
            if count is not None:
                part.mul_(count)
        here = gradient[start : start + chunk]
        if keys.dtype == q.dtype and buffers.keys is not None:
            through_norm_(torch.mm(part.t(), weighted, out=here), k, k_norm)
        else:
            here.copy_(through_norm(part.t() @ weighted, k, k_norm))
    return gradient


def fits_unshifted(temperature: float | Tensor, unit: bool, choice: Choice | None = None) -> bool:
    """Whether no logit can be too large for exp: cosines over a temperature that is known."""
    if isinstance(temperature, Tensor) or (choice is not None and choice.log_weights is not None):
        return False
    return unit and 1 / temperature <= LARGEST_UNSHIFTED


def key_counts(indices: Tensor | None, q: Tensor, size: int) -> Tensor | None:
    """How often each of `size` keys is a negative of each query, (N, M), where indices or a mask
    say so.
    """
    if indices is None:
        return None
    if indices.dtype == torch.bool:
        return indices.view(torch.uint8)  # multiplied four times as fast as flags
    # two bytes for each pair, unless one key may be repeated more often than they can count
    kind = torch.int16 if indices.shape[1] < 2**15 else torch.int32
    counts = torch.zeros(len(q), size, dtype=kind, device=q.device)
    return counts.scatter_add_(1, indices, counts.new_ones(indices.shape))


def logits(
    logits_of: Tensor,
    k: Tensor,
    start: int,
    counts: Tensor | None,
    choice: Choice,
    shifted: bool,
    memory: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """q·k_i/τ for one chunk, (N, chunk), −∞ for excluded keys; and how often each key is a negative
    of each query, (N, chunk), where that is not once: exponentials are to be multiplied by it.
    """
    num_queries, size = len(logits_of), len(k)
    here = slice(start, start + size)
    if memory is None:
        part = logits_of @ k.t()
    else:
        part = memory[: num_queries * size].view(num_queries, size)
        torch.mm(logits_of, k.t(), out=part)
    if choice.log_weights is not None:
        part.add_(choice.log_weights[..., here])
    count = None if counts is None else counts[:, here]
    if choice.ids is not None and choice.key_ids is not None:
        differs = (choice.ids[:, None] != choice.key_ids[here]).view(torch.uint8)
        count = differs if count is None else count * differs
    if count is not None and shifted:
        # the largest logit must be of a negative; elsewhere the count 0 is enough
        part.sub_((count == 0).view(torch.uint8), alpha=torch.finfo(part.dtype).max)
    if choice.excluded is not None and counts is None:
        place = choice.excluded - start
        inside = (place >= 0) & (place < size)
        # the least of a logit and −∞, or of another logit and ∞, which changes nothing
        bar = torch.where(inside, -torch.inf, torch.inf).to(part.dtype)
        part.scatter_reduce_(1, place.clamp(0, size - 1), bar, "amin")
    return part, count
