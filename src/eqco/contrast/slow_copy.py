"""A copy of an encoder that follows it slowly (Eq. 16), for the keys of a queue."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["SlowCopy", "update_momentum"]


@torch.no_grad()
def update_momentum(key_encoder: nn.Module, query_encoder: nn.Module, ema_decay: float) -> None:
    r"""Move the key encoder's parameters a little towards the query encoder's (Eq. 16).

    .. math:: \theta_k \leftarrow \beta \theta_k + (1 - \beta) \theta_q

    Parameters only: each encoder keeps its own batch-norm statistics, as in MoCo. β is `ema_decay`,
    0 ≤ β ≤ 1; 0 copies.

    >>> key, query = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(key.weight), nn.init.zeros_(query.weight)
    >>> update_momentum(key, query, ema_decay=0.75)
    >>> key.weight.item()
    0.75
    """
    if not 0 <= ema_decay <= 1:
        raise InputError(f"ema_decay={ema_decay}; it must lie between 0 and 1.")
    keys: list[Tensor] = list(key_encoder.parameters())
    queries: list[Tensor] = list(query_encoder.parameters())
    torch._foreach_lerp_(keys, queries, 1 - ema_decay)


class SlowCopy(nn.Module):
    """A copy of an encoder whose weights are a running mean of the encoder's, as MoCo's keys need.

    Keys of a queue are compared with queries of later steps. Made by the encoder itself they are
    out of date after a few steps of a fast optimiser, and the queue then teaches the wrong thing;
    made by a slow copy they stay comparable. Forward runs without gradient. Buffers, such as
    running statistics, are copied as they are. The state dict holds the copy alone.

    Args:
        encoder: what is copied, and followed by `update`; of DDP's wrapper, the module inside.
        decay: how much of the copy's weights each update keeps, 0 ≤ decay ≤ 1; a few steps of
            memory at 0.9, hundreds at 0.99 and thousands at 0.999.

    >>> encoder = nn.Linear(6, 4)
    >>> slow = SlowCopy(encoder, decay=0.9)
    >>> keys = slow(torch.randn(8, 6))  # without gradient
    >>> slow.update()  # after each step of the optimiser
    """

    def __init__(self, encoder: nn.Module, *, decay: float = 0.99):
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise InputError(
                f"encoder is a {type(encoder).__name__}; give the torch.nn.Module that learns."
            )
        if not 0 <= decay <= 1:
            raise InputError(f"decay={decay}; it must lie between 0 and 1.")
        if isinstance(encoder, nn.parallel.DistributedDataParallel):
            encoder = encoder.module
        self.decay = decay
        self.copy = copy.deepcopy(encoder).requires_grad_(False)
        # in a tuple, so that it is no part of this module, its parameters and its state
        self.followed = (encoder,)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the copy makes of it, without gradient."""
        return self.copy(*args, **kwargs)

    @torch.no_grad()
    def update(self) -> None:
        """Follow the encoder: call it after each step of the optimiser."""
        (encoder,) = self.followed
        if len(list(encoder.parameters())) != len(list(self.copy.parameters())):
            raise InputError(
                "the encoder has other parameters than when it was copied. Make the SlowCopy after "
                "the encoder has its final form."
            )
        update_momentum(self.copy, encoder, self.decay)
        for mine, theirs in zip(self.copy.buffers(), encoder.buffers(), strict=True):
            mine.copy_(theirs)

    def extra_repr(self) -> str:
        """What `print` shows of the setting."""
        return f"decay={self.decay}"
