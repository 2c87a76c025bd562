"""The loss: Eq. 1 with the margin of Eq. 5, over the keys each query is scored against."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eqco.contrast.checks import (
    check_device,
    check_embeddings,
    check_finite_loss,
    check_finite_values,
    check_floating,
    check_pool,
    check_setting,
    check_temperature,
    check_transforms,
    wants_finite_check,
)
from eqco.contrast.negatives import Contrast, Negatives, check_places
from eqco.contrast.small import SMALL_ELEMENTS, small_loss
from eqco.contrast.streaming import (
    chunk_size,
    precision,
    scaled,
    streamed_loss,
    without_autocast,
)
from eqco.contrast.temperature import LearnableTemperature
from eqco.runtime.errors import InputError
from eqco.theory.infonce import log_odds, softplus

__all__ = ["EqCoLoss", "NTXentLoss", "Objective", "contrastive_loss"]

Similarity = Literal["cosine", "dot"]
Reduction = Literal["mean", "sum", "none"]

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
) -> Tensor:
    r"""InfoNCE that imitates α negatives, however many there are (Eq. 1 with Eq. 5).

    .. math::
        L = -\log \frac{e^{q^\top k_0/\tau}}
                       {e^{q^\top k_0/\tau} + \frac{\alpha}{K} \sum_{i=1}^K e^{q^\top k_i/\tau}}

    K is counted from what is given. Gradient flows to whatever requires it, keys included. With
    keys that all queries share, the (N, K) matrix of similarities is never held for large K.
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
        check_finite: refuse NaN, infinity and row numbers out of range. None: on the CPU, but not
            inside torch.compile; on accelerators the check would wait for the device. False leaves
            out the check of a learning temperature too.

    Sixteen negatives imitate 65536; equal embeddings show the ceiling log(1 + α) for any K:

    >>> same = torch.ones(17, 8)
    >>> contrastive_loss(same, same, alpha=65536)
    tensor(11.0904)
    >>> round(math.log(1 + 65536), 4)
    11.0904
    """
    check_setting(temperature, alpha, margin, similarity, reduction)
    check_transforms()
    check_embeddings(queries, positives)
    check_temperature(temperature, check_finite)
    checked = wants_finite_check(check_finite, queries)
    own: Tensor | None = None
    if negatives is None:
        own = torch.arange(queries.shape[0], device=queries.device)[:, None]
        negatives = Negatives(positives, excluded=own)
    elif checked and isinstance(negatives, Negatives):
        check_places(negatives)
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
    if own is not None and not isinstance(temperature, Tensor) and is_small(size, size):
        loss = small_loss(queries, positives, temperature, positive_at=own, **given)
    else:
        loss = loss_per_query(queries, positives, negatives, temperature, **given)
    whole = reduced(loss, reduction)
    if checked:
        check_finite_loss(whole, loss, similarity, temperature, margin)
    return whole


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


def reduced(loss: Tensor, reduction: Reduction) -> Tensor:
    """One value for the batch, or as it is for "none"."""
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def gathering_small_pays(chunk: int, num_keys: int, count: int) -> bool:
    """Whether few negatives of a pool that fits one chunk are best gathered all at once."""
    return num_keys <= chunk and num_keys >= GATHER_RATIO_ONE_CHUNK * count


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
            )  # fmt: skip
        negatives = keys[indices]
    with without_autocast(queries):
        given = queries, positives, negatives
        dtype = precision(*given)
        query, key, others = (scaled(each, dtype, unit)[0] for each in given)
        if isinstance(temperature, Tensor):  # margin/τ would be rounded to the type of τ
            temperature = temperature.to(torch.promote_types(temperature.dtype, dtype))
        positive = (query * key).sum(dim=1)
        negative = (others @ query[:, :, None])[:, :, 0]
        odds = log_odds(positive, negative, temperature, margin) + offset
        return odds if decoupled else softplus(odds)


def is_small(num_queries: int, num_keys: int) -> bool:
    """Whether calls take longer than arithmetic; compiled code makes none, and is streamed."""
    return num_queries * num_keys <= SMALL_ELEMENTS and not torch.compiler.is_compiling()


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

    A temperature that learns is a `LearnableTemperature`, or an nn.Parameter of your own limits.

    >>> loss_fn = EqCoLoss(temperature=0.2, alpha=65536)
    >>> queries, positives = torch.randn(2, 32, 128)
    >>> loss_fn(queries, positives).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        temperature: float | nn.Parameter | LearnableTemperature = 0.2,
        alpha: float | None = None,
        margin: float | None = None,
        similarity: Similarity = "cosine",
        reduction: Reduction = "mean",
        check_finite: bool | None = None,
    ):
        super().__init__()
        known = 1.0 if isinstance(temperature, LearnableTemperature) else temperature
        check_setting(known, alpha, margin, similarity, reduction)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            raise InputError(
                "temperature is a tensor that no optimiser would find here. Give "
                "eqco.LearnableTemperature() or nn.Parameter(temperature) for one that learns, or "
                "a number."
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
            temperature=self.current_temperature(),
            alpha=self.alpha,
            margin=self.margin,
            similarity=self.similarity,
            reduction=self.reduction,
            check_finite=self.check_finite,
        )

    def current_temperature(self) -> float | Tensor:
        """τ as it is now."""
        if not isinstance(self.temperature, LearnableTemperature):
            return self.temperature
        learned: Tensor = self.temperature()
        return learned

    def extra_repr(self) -> str:
        """What `print` shows of the settings."""
        names = ("temperature", "alpha", "margin", "similarity", "reduction")
        # print shows a module in a line of its own
        shown = [name for name in names if not isinstance(getattr(self, name), nn.Module)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in shown)


class NTXentLoss(EqCoLoss):
    """SimCLR's loss: both views are queries and keys, so each of 2N queries has 2N − 2 negatives.

    The mean over all 2N queries, as in lightly and pytorch-metric-learning. SimCLR's own code adds
    the two directions, each a mean over N: twice this loss and twice its gradient. In its place
    use 2 · loss, or twice the learning rate.

    With N = 1 there are no negatives, and the call is refused: leave out a last batch of one by
    drop_last=True of the DataLoader.

    >>> loss_fn = NTXentLoss(temperature=0.1, alpha=4096)
    >>> first, second = torch.randn(2, 32, 128)
    >>> loss_fn(first, second).shape
    torch.Size([])
    """

    def forward(  # type: ignore[override]
        self, first: Tensor, second: Tensor
    ) -> Tensor:
        """The loss of the embeddings of two views of the same instances, each (N, D)."""
        temperature = self.current_temperature()
        check_transforms()
        for name, view in (("first", first), ("second", second)):
            check_floating(name, view)
        if first.dim() != 2 or first.shape != second.shape or first.numel() == 0:
            raise InputError(
                f"first of shape {tuple(first.shape)} and second of shape {tuple(second.shape)}; "
                f"both must be (N, D), row n of each from the same instance."
            )
        if len(first) < 2:
            raise InputError(
                f"first and second of shape {tuple(first.shape)}; N ≥ 2 is needed, since the "
                f"negatives are the other instances of the batch. Leave out a last batch of one by "
                f"DataLoader(drop_last=True), or use EqCoLoss with negatives from a queue."
            )
        check_device("second", second, first, "first")
        check_temperature(temperature, self.check_finite)
        checked = wants_finite_check(self.check_finite, first)
        if checked:
            check_finite_values({"first": first, "second": second}, self.similarity)
        with without_autocast(first):  # whose torch.cat takes no float16 on the CPU
            both = torch.cat([first, second])
        num_queries, half = both.shape[0], first.shape[0]
        partner = torch.arange(half, half + num_queries, device=both.device).remainder_(num_queries)
        given = terms(num_queries - 2, self.alpha, self.margin, self.similarity)
        if not isinstance(temperature, Tensor) and is_small(num_queries, num_queries):
            loss = small_loss(both, None, temperature, positive_at=partner[:, None], **given)
        else:
            here = torch.arange(num_queries, device=both.device)
            negatives = Negatives(both, excluded=torch.stack([here, partner], dim=1))
            loss = loss_per_query(both, both[partner], negatives, temperature, **given)
        whole = reduced(loss, self.reduction)
        if checked:
            check_finite_loss(whole, loss, self.similarity, temperature, self.margin)
        return whole
