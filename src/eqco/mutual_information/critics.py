"""Many small critics as one: the two MLPs of every critic, stacked for batched products."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["StackedCritics"]


class StackedMLP(nn.Module):
    """B MLPs, dim → hidden → ReLU → output, which start as `torch.nn.Linear` does.

    The bias of the hidden layer is the last row of its weight, multiplied by a column of ones:
    adding it within the product is faster than apart from it.
    """

    def __init__(
        self, generators: Sequence[torch.Generator], *, dim: int, hidden: int, output: int
    ):
        super().__init__()
        self.hidden = nn.Parameter(initial_layer(generators, dim, hidden))
        weight, bias = initial_layer(generators, hidden, output).split([hidden, 1], dim=1)
        self.output_weight = nn.Parameter(weight.clone())
        self.output_bias = nn.Parameter(bias.clone())

    def forward(self, inputs: Tensor, rows: slice = slice(None)) -> Tensor:
        """Embeddings (B, N, D) of inputs (B, N, d), by all MLPs of the stack or by `rows`."""
        hidden = torch.bmm(F.pad(inputs, (0, 1), value=1.0), self.hidden[rows]).relu_()
        return torch.baddbmm(self.output_bias[rows], hidden, self.output_weight[rows])


class StackedCritics(nn.Module):
    """B independent critics q(x)·k(y), trained side by side.

    A batched product over B small matrices keeps all cores busy where B products one after another
    would leave them waiting. B is the number of `generators`, which draw the initial weights.
    """

    def __init__(
        self, generators: Sequence[torch.Generator], *, dim: int, hidden: int, output: int
    ):
        super().__init__()
        for name, size in (("dim", dim), ("hidden_size", hidden), ("output_size", output)):
            if size < 1:
                raise InputError(f"{name}={size}; it must be at least 1.")
        self.query_mlp = StackedMLP(generators, dim=dim, hidden=hidden, output=output)
        self.key_mlp = StackedMLP(generators, dim=dim, hidden=hidden, output=output)


def initial_layer(generators: Sequence[torch.Generator], inputs: int, outputs: int) -> Tensor:
    """Weight and, as its last row, bias: (B, inputs + 1, outputs), uniform within ±1/√inputs."""
    layer = torch.empty(len(generators), inputs + 1, outputs)
    reach = 1 / math.sqrt(inputs)
    for row, generator in zip(layer, generators, strict=True):
        row.uniform_(-reach, reach, generator=generator)
    return layer
