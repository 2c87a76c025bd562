"""A step's loss from its contrasts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eqco.contrast.checks import check_setting
from eqco.contrast.loss import Similarity, contrastive_loss
from eqco.contrast.negatives import Contrast
from eqco.runtime.errors import InputError

__all__ = ["Objective"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A step's loss from its contrasts (Eq. 8 over the queries of this process).

    The one place where temperature, margin and α are applied.

    Args:
        temperature: τ.
        alpha: the number of negatives imitated; None: plain InfoNCE; math.inf: decoupled.
        similarity: "cosine", or "dot" of embeddings as they are.

    >>> from eqco.contrast import Negatives
    >>> views = torch.randn(2, 8, 4)
    >>> contrast = Contrast(views[0], views[1], Negatives(torch.randn(16, 4)))
    >>> Objective(temperature=0.2, alpha=256)([contrast]).shape
    torch.Size([])
    """

    temperature: float
    alpha: float | None = None
    similarity: Similarity = "cosine"
    source = "batch"

    def __post_init__(self) -> None:
        check_setting(self.temperature, self.alpha, None, self.similarity, "mean")

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
                similarity=self.similarity,
            )
            for contrast in contrasts
        ]
        return torch.stack(losses).sum()
