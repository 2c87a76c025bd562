"""The loss: Eq. 1 with the margin of Eq. 5, over the keys each query is scored against."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from eqco.contrast.checks import (
    check_device,
    check_embeddings,
    check_finite_loss,
    check_finite_values,
    check_floating,
    check_places,
    check_pool,
    check_setting,
    wants_finite_check,
)
from eqco.contrast.negatives import Contrast, Negatives
from eqco.contrast.streaming import (
    chunk_size,
    precision,
    scaled,
    streamed_loss,
    without_autocast,
)
from eqco.runtime.errors import InputError
from eqco.theory.infonce import log_odds, softplus

__all__ = ["EqCoLoss", "NTXentLoss", "Objective", "contrastive_loss"]

Similarity = Literal["cosine", "dot"]
Reduction = Literal["mean", "sum", "none"]

# Of a pool that fits one chunk, gathering the drawn keys for each query beats the product with all
# from this ratio M / K on (measured at N = 256, D = 128).
GATHER_FROM = 128


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
) -> Tensor:
    r"""InfoNCE that imitates α negatives, however many there are (Eq. 1 with Eq. 5).

    .. math::
        L = -\log \frac{e^{q^\top k_0/\tau}}
                       {e^{q^\top k_0/\tau} + \frac{\alpha}{K} \sum_{i=1}^K e^{q^\top k_i/\tau}}

    K is counted from what is given. Gradient flows to whatever requires it, keys included. With
    keys that all queries share, the (N, K) matrix of similarities is never held for large K.
    Computed in float32, or in float64 where an input is, also under autocast. Differentiable once,
    by backward; `eqco.info_nce` on similarities is so any number of times, and under torch.func.
    Inside torch.compile each size of the pool is compiled anew: let a queue fill up first.

    Args:
        queries: (N, D).
        positives: row n is the positive key of query n, (N, D).
        negatives: None: the other positives of the batch, K = N − 1; (K, D): shared by all
            queries; (N, K, D): those of each query; or a `Negatives`.
        temperature: τ > 0; a tensor with one value may learn.
        alpha: the number of negatives imitated; None: plain InfoNCE; math.inf: the decoupled
            loss, which is the limit of L − log(α/K).
        margin: a handmade m in place of `alpha`; it imitates α = K·exp(m/τ).
        similarity: "cosine" (vectors are scaled to length one here; those shorter than 1e-12
            count as zero) or "dot" (taken as they are).
        reduction: "mean" over queries, "sum", or "none" for one value per query, (N,).
        check_finite: look for NaN, infinity and row numbers out of range, and refuse them.
            None: on the CPU, but not inside torch.compile; on accelerators looking would wait for
            the device.

    Sixteen negatives imitate 65536; equal embeddings show the ceiling log(1 + α) for any K:

    >>> same = torch.ones(17, 8)
    >>> contrastive_loss(same, same, alpha=65536)
    tensor(11.0904)
    >>> round(math.log(1 + 65536), 4)
    11.0904
    """
    check_setting(temperature, alpha, margin, similarity, reduction)
    check_embeddings(queries, positives)
    looks = wants_finite_check(check_finite, queries)
    if looks and negatives is not None:
        check_places(negatives)
    if negatives is None:
        own = torch.arange(len(queries), device=queries.device)[:, None]
        negatives = Negatives(positives, excluded=own)
    elif isinstance(negatives, Tensor) and negatives.dim() == 2:
        negatives = Negatives(negatives)
    num_negatives = check_pool(queries, negatives)
    if looks:
        keys = negatives.keys if isinstance(negatives, Negatives) else negatives
        named = {"queries": queries, "positives": positives}
        if keys is not positives:
            named["negatives"] = keys
        check_finite_values(named, temperature, similarity)

    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(())
    decoupled = alpha == math.inf
    offset = 0.0 if alpha is None or decoupled else math.log(alpha) - math.log(num_negatives)
    loss = loss_per_query(
        queries,
        positives,
        negatives,
        temperature,
        offset=offset,
        margin=margin or 0.0,
        decoupled=decoupled,
        unit=similarity == "cosine",
    )
    if looks:
        check_finite_loss(loss, similarity, temperature, margin)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def gathering_small_pays(chunk: int, num_keys: int, count: int) -> bool:
    """Whether few negatives of a pool that fits one chunk are best gathered all at once."""
    return num_keys <= chunk and num_keys >= GATHER_FROM * count


def loss_per_query(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor | Negatives,
    temperature: float | Tensor,
    *,
    offset: float,
    margin: float,
    decoupled: bool,
    unit: bool,
) -> Tensor:
    """Choose between keys of a pool, streamed, and a tensor of each query's own, (N,)."""
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
            )  # fmt: skip
        negatives = keys[indices]
    with without_autocast(queries):
        given = queries, positives, negatives
        query, key, others = (scaled(each, precision(*given), unit)[0] for each in given)
        positive = (query * key).sum(dim=1)
        negative = (others @ query[:, :, None])[:, :, 0]
        odds = log_odds(positive, negative, temperature, margin) + offset
        return odds if decoupled else softplus(odds)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A step's loss from its contrasts (Eq. 8 over the queries of this process).

    The one place where temperature, margin and α are applied.

    Args:
        temperature: τ.
        alpha: the number of negatives imitated; None: plain InfoNCE; math.inf: decoupled.

    >>> views = torch.randn(2, 8, 4)
    >>> contrast = Contrast(views[0], views[1], Negatives(torch.randn(16, 4)))
    >>> Objective(temperature=0.2, alpha=256)([contrast]).shape
    torch.Size([])
    """

    temperature: float
    alpha: float | None = None

    def __post_init__(self) -> None:
        check_setting(self.temperature, self.alpha, None, "cosine", "mean")

    def __call__(self, contrasts: Sequence[Contrast]) -> Tensor:
        """Weighted sum of the mean losses."""
        if not contrasts:
            raise InputError("no contrasts were given; the loss needs at least one.")
        losses = [
            contrast.weight
            * contrastive_loss(
                contrast.queries,
                contrast.positives,
                contrast.negatives,
                temperature=self.temperature,
                alpha=self.alpha,
            )
            for contrast in contrasts
        ]
        return torch.stack(losses).sum()


class EqCoLoss(nn.Module):
    """`contrastive_loss` as a module: settings at construction, embeddings at the call.

    >>> loss_fn = EqCoLoss(temperature=0.2, alpha=65536)
    >>> queries, positives = torch.randn(2, 32, 128)
    >>> loss_fn(queries, positives).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        temperature: float | nn.Parameter = 0.2,
        alpha: float | None = None,
        margin: float | None = None,
        similarity: Similarity = "cosine",
        reduction: Reduction = "mean",
        check_finite: bool | None = None,
    ):
        super().__init__()
        check_setting(temperature, alpha, margin, similarity, reduction)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            raise InputError(
                "temperature is a tensor that no optimiser would find here. Give "
                "nn.Parameter(temperature) for one that learns, or a number."
            )
        # a learning temperature is registered by this assignment
        self.temperature = temperature
        self.alpha = alpha
        self.margin = margin
        self.similarity: Similarity = similarity
        self.reduction: Reduction = reduction
        self.check_finite = check_finite

    def forward(
        self, queries: Tensor, positives: Tensor, negatives: Tensor | Negatives | None = None
    ) -> Tensor:
        """The loss of these embeddings; see `contrastive_loss` for shapes."""
        return contrastive_loss(
            queries,
            positives,
            negatives,
            temperature=self.temperature,
            alpha=self.alpha,
            margin=self.margin,
            similarity=self.similarity,
            reduction=self.reduction,
            check_finite=self.check_finite,
        )

    def extra_repr(self) -> str:
        """What `print` shows of the settings."""
        names = ("temperature", "alpha", "margin", "similarity", "reduction")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class NTXentLoss(EqCoLoss):
    """SimCLR's loss: both views are queries and keys, so each of 2N queries has 2N − 2 negatives.

    With N = 1 there are none, and the call is refused.

    >>> loss_fn = NTXentLoss(temperature=0.1, alpha=4096)
    >>> first, second = torch.randn(2, 32, 128)
    >>> loss_fn(first, second).shape
    torch.Size([])
    """

    def forward(  # type: ignore[override]
        self, first: Tensor, second: Tensor
    ) -> Tensor:
        """The loss of the embeddings of two views of the same instances, each (N, D)."""
        for name, view in (("first", first), ("second", second)):
            check_floating(name, view)
        if first.dim() != 2 or first.shape != second.shape or len(first) < 2:
            raise InputError(
                f"first of shape {tuple(first.shape)} and second of shape {tuple(second.shape)}; "
                f"both must be (N, D), row n of each from the same instance, with N ≥ 2: the "
                f"negatives are the other instances."
            )
        check_device("second", second, first, "first")
        if wants_finite_check(self.check_finite, first):
            both_views = {"first": first, "second": second}
            check_finite_values(both_views, self.temperature, self.similarity)
        both = torch.cat([first, second])
        here = torch.arange(len(both), device=both.device)
        partner = here.roll(len(first))
        excluded = torch.stack([here, partner], dim=1)
        return super().forward(both, both[partner], Negatives(both, excluded=excluded))
