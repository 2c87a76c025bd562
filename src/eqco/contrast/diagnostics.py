"""What a step's embeddings say about the training: information, gradient, embeddings.

All of it is read from the contrasts of the step, without another pass through the encoder.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.contrast.advice import advice
from eqco.contrast.checks import (
    check_embeddings,
    check_finite_values,
    check_pool,
    check_setting,
)
from eqco.contrast.negatives import Contrast, Negatives
from eqco.contrast.vectors import precision, with_lengths, without_autocast
from eqco.runtime.errors import InputError
from eqco.theory import (
    eqco_margin,
    gradient_bound,
    info_nce,
    info_nce_gradient,
    is_guaranteed_bound,
)
from eqco.theory.infonce import log_odds

__all__ = [
    "Diagnostics",
    "EmbeddingDiagnostics",
    "diagnose",
    "diagnose_contrasts",
    "diagnose_embeddings",
]

# Similarities held at once: 4 MiB of float32.
CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """A look at one step, in plain numbers; information and loss in nats."""

    information: float
    """f̂ = log(1+α) − L; decoupled: log K − L. About 0 means collapse, whatever K, α and N are."""
    information_kind: Literal["bound", "estimate"]
    """Whether f̂ can exceed the true information (docs/paper_notes.md#bound-or-estimate)."""
    ceiling: float
    """log(1+α), above which f̂ cannot rise; infinite for the decoupled loss."""
    loss: float
    """The mean loss of the queries looked at."""
    gradient_norm_mean: float
    """Mean of ‖dL/dq‖ over queries, at the unit query, without the 1/N of the batch."""
    gradient_norm_std: float
    """Its standard deviation over queries."""
    gradient_bound: float
    """Mean over queries of Theorem 2's bound of ‖dL/dq‖, in its per-sample form (Eq. 14)."""
    accuracy: float
    """How often the positive is the nearest of K+1 keys, without margin; ties are shared."""
    accuracy_chance: float
    """1/(K+1)."""
    alignment: float
    """Mean ‖q − k₀‖² of unit vectors: 0 when views of one image agree, 2 at random."""
    uniformity: float
    """log of the mean of exp(−2‖x − y‖²) over pairs of queries: 0 at collapse, about −4 at best."""
    embedding_rank: float
    """How many dimensions the queries fill: exp of the entropy of their singular values."""
    positive_probability: float
    """Mean p₊ of plain InfoNCE at the K that is there: near 1 its gradient has died down."""
    weight_ratio: float
    """Mean W_α/W_K: by how much α makes each query's gradient larger than plain InfoNCE's."""
    effective_negatives: float
    """Mean 1/Σp²: how many of the K negatives share the gradient."""
    weight_bias: float
    """Mean CV²/K = Σp² − 1/K: the size of the bias that few negatives give to the weights p."""
    num_negatives: int
    """K, counted; the smallest where contrasts differ."""
    margin: float
    """m = τ·log(α/K) at that K; infinite for the decoupled loss."""

    def advice(self) -> tuple[str, ...]:
        """What to change, in plain words, the most useful first; each with its reason."""
        return advice(
            positive_probability=self.positive_probability,
            weight_ratio=self.weight_ratio,
            effective_negatives=self.effective_negatives,
            weight_bias=self.weight_bias,
            num_negatives=self.num_negatives,
            margin=self.margin,
        )


@dataclass(frozen=True, kw_only=True)
class EmbeddingDiagnostics:
    """A look at a step without contrasts of cosines: what needs these is absent, f̂ above all."""

    embedding_rank: float
    """How many dimensions the embeddings fill, as in `Diagnostics`."""
    uniformity: float
    """As in `Diagnostics`: 0 where all embeddings are the same."""


def diagnose(
    queries: Tensor,
    positives: Tensor,
    negatives: Tensor | Negatives | None = None,
    *,
    temperature: float,
    alpha: float | None = None,
) -> Diagnostics:
    """See in any loop whether few negatives matter, and what to change: `print(seen.advice())`.

    Args:
        queries: (N, D), as the loss gets them.
        positives: (N, D).
        negatives: None: the other positives of the batch; (K, D), or a `Negatives`.
        temperature: τ of the loss.
        alpha: α of the loss; None: plain InfoNCE; math.inf: the decoupled loss.

    >>> views = torch.eye(8)
    >>> seen = diagnose(views, views, temperature=0.1)
    >>> round(seen.positive_probability, 3), round(seen.effective_negatives, 1)
    (1.0, 7.0)
    >>> print(seen.advice()[0][:58])
    Set alpha: the positive already has a probability of 1.000
    """
    check_setting(temperature, alpha, None, "cosine", "mean")
    check_embeddings(queries, positives)
    if negatives is None:
        own = torch.arange(len(queries), device=queries.device)[:, None]
        negatives = Negatives(positives, excluded=own)
    elif isinstance(negatives, Tensor):
        if negatives.dim() == 3:  # of each query: a pool of all, with the rows of its own
            size = negatives.shape[0] * negatives.shape[1]
            rows = torch.arange(size, device=negatives.device).view(negatives.shape[:2])
            negatives = Negatives(negatives.flatten(0, 1), indices=rows)
        else:
            negatives = Negatives(negatives)
    check_pool(queries, negatives)
    named = {"queries": queries, "positives": positives, "negatives": negatives.keys}
    check_finite_values(named, "cosine")
    contrast = Contrast(queries, positives, negatives)
    return diagnose_contrasts([contrast], temperature=temperature, alpha=alpha)


@torch.no_grad()
def diagnose_contrasts(
    contrasts: Sequence[Contrast],
    *,
    temperature: float,
    alpha: float | None,
    max_queries: int = 256,
    max_keys: int = 16384,
) -> Diagnostics:
    """Read a step's contrasts; in float32, or float64 where an input is, also under autocast.

    Some of the queries are looked at, evenly spaced over the batch; each with all its
    negatives. Several contrasts give the mean by their weights.

    Args:
        contrasts: of the step, as the objective gets them.
        temperature: τ.
        alpha: α; None: plain InfoNCE, α = K; math.inf: the decoupled loss.
        max_queries: how many queries to look at in each contrast. The rank cannot exceed this.
        max_keys: with more keys than this, loss and gradient are read from fewer queries, so that
            no more than max_queries · max_keys similarities are computed.

    A collapsed encoder has no information, the accuracy of chance and no dimensions:

    >>> same = torch.ones(8, 4)
    >>> contrast = Contrast(same, same, Negatives(same))
    >>> seen = diagnose_contrasts([contrast], temperature=0.2, alpha=256)
    >>> round(seen.information, 4), seen.information_kind, round(seen.accuracy, 4)
    (0.0, 'estimate', 0.1111)
    >>> seen.embedding_rank, seen.gradient_norm_mean < 1e-5
    (0.0, True)
    """
    check_setting(temperature, alpha, None, "cosine", "mean")
    for name, limit in (("max_queries", max_queries), ("max_keys", max_keys)):
        if limit < 1:
            raise InputError(f"{name}={limit}; it must be at least 1.")
    total_weight = sum(contrast.weight for contrast in contrasts)
    if not total_weight > 0:
        raise InputError(
            f"{len(contrasts)} contrasts of total weight {total_weight}; diagnostics need at least "
            f"one contrast of weight greater than 0."
        )
    readings = [
        read_contrast(each, temperature, alpha, max_queries, max_keys) for each in contrasts
    ]
    shares = [contrast.weight / total_weight for contrast in contrasts]
    means = {
        name: sum(share * seen[name] for share, seen in zip(shares, readings, strict=True))
        for name in readings[0]
    }
    variance = means.pop("gradient_norm_square") - means["gradient_norm_mean"] ** 2
    counts = [contrast.negatives.num_negatives for contrast in contrasts]
    guaranteed = all(contrast.independent for contrast in contrasts) and (
        alpha is None
        or all(alpha != math.inf and is_guaranteed_bound(alpha, count) for count in counts)
    )
    return Diagnostics(
        **means,
        information_kind="bound" if guaranteed else "estimate",
        gradient_norm_std=math.sqrt(max(0.0, variance)),
        num_negatives=min(counts),
        margin=margin_at(min(counts), temperature, alpha),
    )


@torch.no_grad()
def diagnose_embeddings(embeddings: Tensor, *, max_queries: int = 256) -> EmbeddingDiagnostics:
    """Read the embeddings of a step, (N, D): some of them, evenly spaced over the batch.

    >>> diagnose_embeddings(torch.ones(8, 4))
    EmbeddingDiagnostics(embedding_rank=0.0, uniformity=0.0)
    """
    with without_autocast(embeddings):
        rows = spaced_rows(len(embeddings), max_queries, embeddings.device)
        unit = F.normalize(embeddings[rows].to(precision(embeddings)), dim=1).cpu()
        return EmbeddingDiagnostics(
            embedding_rank=float(effective_rank(unit)), uniformity=float(uniformity(unit))
        )


def margin_at(num_negatives: int, temperature: float, alpha: float | None) -> float:
    """m at K negatives: 0 for plain InfoNCE, infinite for the decoupled loss."""
    if alpha == math.inf:
        return math.inf
    return eqco_margin(num_negatives if alpha is None else alpha, num_negatives, float(temperature))


def read_contrast(
    contrast: Contrast, temperature: float, alpha: float | None, max_queries: int, max_keys: int
) -> dict[str, float]:
    """What one contrast shows: those fields of `Diagnostics` that are means over contrasts."""
    temperature = float(temperature)  # one that learns is a tensor
    num_negatives = contrast.negatives.num_negatives
    keys = contrast.negatives.keys
    margin = margin_at(num_negatives, temperature, alpha)
    ceiling = math.log1p(num_negatives if alpha is None else alpha)
    with without_autocast(contrast.queries):
        dtype = precision(contrast.queries, contrast.positives, keys)
        rows = spaced_rows(len(contrast.queries), max_queries, keys.device)
        queries, _ = with_lengths(contrast.queries[rows], dtype, unit=True)
        positives, _ = with_lengths(contrast.positives[rows], dtype, unit=True)
        few = max(1, max_queries * max_keys // max(len(keys), max_keys))
        some = spaced_rows(len(rows), few, keys.device)
        parts = [
            torch.stack(
                [
                    *query_readings(*given, temperature, margin),
                    *saturation_readings(given[0], given[1], *given[3:], temperature, margin),
                ]
            )
            for given in key_similarities(
                contrast, rows[some], queries[some], positives[some], temperature
            )
        ]
        # means and ranks are taken in float64, which not every device has
        loss, norm, bound, correct, *saturation = torch.cat(parts, dim=1).cpu().double()
        queries, positives = queries.cpu(), positives.cpu()
        mean_loss, mean_norm = float(loss.mean()), float(norm.mean())
        return {
            "information": (ceiling if ceiling < math.inf else math.log(num_negatives)) - mean_loss,
            "ceiling": ceiling,
            "loss": mean_loss,
            "gradient_norm_mean": mean_norm,
            "gradient_norm_square": float(norm.var(correction=0)) + mean_norm**2,
            "gradient_bound": float(bound.mean()),
            "accuracy": float(correct.mean()),
            "accuracy_chance": 1 / (num_negatives + 1),
            "alignment": float((queries - positives).double().square().sum(dim=1).mean()),
            "uniformity": float(uniformity(queries)),
            "embedding_rank": float(effective_rank(queries)),
            **{name: float(each.mean()) for name, each in zip(SATURATION, saturation, strict=True)},
        }


def spaced_rows(available: int, wanted: int, device: torch.device) -> Tensor:
    """At most `wanted` of the rows 0 … available − 1, evenly spaced.

    >>> spaced_rows(10, 4, torch.device("cpu"))
    tensor([0, 2, 5, 7])
    """
    count = min(available, wanted)
    return torch.arange(count, device=device) * available // count


def key_similarities(
    contrast: Contrast, rows: Tensor, queries: Tensor, positives: Tensor, temperature: float
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]]:
    """In chunks of queries: queries, positive keys, all keys, similarities and how often each key
    is a negative.

    The similarity of a key that is a query's negative c times is raised by τ·log c, which counts it
    c times in every sum of exponentials; a key that is none of its negatives is at −∞. Where each
    key is a negative of each query once there are no counts.
    """
    negatives = contrast.negatives
    keys, _ = with_lengths(negatives.keys, queries.dtype, unit=True)
    chunk = max(1, CHUNK_ELEMENTS // len(keys))
    for start in range(0, len(rows), chunk):
        here = slice(start, start + chunk)
        similarity = queries[here] @ keys.t()
        places = negatives.excluded if negatives.indices is None else negatives.indices
        count = None
        if negatives.mask is not None:
            count = negatives.mask[rows[here]].to(similarity.dtype)
            similarity += temperature * count.log()
        elif places is not None:
            named = torch.zeros_like(similarity)
            place = places[rows[here]]
            named.scatter_add_(1, place, named.new_ones(()).expand_as(place))
            count = named if negatives.indices is not None else (named == 0).to(named.dtype)
            similarity += temperature * count.log()
        yield queries[here], positives[here], keys, similarity, count


def query_readings(
    queries: Tensor,
    positives: Tensor,
    keys: Tensor,
    negative: Tensor,
    count: Tensor | None,
    temperature: float,
    margin: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, ‖dL/dq‖, its bound and whether the positive is nearest, each (n,)."""
    positive = (queries * positives).sum(dim=1)
    if margin == math.inf:
        # the decoupled loss; gradient and bound below take the limit by themselves
        loss = log_odds(positive, negative, temperature, 0.0)
    else:
        loss = info_nce(positive, negative, temperature=temperature, margin=margin)
    gradient = info_nce_gradient(
        positive, negative, positives, keys, temperature=temperature, margin=margin
    )
    bound = gradient_bound(positive, negative, temperature=temperature, margin=margin)
    norm = torch.linalg.vector_norm(gradient, dim=1)
    return loss, norm, bound, nearest(positive, negative, count, temperature)


SATURATION = ("positive_probability", "weight_ratio", "effective_negatives", "weight_bias")


def saturation_readings(
    queries: Tensor,
    positives: Tensor,
    negative: Tensor,
    count: Tensor | None,
    temperature: float,
    margin: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""p₊ at the K that is there, W_α/W_K, 1/Σp² and CV²/K of each query, each (n,).

    .. math:: \frac{dL}{dq} = W_\alpha \sum_k p_k \frac{k_k - k_0}{\tau}, \qquad
        W_\alpha = \frac{\alpha X}{1 + \alpha X}, \quad
        X = \frac{1}{K} \sum_k e^{(s_k - s_0)/\tau}
    """
    positive = (queries * positives).sum(dim=1)
    odds = log_odds(positive, negative, temperature, 0.0)  # log(K X)
    share = torch.softmax(negative / temperature, dim=1)
    if count is None:
        square, number = share.square().sum(dim=1), torch.full_like(odds, negative.shape[1])
    else:  # a key that counts c times has c equal shares
        square = (share.square() / count.clamp_min(1)).sum(dim=1)
        number = count.sum(dim=1)
    # of logarithms, since W itself is 0 in float32 where the positive is far ahead
    ratio = (F.logsigmoid(odds + margin / temperature) - F.logsigmoid(odds)).exp()
    return torch.sigmoid(-odds), ratio, 1 / square, (square - 1 / number).clamp_min(0)


def nearest(positive: Tensor, negative: Tensor, count: Tensor | None, temperature: float) -> Tensor:
    """1 where the positive is nearer than all negatives, 1/(1+ties) where others are as near, (n,).

    Shared ties keep a collapsed encoder at chance: the first of equal keys must not win.
    """
    if count is None:
        count = torch.ones_like(negative)
    else:
        negative = negative - temperature * count.log()
        negative = negative.masked_fill(count == 0, -torch.inf)
    # two ways of summing the same product differ by rounding
    ahead = negative - positive[:, None]
    rounding = 16 * torch.finfo(negative.dtype).eps
    ties = ((ahead.abs() <= rounding) * count).sum(dim=1)
    return (ahead <= rounding).all(dim=1) / (1 + ties)


def uniformity(queries: Tensor) -> Tensor:
    """Wang and Isola's (2020): log of the mean of exp(−2‖x − y‖²) over pairs; NaN for one query."""
    if len(queries) < 2:
        return queries.new_full((), torch.nan, dtype=torch.float64)
    distances = F.pdist(queries.double())
    found: Tensor = (-2 * distances.square()).exp().mean().log()
    return found


def effective_rank(queries: Tensor) -> Tensor:
    """exp of the entropy of the singular values of the centred queries (Roy and Vetterli, 2007).

    0 where all queries are the same: what rounding leaves of them is not a dimension.
    """
    centred = (queries - queries.mean(dim=0)).double()
    if not centred.isfinite().all():
        return centred.new_full((), torch.nan)
    values: Tensor = torch.linalg.svdvals(centred)
    rounding = max(queries.shape) * torch.finfo(queries.dtype).eps * math.sqrt(len(queries))
    values = values[values > rounding]
    if len(values) == 0:
        return values.new_zeros(())
    share = values / values.sum()
    rank: Tensor = torch.special.entr(share).sum().exp()
    return rank
