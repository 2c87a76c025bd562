"""How parameters move: SGD as in the paper, LARS as SimCLR's own code has it, and AdamW."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["LARS", "adamw", "load_optimiser", "sgd"]

WAYS = ("foreach", "fused")  # of computing a step


def sgd(
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    *,
    sgd_momentum: float = 0.9,
    weight_decay: float = 1e-4,
) -> torch.optim.SGD:
    """SGD with momentum and weight decay, in one pass over each parameter.

    The learning rate is for this N (`eqco.scaled_learning_rate`), the momentum the optimiser's own;
    weight_decay · parameter is added to the gradient.

    >>> optimiser = sgd(torch.nn.Linear(2, 1).parameters(), 0.03)
    >>> optimiser.defaults["momentum"], optimiser.defaults["weight_decay"]
    (0.9, 0.0001)
    """
    check_optimiser(learning_rate, sgd_momentum, weight_decay)
    # Paper: weight decay covers batch norm and biases too, as in the authors' release.
    optimiser = torch.optim.SGD(
        parameters,
        lr=learning_rate,
        momentum=sgd_momentum,
        weight_decay=weight_decay,
        fused=True,
    )
    if sgd_momentum > 0:
        # torch makes these in the first step, and leaves them unset if the step overflows float16
        for parameter in optimiser.param_groups[0]["params"]:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser


def adamw(
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    *,
    sgd_momentum: float = 0.9,
    weight_decay: float = 0.1,
) -> torch.optim.AdamW:
    """AdamW, for vision transformers: β₁ is the momentum, β₂ 0.999.

    learning_rate · weight_decay · parameter is taken off every parameter, biases and norms too, as
    in MoCo v3.

    >>> weight = torch.nn.Parameter(torch.tensor([2.0]))
    >>> weight.grad = torch.tensor([5.0])
    >>> adamw([weight], 0.1, weight_decay=0.5).step()
    >>> weight.data  # 2 − 0.1·0.5·2 − 0.1·sign(5)
    tensor([1.8000])
    """
    check_optimiser(learning_rate, sgd_momentum, weight_decay)
    return torch.optim.AdamW(
        parameters,
        lr=learning_rate,
        betas=(sgd_momentum, 0.999),
        weight_decay=weight_decay,
        fused=True,
    )


@torch.no_grad()
def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put a saved state back, in this optimiser's own way of computing.

    A saved group also says how its steps were computed, and the fused step walks through memory
    without a look at the layout: each buffer gets that of its parameter.
    """
    optimiser.load_state_dict(state)
    for group in optimiser.param_groups:
        group |= {name: optimiser.defaults[name] for name in WAYS if name in optimiser.defaults}
        for parameter in group["params"]:
            buffers = optimiser.state.get(parameter, {})
            for name, value in buffers.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    buffers[name] = torch.empty_like(parameter).copy_(value)


class LARS(torch.optim.Optimizer):
    r"""Layer-wise adaptive rates (You et al., 2017) in the form SimCLR uses.

    .. math::
        g \leftarrow g + \lambda w, \qquad
        v \leftarrow \mu v + \text{lr} \cdot \eta \frac{\|w\|}{\|g\|} \cdot g, \qquad
        w \leftarrow w - v

    The rate is part of v, so that a falling rate acts on new gradients alone. (In MoCo v3's and
    BYOL's code it multiplies v instead, which is the same while it stays.) Parameters with at
    most one dimension (biases, batch norm) get neither weight decay nor adaptation: λ = 0, and 1 in
    place of η‖w‖/‖g‖. Where ‖w‖ or ‖g‖ is 0 there is no adaptation either.

    Args:
        parameters: of the encoder that is trained.
        learning_rate: for this N; SimCLR's authors scale it by the square root of N.
        sgd_momentum: μ.
        weight_decay: λ.
        trust_coefficient: η.

    >>> weight = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
    >>> weight.grad = torch.tensor([[0.0, 2.0]])
    >>> LARS([weight], learning_rate=1.0, weight_decay=0.0, trust_coefficient=0.1).step()
    >>> weight.data
    tensor([[3.0000, 3.5000]])
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        *,
        sgd_momentum: float = 0.9,
        weight_decay: float = 1e-6,
        trust_coefficient: float = 0.001,
    ):
        check_optimiser(learning_rate, sgd_momentum, weight_decay)
        if not (trust_coefficient > 0 and math.isfinite(trust_coefficient)):
            raise InputError(
                f"trust_coefficient={trust_coefficient}; it must be a finite number greater than 0."
            )
        defaults = {
            "lr": learning_rate,
            "sgd_momentum": sgd_momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Tensor] | None = None
    ) -> Tensor | None:
        """Move every parameter that has a gradient; the gradients stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, parameter.grad, group)
        return loss

    def move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """One step of one parameter."""
        rate: float | Tensor = group["lr"]
        if parameter.dim() > 1:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
            rate = rate * adaptation(parameter, gradient, group["trust_coefficient"])
        state = self.state[parameter]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        velocity = state["velocity"].mul_(group["sgd_momentum"]).add_(gradient * rate)
        parameter.sub_(velocity)


def adaptation(parameter: Tensor, gradient: Tensor, trust_coefficient: float) -> Tensor:
    """η‖w‖/‖g‖, or 1 where one of them is 0; a scalar that stays on its device."""
    weight_norm = torch.linalg.vector_norm(parameter)
    gradient_norm = torch.linalg.vector_norm(gradient)
    defined = (weight_norm > 0) & (gradient_norm > 0)
    return torch.where(defined, trust_coefficient * weight_norm / gradient_norm, 1.0)


def check_optimiser(learning_rate: float, sgd_momentum: float, weight_decay: float) -> None:
    """Refuse settings under which nothing moves, or everything runs away."""
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise InputError(
            f"learning_rate={learning_rate}; it must be a finite number greater than 0."
        )
    if not 0 <= sgd_momentum < 1:
        raise InputError(f"sgd_momentum={sgd_momentum}; it must be at least 0 and less than 1.")
    if not (weight_decay >= 0 and math.isfinite(weight_decay)):
        raise InputError(f"weight_decay={weight_decay}; it must be a finite number, 0 or more.")
