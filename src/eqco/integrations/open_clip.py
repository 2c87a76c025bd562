"""open_clip's ClipLoss with α, and without the (N, N) matrix of logits."""

from typing import Any

from torch import Tensor

from eqco.contrast import TwoTowerLoss
from eqco.integrations.packages import needs
from eqco.runtime import processes
from eqco.runtime.errors import InputError

with needs("open-clip"):
    from open_clip.loss import ClipLoss as OpenClipLoss

__all__ = ["ClipLoss"]


class ClipLoss(OpenClipLoss):
    """open_clip's loss of this name: same call, with α and ids; without α its numbers.

    Features are scaled to length one here, as open_clip's models do by themselves. With several
    processes the features of all are negatives, with gradient: `gather_with_grad=True` must be
    given, and the step is that of one process with the whole batch, whatever `local_loss` is.

    Args:
        local_loss: taken for the sake of the call; the gradient is the same either way.
        gather_with_grad: gradient to the features of other processes, which is needed.
        cache_labels: taken for the sake of the call; there are no labels.
        rank: of this process.
        world_size: number of processes.
        use_horovod: refused; torch.distributed is used.
        alpha: the number of negatives imitated in each direction; None: CLIP's loss; math.inf:
            decoupled.

    >>> import torch
    >>> images, texts = torch.nn.functional.normalize(torch.randn(2, 8, 64), dim=2)
    >>> ClipLoss(alpha=4096)(images, texts, torch.tensor(1 / 0.07)).shape
    torch.Size([])
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        alpha: float | None = None,
    ):
        super().__init__(local_loss, gather_with_grad, cache_labels, rank, world_size, use_horovod)
        if use_horovod:
            raise InputError("use_horovod=True; features are gathered by torch.distributed alone.")
        if world_size > 1 and not gather_with_grad:
            raise InputError(
                f"gather_with_grad=False with world_size={world_size}: features of other processes "
                f"would get no gradient, and a step would not be that of the whole batch. Give "
                f"gather_with_grad=True (--gather-with-grad)."
            )
        self.towers = TwoTowerLoss(
            temperature=1.0, alpha=alpha, on_empty="skip", gather=world_size > 1
        )

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: float | Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        *,
        ids: Tensor | None = None,
    ) -> Any:
        """The loss of features (N, D) each, row n of one belonging to row n of the other.

        Pairs of the same `ids`, (N,), such as those of one caption, are no negatives of each
        other. A bias that all logits share changes nothing in a softmax.
        """
        if self.world_size != processes.world_size() and self.world_size > 1:
            raise InputError(
                f"world_size={self.world_size}, but torch.distributed has {processes.world_size()} "
                f"processes. Start it before the first step (torchrun), or give its number."
            )
        loss = self.towers(image_features, text_features, ids=ids, temperature=1 / logit_scale)
        if isinstance(logit_bias, Tensor):
            loss = loss + 0.0 * logit_bias.sum()  # its gradient is zero, and DDP wants one
        return {"contrastive_loss": loss} if output_dict else loss
