"""The momentum update of a key encoder (Eq. 16)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["EMASchedule", "scheduled_ema_decay", "update_momentum"]

EMASchedule = Literal["constant", "cosine", "rising"]
RISE = 0.6  # share of the training after which a rising β has reached its value


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


def scheduled_ema_decay(
    ema_decay: float, schedule: EMASchedule, *, step: int, total_steps: int
) -> float:
    r"""β of the update after a step, counted from 0: constant, or one of two schedules.

    cosine, from `ema_decay` to 1 at the end, as in BYOL:

    .. math:: \beta_t = 1 - (1 - \beta_0) \, \frac{1 + \cos(\pi t / T)}{2}

    rising, from 0 to `ema_decay` after six tenths of the training, so that keys of the first steps
    are not those of random weights:

    .. math:: \beta_t = \beta \min(1, \tfrac{t}{0.6\, T})

    >>> scheduled_ema_decay(0.99, "constant", step=7, total_steps=10)
    0.99
    >>> [scheduled_ema_decay(0.9, "cosine", step=step, total_steps=10) for step in (0, 5, 10)]
    [0.9, 0.95, 1.0]
    >>> [scheduled_ema_decay(0.9, "rising", step=step, total_steps=10) for step in (0, 3, 6, 10)]
    [0.0, 0.45, 0.9, 0.9]
    """
    if schedule == "constant":
        return ema_decay
    if schedule == "rising":
        return ema_decay * min(1.0, step / (RISE * total_steps))
    return 1 - (1 - ema_decay) * (1 + math.cos(math.pi * step / total_steps)) / 2
