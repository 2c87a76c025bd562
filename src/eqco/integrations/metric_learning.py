"""pytorch-metric-learning's NTXentLoss with α."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.contrast.checks import check_setting
from eqco.integrations.packages import needs

with needs("metric-learning"):
    from pytorch_metric_learning.losses import NTXentLoss as TheirNTXentLoss

__all__ = ["NTXentLoss"]


class NTXentLoss(TheirNTXentLoss):
    """pytorch-metric-learning's loss of this name, with α; without α its numbers.

    Takes labels or pairs, any of its distances, miners and reducers, and goes into
    `CrossBatchMemory` and `SelfSupervisedLoss`. K is counted for each anchor from its negative
    pairs; an anchor without any has loss 0. Sums of exponentials are made once for each anchor and
    not for each positive pair, so that no (pairs, pairs) matrix is held.

    Args:
        temperature: τ.
        alpha: the number of negatives imitated; None: their loss; math.inf: decoupled.
        settings: `distance`, `reducer`, `embedding_regularizer` and the like, as theirs.

    >>> loss_fn = NTXentLoss(temperature=0.1, alpha=4096)
    >>> loss_fn(torch.eye(6), torch.tensor([0, 0, 1, 1, 2, 2])).shape
    torch.Size([])
    """

    def __init__(self, temperature: float = 0.07, *, alpha: float | None = None, **settings: Any):
        check_setting(temperature, alpha, None, "cosine", "mean")
        super().__init__(temperature=temperature, **settings)
        self.alpha = alpha

    def _compute_loss(
        self, pos_pairs: Tensor, neg_pairs: Tensor, indices_tuple: tuple[Tensor, ...]
    ) -> Any:
        """Losses of all positive pairs, in the form their reducers take."""
        anchors, positives, anchors_of_negatives, _ = indices_tuple
        if not len(anchors) or not len(anchors_of_negatives):
            return self.zero_losses()
        # of a distance near is small, of a similarity large
        sign = 1 if self.distance.is_inverted else -1
        losses = pair_losses(
            sign * pos_pairs / self.temperature,
            sign * neg_pairs / self.temperature,
            anchors,
            anchors_of_negatives,
            self.alpha,
        )
        found = {"losses": losses, "indices": (anchors, positives), "reduction_type": "pos_pair"}
        return {"loss": found}


def pair_losses(
    positive: Tensor,
    negative: Tensor,
    anchors: Tensor,
    anchors_of_negatives: Tensor,
    alpha: float | None,
) -> Tensor:
    """Eq. 1 of each positive pair, (P,), against all negative pairs of its anchor.

    Args:
        positive: similarities over τ of positive pairs, (P,).
        negative: of negative pairs, (Q,).
        anchors: whose positive pair each is, (P,).
        anchors_of_negatives: whose negative pair each is, (Q,).
        alpha: as in `contrastive_loss`.
    """
    dtype = torch.promote_types(positive.dtype, torch.float32)
    positive, negative = positive.to(dtype), negative.to(dtype)
    size = int(max(anchors.max(), anchors_of_negatives.max())) + 1
    highest = torch.full((size,), -torch.inf, dtype=dtype, device=negative.device)
    highest = highest.scatter_reduce(0, anchors_of_negatives, negative.detach(), "amax")
    shifted = (negative - highest[anchors_of_negatives]).exp()
    total = torch.zeros_like(highest).index_add(0, anchors_of_negatives, shifted)
    count = torch.bincount(anchors_of_negatives, minlength=size)[anchors]
    odds = total[anchors].clamp_min(torch.finfo(dtype).tiny).log() - positive
    empty = count == 0
    odds = odds + highest[anchors].masked_fill(empty, 0.0)
    if alpha is not None and alpha != math.inf:
        odds = odds + math.log(alpha) - count.clamp_min(1).to(dtype).log()
    loss = odds if alpha == math.inf else F.softplus(odds)
    return loss.masked_fill(empty, 0.0)
