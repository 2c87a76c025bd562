"""A step's loss from its contrasts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eqco.contrast.checks import check_setting
from eqco.contrast.loss import Reduction, Similarity, loss_and_empty
from eqco.contrast.negatives import Contrast
from eqco.contrast.streaming import KEPT_BYTES
from eqco.runtime.errors import InputError

__all__ = ["Objective", "hardness_ratio"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A step's loss from its contrasts (Eq. 8 over the queries of this process).

    The one place where temperature, margin and α are applied.

    Args:
        temperature: τ.
        alpha: the number of negatives imitated; None: plain InfoNCE; math.inf: decoupled.
        second_temperature: τ₂ of the dual temperature, which weighs queries (`hardness_ratio`);
            None: all weigh the same.
        similarity: "cosine", or "dot" of embeddings as they are.

    >>> from eqco.contrast import Negatives
    >>> views = torch.randn(2, 8, 4)
    >>> contrast = Contrast(views[0], views[1], Negatives(torch.randn(16, 4)))
    >>> Objective(temperature=0.2, alpha=256)([contrast]).shape
    torch.Size([])
    """

    temperature: float
    alpha: float | None = None
    second_temperature: float | None = None
    similarity: Similarity = "cosine"
    source = "batch"

    def __post_init__(self) -> None:
        check_setting(self.temperature, self.alpha, None, self.similarity, "mean")
        if self.second_temperature is None:
            return
        check_setting(self.second_temperature, self.alpha, None, self.similarity, "mean")
        if self.alpha == math.inf:
            raise InputError(
                f"second_temperature={self.second_temperature} with the decoupled loss (alpha "
                f"inf), in which no query has a probability to weigh it by. Give a finite alpha, "
                f"or leave second_temperature out."
            )

    def __call__(self, contrasts: Sequence[Contrast]) -> Tensor:
        """Weighted sum of the mean losses."""
        if not contrasts:
            raise InputError("no contrasts were given; the loss needs at least one.")
        share = KEPT_BYTES // len(contrasts)  # all are alive until backward
        return torch.stack([each.weight * self.mean_loss(each, share) for each in contrasts]).sum()

    def mean_loss(self, contrast: Contrast, kept_bytes: int) -> Tensor:
        """Of the queries of one contrast, with its share of what a step may keep."""
        reduction: Reduction = "mean" if self.second_temperature is None else "none"

        def losses(temperature: float) -> Tensor:
            loss, _ = loss_and_empty(
                contrast.queries, contrast.positives, contrast.negatives, temperature, self.alpha,
                None, self.similarity, reduction, None, None, None, None, "refuse", False,
                kept_bytes,
            )  # fmt: skip
            return loss

        loss = losses(self.temperature)
        if self.second_temperature is None:
            return loss
        with torch.no_grad():
            weights = hardness_ratio(losses(self.second_temperature), loss)
        return (weights * loss).mean()


def hardness_ratio(second: Tensor, first: Tensor) -> Tensor:
    r"""How much a query weighs under dual temperature (Zhang et al., 2022), from its losses at τ₂
    and at τ, (N,) each.

    .. math::
        w = \frac{1 - p_+(\tau_2)}{1 - p_+(\tau)}, \qquad p_+ = e^{-L}

    The gradient of InfoNCE is 1 − p₊ times a direction. With few negatives 1 − p₊ at a low τ is
    close to 0 for easy queries and to 1 for hard ones; at a higher τ₂ queries weigh more alike,
    while the direction stays that of τ.

    >>> hardness_ratio(torch.tensor([0.5]), torch.tensor([0.5]))
    tensor([1.])
    """
    # a loss that has underflowed to 0 has no gradient to weigh
    smallest = torch.finfo(first.dtype).tiny
    return -torch.expm1(-second) / (-torch.expm1(-first)).clamp_min(smallest)
