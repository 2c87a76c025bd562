"""The learning rate over the steps of a training, as a factor on its largest value."""

import math
from itertools import pairwise
from typing import Literal

from eqco.runtime.errors import InputError

__all__ = ["learning_rate_factor"]

# The warm-up starts at this factor (authors' release).
WARMUP_START = 0.001


def learning_rate_factor(
    step: int,
    *,
    schedule: Literal["cosine", "steps"],
    total_steps: int,
    warmup_steps: int = 0,
    drops: tuple[int, ...] = (),
    drop_factor: float = 0.1,
) -> float:
    r"""What the learning rate is multiplied with at a step, counted from 0.

    .. math::
        f(t) = w(t) \cdot \begin{cases}
            \frac{1}{2} \big(1 + \cos \frac{\pi t}{T}\big) & \text{cosine} \\
            d^{\,\#\{\text{drops} \le t\}} & \text{steps}
        \end{cases}
        \qquad w(t) = \min\Big(1,\; 0.001 + 0.999\,\frac{t}{W}\Big)

    Args:
        step: t, the step about to be taken; at `total_steps` the cosine has reached 0.
        schedule: "cosine", or "steps" for drops at given steps (none: a constant rate).
        total_steps: T, of the whole training.
        warmup_steps: W, over which the rate rises; 0: no warm-up.
        drops: the first steps with a lower rate, in order.
        drop_factor: d, what each drop multiplies the rate with.

    >>> round(learning_rate_factor(50, schedule="cosine", total_steps=100), 6)
    0.5
    >>> round(learning_rate_factor(50, schedule="cosine", total_steps=100, warmup_steps=100), 6)
    0.25025
    >>> round(learning_rate_factor(80, schedule="steps", total_steps=100, drops=(60, 80)), 6)
    0.01
    """
    check_schedule(schedule, total_steps, warmup_steps, drops, drop_factor)
    if not 0 <= step <= total_steps:
        raise InputError(f"step={step}; a training of total_steps={total_steps} has 0 to that.")
    if schedule == "cosine":
        # Paper: per step, as in the authors' release; original MoCo steps its cosine per epoch.
        factor = 0.5 * (1 + math.cos(math.pi * step / total_steps))
    else:
        factor = drop_factor ** sum(drop <= step for drop in drops)
    if step < warmup_steps:
        # Paper: multiplied onto a cosine that starts at step 0, as in the authors' release; it does
        # not wait for the warm-up to end.
        factor *= WARMUP_START + (1 - WARMUP_START) * step / warmup_steps
    return factor


def check_schedule(
    schedule: str,
    total_steps: int,
    warmup_steps: int,
    drops: tuple[int, ...],
    drop_factor: float,
) -> None:
    """Refuse a training without steps, and warm-up or drops that do not fit into it."""
    if schedule not in ("cosine", "steps"):
        raise InputError(f"schedule={schedule!r}; there are 'cosine' and 'steps'.")
    if total_steps < 1:
        raise InputError(f"total_steps={total_steps}; a training needs at least 1 step.")
    if not 0 <= warmup_steps <= total_steps:
        raise InputError(
            f"warmup_steps={warmup_steps} in a training of total_steps={total_steps}; the warm-up "
            f"must have 0 to {total_steps} steps. Shorten it, or train for longer."
        )
    if drops and schedule == "cosine":
        raise InputError(
            f"drops={drops} with schedule='cosine', which has none. "
            f"Choose schedule='steps', or leave drops out."
        )
    if any(later <= earlier for earlier, later in pairwise((0, *drops))):
        raise InputError(
            f"drops={drops}; they must be steps after the first, each later than the one before."
        )
    if drops and drops[-1] >= total_steps:
        raise InputError(
            f"drops={drops} in a training of total_steps={total_steps}; the last one would never "
            f"come. Choose steps below {total_steps}."
        )
    if not 0 < drop_factor <= 1:
        raise InputError(f"drop_factor={drop_factor}; it must be greater than 0 and at most 1.")
