"""The loss: Eq. 1 with the margin of Eq. 5, over the keys each query is scored against."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from eqco.contrast.checks import (
    check_embeddings,
    check_finite_loss,
    check_finite_values,
    check_pool,
    check_setting,
    check_temperature,
    check_transforms,
    wants_finite_check,
)
from eqco.contrast.counting import (
    check_log_weight_values,
    check_log_weights,
    log_counts,
    name_empty,
)
from eqco.contrast.in_batch import own_places
from eqco.contrast.negatives import Negatives, check_ids, check_places
from eqco.contrast.small import SMALL_ELEMENTS, small_loss
from eqco.contrast.streaming import KEPT_BYTES, Choice, chunk_size, streamed_loss
from eqco.contrast.vectors import precision, with_lengths, without_autocast
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.theory.infonce import log_odds, softplus

__all__ = ["contrastive_loss"]

Similarity = Literal["cosine", "dot"]
Reduction = Literal["mean", "sum", "none"]
OnEmpty = Literal["refuse", "skip"]

# Of a pool that fits one chunk, gathering the drawn keys for each query beats the product with all
# from this ratio M / K on (measured at N = 256, D = 128).
GATHER_RATIO_ONE_CHUNK = 128


def contrastive_loss(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor | Negatives | None = None,
    *,
    temperature: float | Tensor = 0.2,
    alpha: float | None = None,
    margin: float | None = None,
    similarity: Similarity = "cosine",
    reduction: Reduction = "mean",
    check_finite: bool | None = None,
    ids: Tensor | None = None,
    key_ids: Tensor | None = None,
    log_weights: Tensor | None = None,
    on_empty: OnEmpty = "refuse",
    gather: bool = False,
) -> Tensor:
    r"""InfoNCE that imitates α negatives, however many there are (Eq. 1 with Eq. 5).

    .. math::
        L = -\log \frac{e^{q^\top k_0/\tau}}
                       {e^{q^\top k_0/\tau} + \frac{\alpha}{K} \sum_{i=1}^K e^{q^\top k_i/\tau}}

    K is counted from what is given. Gradient flows to whatever requires it, keys included. Of the
    (N, K) similarities with keys that all queries share one chunk is held at a time; where keys
    want gradient all of them, if 64 MiB hold them.
    Computed in float32, or in float64 where an input is, also under autocast. Differentiable once,
    by backward; `eqco.info_nce` on similarities is so any number of times, and under torch.func.
    Runs under torch.compile and FakeTensorMode; torch.jit.trace and torch.func are refused.
    Inside torch.compile each size of the pool is compiled anew: let a queue fill up first.

    Args:
        queries: (N, D).
        positives: row n is the positive key of query n, (N, D).
        negatives: None: the other positives of the batch, K = N − 1; (K, D): shared by all
            queries; (N, K, D): those of each query; or a `Negatives`.
        temperature: τ > 0; a tensor with one value may learn: `LearnableTemperature` has limits,
            any other is checked in every call, and refused at 0 and below.
        alpha: the number of negatives imitated; None: plain InfoNCE; math.inf: the decoupled
            loss, which is the limit of L − log(α/K).
        margin: a handmade m in place of `alpha`; it imitates α = K·exp(m/τ).
        similarity: "cosine" (vectors are scaled to length one here; those no longer than 1e-12
            count as zero: cosine 0 with all, and no gradient) or "dot" (taken as they are).
        reduction: "mean" over queries, "sum", or "none" for one value per query, (N,).
        check_finite: refuse NaN, infinity, row numbers out of range and queries without negatives.
            None: on the CPU, but not inside torch.compile; on accelerators the check would wait for
            the device. False leaves out the check of a learning temperature too.
        ids: what each query is an instance of, (N,): a key of the same id is never its negative,
            such as another view or a duplicate. K, and with it the margin, is each query's own.
        key_ids: those of the keys in `negatives`, (M,); (N, K) where these are of each query.
            None: those that a `Negatives` carries, such as a queue's. Without `negatives` the
            positives have the ids of their queries.
        log_weights: the log of how much each key counts, (M,), or each pair, (N, M): K becomes the
            sum of the weights, so that a weight of 2 is two copies, and with α equal weights
            change nothing. −∞ leaves a key out. Without gradient.
        on_empty: "refuse" a query that is left without negatives, or "skip" it: its loss is 0, and
            the mean is over the others. Without `check_finite` none is refused, all are skipped.
        gather: take the positives, or `negatives`, of all processes of torch.distributed as
            negatives, with gradient where they carry it, and their ids and weights. With DDP's
            mean of gradients a step on the mean loss is that of one process with the whole batch;
            so is the mean of the losses. Nothing changes where there is one process.

    Sixteen negatives imitate 65536; equal embeddings show the ceiling log(1 + α) for any K:

    >>> same = torch.ones(17, 8)
    >>> contrastive_loss(same, same, alpha=65536)
    tensor(11.0904)
    >>> round(math.log(1 + 65536), 4)
    11.0904

    A text that stands twice in the batch is not pushed away from itself:

    >>> queries, positives = torch.eye(4), torch.eye(4)
    >>> ids = torch.tensor([7, 7, 8, 9])
    >>> contrastive_loss(queries, positives, ids=ids, alpha=64, temperature=1.0, reduction="none")
    tensor([3.2005, 3.2005, 3.2005, 3.2005])
    """
    whole, _ = loss_and_empty(
        queries, positives, negatives, temperature, alpha, margin, similarity, reduction,
        check_finite, ids, key_ids, log_weights, on_empty, gather,
    )  # fmt: skip
    return whole


def loss_and_empty(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor | Negatives | None,
    temperature: float | Tensor,
    alpha: float | None,
    margin: float | None,
    similarity: Similarity,
    reduction: Reduction,
    check_finite: bool | None,
    ids: Tensor | None,
    key_ids: Tensor | None,
    log_weights: Tensor | None,
    on_empty: OnEmpty,
    gather: bool,
    kept_bytes: int = KEPT_BYTES,
) -> tuple[Tensor, Tensor | None]:
    """`contrastive_loss`, and which queries were skipped, (N,); None where none could be.

    Of several losses in a step each has its share of `kept_bytes`; see `streamed_loss`.
    """
    check_setting(temperature, alpha, margin, similarity, reduction)
    if on_empty not in ("refuse", "skip"):
        raise InputError(f"on_empty={on_empty!r}; there are 'refuse', 'skip'.")
    check_transforms()
    check_embeddings(queries, positives)
    check_temperature(temperature, check_finite)
    temperature = temperature if isinstance(temperature, Tensor) else float(temperature)
    checked = wants_finite_check(check_finite, queries)
    plain = ids is None and log_weights is None and key_ids is None
    own: Tensor | None = None
    if negatives is None:
        if key_ids is not None:
            raise InputError(
                "key_ids were given without negatives; the positives have the ids of their queries."
            )
        own = own_places(positives) if gather else torch.arange(len(queries), device=queries.device)
        own = own[:, None]
        negatives = Negatives(all_keys(positives, gather), excluded=own)
        key_ids = ids
    elif isinstance(negatives, Negatives):
        if checked:
            check_places(negatives)
        if ids is not None and negatives.ids is not None:
            if key_ids is not None:
                raise InputError(
                    "key_ids were given, and the negatives carry ids already. Give one of them."
                )
            key_ids = negatives.ids
    if gather and own is None:
        if not isinstance(negatives, Tensor) or negatives.dim() != 2:
            raise InputError(
                "gather=True takes the keys of all processes from a tensor (K, D), or from the "
                "positives where no negatives are given. For a batch beside a queue, combine "
                "in_batch_negatives(keys, gather=True) with queue.negatives()."
            )
        own_places(negatives)
        negatives = all_keys(negatives, gather)
    if isinstance(negatives, Tensor) and negatives.dim() == 2:
        negatives = Negatives(negatives)
    num_negatives = check_pool(queries, negatives)
    if checked:
        keys = negatives.keys if isinstance(negatives, Negatives) else negatives
        named = {"queries": queries, "positives": positives}
        if keys is not positives:
            named["negatives"] = keys
        check_finite_values(named, similarity)
    given = terms(num_negatives, alpha, margin, similarity)
    size = queries.shape[0]
    if plain:
        local = own is not None and not (gather and processes.world_size() > 1)
        if own is not None and local and is_small(size, size) and isinstance(temperature, float):
            loss = small_loss(queries, positives, temperature, positive_at=own, **given)
        else:
            loss = loss_per_query(
                queries, positives, negatives, temperature, **given, kept_bytes=kept_bytes
            )
        empty = None
    else:
        choice = check_choice(
            queries, negatives, ids, key_ids, log_weights, gather, own is not None
        )
        if checked and choice.log_weights is not None:
            check_log_weight_values(choice.log_weights)
        loss, empty = loss_by_choice(
            queries, positives, negatives, temperature, choice, alpha, given, kept_bytes
        )
        if checked and on_empty == "refuse":
            name_empty(empty, ids)
    whole = reduce_loss(loss, reduction, empty, gather)
    if checked:
        check_finite_loss(whole, loss, similarity, temperature, margin)
    return whole, empty


def all_keys(rows: Tensor, gather: bool) -> Tensor:
    """The rows of all processes where asked for, with gradient."""
    return processes.gather_with_gradient(rows) if gather else rows


def check_choice(
    queries: Tensor,
    negatives: Tensor | Negatives,
    ids: Tensor | None,
    key_ids: Tensor | None,
    log_weights: Tensor | None,
    gather: bool,
    in_batch: bool,
) -> Choice:
    """Ids and weights of the keys of all processes, checked."""
    num_queries = len(queries)
    shared = isinstance(negatives, Negatives)
    keys = negatives.keys if isinstance(negatives, Negatives) else negatives
    pool = tuple(keys.shape[:-1])
    pairs = (num_queries, len(keys)) if shared else pool
    local = (pool[0] // processes.world_size(),) if gather else pool
    if (ids is None) != (key_ids is None):
        given, missing = ("ids", "key_ids") if key_ids is None else ("key_ids", "ids")
        raise InputError(
            f"{given} were given without {missing}; to compare them give those of the queries "
            f"(N,) as ids and those of the negatives {pool} as key_ids. A queue keeps those of its "
            f"keys with KeyQueue(…, with_ids=True)."
        )
    if ids is not None and key_ids is not None:
        ids = check_ids("ids", ids, (num_queries,), queries)
        key_ids = ids if in_batch else check_ids("key_ids", key_ids, local, queries)
        key_ids = processes.gather(key_ids) if gather else key_ids
    if log_weights is not None:
        log_weights = check_log_weights(log_weights, local, pairs, queries)
        log_weights = log_weights.to(precision(queries, keys))
        if gather and log_weights.dim() == 1:
            log_weights = processes.gather(log_weights)
    if not isinstance(negatives, Negatives):
        return Choice(None, None, ids, key_ids, log_weights)
    chosen = negatives.indices if negatives.mask is None else negatives.mask
    return Choice(chosen, negatives.excluded, ids, key_ids, log_weights)


def loss_by_choice(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor | Negatives,
    temperature: float | Tensor,
    choice: Choice,
    alpha: float | None,
    given: dict[str, Any],
    kept_bytes: int = KEPT_BYTES,
) -> tuple[Tensor, Tensor]:
    """The loss where ids or weights give each query a K of its own; and which have none, (N,)."""
    keys = negatives.keys if isinstance(negatives, Negatives) else negatives
    dtype = precision(queries, positives, keys)
    if isinstance(negatives, Negatives):
        log_k = log_counts(len(queries), len(negatives.keys), choice, dtype)
    else:
        own = own_log_weights(choice, negatives, dtype)
        log_k = own.logsumexp(dim=1)
    empty = log_k == -torch.inf
    offset: Tensor | float = 0.0
    if alpha is not None and alpha != math.inf:
        offset = math.log(alpha) - log_k.masked_fill(empty, 0.0)
    given = {**given, "offset": offset}
    if isinstance(negatives, Negatives):
        if isinstance(temperature, Tensor):
            temperature = temperature.reshape(())
        chosen, excluded = choice.chosen, choice.excluded
        masked = chosen is not None and chosen.dtype == torch.bool
        loss = streamed_loss(
            queries, positives, negatives.keys, temperature, **given,
            indices=None if masked else chosen, mask=chosen if masked else None, excluded=excluded,
            ids=choice.ids, key_ids=choice.key_ids, log_weights=choice.log_weights,
            trained=negatives.num_trained, kept_bytes=kept_bytes,
        )  # fmt: skip
    else:
        # a finite number, so that a query whose keys are all barred has a gradient of zero
        own = own.clamp_min(torch.finfo(dtype).min / 4)
        loss = loss_per_query(queries, positives, negatives, temperature, **given, log_weights=own)
    return loss.masked_fill(empty, 0.0), empty


def own_log_weights(choice: Choice, negatives: Tensor, dtype: torch.dtype) -> Tensor:
    """The log weight of each query's own keys, (N, K); −∞ where the id is the query's."""
    weights = torch.zeros(negatives.shape[:2], dtype=dtype, device=negatives.device)
    if choice.log_weights is not None:
        weights = weights + choice.log_weights
    if choice.ids is not None and choice.key_ids is not None:
        weights = weights.masked_fill(choice.key_ids == choice.ids[:, None], -torch.inf)
    return weights


def terms(
    num_negatives: int, alpha: float | None, margin: float | None, similarity: Similarity
) -> dict[str, Any]:
    """α, margin and similarity as arguments of `small_loss` and `loss_per_query`."""
    decoupled = alpha == math.inf
    ratio = 0.0 if alpha is None or decoupled else math.log(alpha) - math.log(num_negatives)
    return {
        "offset": ratio,
        "margin": margin or 0.0,
        "decoupled": decoupled,
        "unit": similarity == "cosine",
    }


def reduce_loss(
    loss: Tensor, reduction: Reduction, empty: Tensor | None = None, gather: bool = False
) -> Tensor:
    """One value for the batch, or as it is for "none"; the mean is over queries that have
    negatives, those of all processes where these are gathered.
    """
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if empty is None:
        return loss.mean()
    kept = (~empty).sum().to(loss.dtype)
    if gather:
        kept = processes.mean_over_processes(kept)
    return loss.sum() / kept.clamp_min(torch.finfo(loss.dtype).tiny)


def gathering_small_pays(chunk: int, num_keys: int, count: int) -> bool:
    """Whether few negatives of a pool that fits one chunk are best gathered all at once."""
    return num_keys <= chunk and num_keys >= GATHER_RATIO_ONE_CHUNK * count


def loss_per_query(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor | Negatives,
    temperature: float | Tensor,
    *,
    offset: float | Tensor,
    margin: float,
    decoupled: bool,
    unit: bool,
    log_weights: Tensor | None = None,
    kept_bytes: int = KEPT_BYTES,
) -> Tensor:
    """Choose between keys of a pool, streamed, and a tensor of each query's own, (N,)."""
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(())
    if isinstance(negatives, Negatives):
        keys, indices = negatives.keys, negatives.indices
        chunk = chunk_size(len(queries), len(keys), keys.requires_grad)
        if torch.compiler.is_compiling():
            chunk = len(keys)  # one gather is a small graph, many chunks are not
        if indices is None or not gathering_small_pays(chunk, len(keys), indices.shape[1]):
            return streamed_loss(
                queries, positives, keys, temperature,
                offset=offset, margin=margin, decoupled=decoupled, unit=unit,
                indices=indices, excluded=negatives.excluded, mask=negatives.mask,
                trained=negatives.num_trained, kept_bytes=kept_bytes,
            )  # fmt: skip
        negatives = keys[indices]
    with without_autocast(queries):
        given = queries, positives, negatives
        dtype = precision(*given)
        query, key, others = (with_lengths(each, dtype, unit)[0] for each in given)
        if isinstance(temperature, Tensor):  # margin/τ would be rounded to the type of τ
            temperature = temperature.to(torch.promote_types(temperature.dtype, dtype))
        positive = (query * key).sum(dim=1)
        negative = (others @ query[:, :, None])[:, :, 0]
        if log_weights is None:
            odds = log_odds(positive, negative, temperature, margin) + offset
        else:  # beside τ, since the log weight of a barred key over τ is not finite
            gap = torch.logsumexp(negative / temperature + log_weights, dim=1)
            odds = gap - (positive - margin) / temperature + offset
        return odds if decoupled else softplus(odds)


def is_small(num_queries: int, num_keys: int) -> bool:
    """Whether calls take longer than arithmetic; compiled code makes none, and is streamed."""
    return num_queries * num_keys <= SMALL_ELEMENTS and not torch.compiler.is_compiling()
