"""A temperature that learns within limits."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["LearnableTemperature"]


class LearnableTemperature(nn.Module):
    r"""τ as CLIP learns it: one parameter s on a log scale, and limits that it cannot leave.

    .. math:: \tau = e^{-s}, \qquad \log(1/\tau_{max}) \le s \le \log(1/\tau_{min})

    Beyond a limit τ is that limit; there a gradient that would lead further out is zero, and one
    that leads back is passed on, so that τ can leave the limit again. Leave the parameter out of
    weight decay, which would draw τ towards 1.

    Args:
        initial: τ at the start.
        minimum: the least τ; CLIP's is 0.01, a scale of 100.
        maximum: the largest τ.

    >>> temperature = LearnableTemperature(initial=0.07)
    >>> temperature()
    tensor(0.0700, grad_fn=<ExpBackward0>)
    """

    def __init__(
        self, *, initial: float = 0.07, minimum: float = 0.01, maximum: float = 1.0
    ) -> None:
        super().__init__()
        if not 0 < minimum <= initial <= maximum < math.inf:
            raise InputError(
                f"initial={initial}, minimum={minimum} and maximum={maximum}; they must be finite, "
                f"greater than 0 and in the order minimum ≤ initial ≤ maximum."
            )
        self.minimum, self.maximum = minimum, maximum
        self.log_scale = nn.Parameter(torch.tensor(-math.log(initial)))

    def forward(self) -> Tensor:
        """τ, a tensor of one value."""
        lowest, highest = -math.log(self.maximum), -math.log(self.minimum)
        limited: Tensor = LimitedParameter.apply(self.log_scale, lowest, highest)
        return limited.neg().exp()

    def extra_repr(self) -> str:
        """What `print` shows of the limits."""
        return f"minimum={self.minimum}, maximum={self.maximum}"


class LimitedParameter(torch.autograd.Function):
    """Clamp whose gradient is stopped only where descent would lead further out."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, lowest: float, highest: float) -> Tensor:
        """The value, or the limit that it lies beyond."""
        ctx.save_for_backward(value)
        ctx.limits = lowest, highest
        return value.clamp(lowest, highest)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Descent moves against the gradient: a positive one leads down, a negative one up."""
        (value,) = ctx.saved_tensors
        lowest, highest = ctx.limits
        outward = ((value <= lowest) & (upstream > 0)) | ((value >= highest) & (upstream < 0))
        return upstream.masked_fill(outward, 0.0), None, None
