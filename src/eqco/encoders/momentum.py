"""The momentum update of a key encoder (Eq. 16), and its schedule."""

import math
from typing import Literal

from eqco.contrast.slow_copy import update_momentum

__all__ = ["EMASchedule", "scheduled_ema_decay", "update_momentum"]

EMASchedule = Literal["constant", "cosine", "rising"]
RISE = 0.6  # share of the training after which a rising β has reached its value


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
