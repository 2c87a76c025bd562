"""lightly's NTXentLoss with α."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from eqco.contrast import EqCoLoss
from eqco.contrast import NTXentLoss as TwoViewLoss
from eqco.integrations.packages import needs
from eqco.runtime.errors import InputError

with needs("lightly"):
    from lightly.loss import NTXentLoss as LightlyNTXentLoss

__all__ = ["NTXentLoss"]


class NTXentLoss(LightlyNTXentLoss):
    """lightly's loss of this name: same call, same memory bank, with α; without α its numbers.

    Args:
        temperature: τ.
        memory_bank_size: (keys, dim) of the memory bank; 0: the negatives are those of the batch.
        gather_distributed: negatives from all processes.
        alpha: the number of negatives imitated; None: lightly's loss; math.inf: decoupled.

    >>> import torch
    >>> loss_fn = NTXentLoss(temperature=0.1, memory_bank_size=(4096, 128), alpha=65536)
    >>> loss_fn(*torch.randn(2, 8, 128)).shape
    torch.Size([])
    """

    def __init__(
        self,
        temperature: float = 0.5,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
        *,
        alpha: float | None = None,
    ):
        super().__init__(temperature, memory_bank_size, gather_distributed)
        self.alpha = alpha
        self.in_batch = TwoViewLoss(
            temperature=temperature, alpha=alpha, on_empty="skip", gather=gather_distributed
        )
        self.in_memory = EqCoLoss(temperature=temperature, alpha=alpha)

    def forward(self, out0: Tensor, out1: Tensor, *, ids: Tensor | None = None) -> Tensor:
        """The loss of two views, each (N, D).

        Images of the same `ids`, (N,), are no negatives of each other; a memory bank has no ids.
        """
        keys = F.normalize(out1, dim=1)
        # the bank holds the keys as they come, and takes them in only where a step will follow
        keys, negatives = self.memory_bank(keys, update=out0.requires_grad)
        if negatives is None:
            return self.in_batch(out0, out1, ids=ids)
        if ids is not None:
            raise InputError(
                f"ids were given with memory_bank_size={self.memory_bank.size}, whose keys have "
                f"none. Leave one of them out."
            )
        return self.in_memory(out0, keys, negatives.t().to(out0.device))
