"""Many small critics as one: two MLPs each, stacked, with their gradient written out."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eqco.runtime.errors import InputError

__all__ = ["StackedCritics", "Workspace"]


class Workspace:
    """The large tensors of one step, kept from step to step.

    Memory that is given back and fetched anew at every step costs more than the arithmetic done in
    it: at K = 512 a step takes half as long again without this.
    """

    def __init__(self, num_critics: int, num_pairs: int, *, dim: int, hidden: int, output: int):
        def room(*shape: int) -> Tensor:
            return torch.empty(num_critics, num_pairs, *shape)

        self.x, self.y = room(dim), room(dim)
        self.x_hidden, self.y_hidden = room(hidden), room(hidden)
        self.queries, self.keys = room(output), room(output)
        self.logits, self.d_logits = room(num_pairs), room(num_pairs)
        self.d_embedding, self.d_hidden, self.active = room(output), room(hidden), room(hidden)


class Tower:
    """One MLP of every critic, dim → hidden → ReLU → output, weights stacked along B.

    Weights start as those of `torch.nn.Linear`: uniform within ±1/√(inputs).
    """

    def __init__(self, sources: Sequence[torch.Generator], dim: int, hidden: int, output: int):
        self.weight_in, self.bias_in = linear(sources, dim, hidden)
        self.weight_out, self.bias_out = linear(sources, hidden, output)

    def parameters(self) -> list[Tensor]:
        """Weights (B, d, H), (B, H, D) and biases (B, 1, H), (B, 1, D)."""
        return [self.weight_in, self.bias_in, self.weight_out, self.bias_out]

    def embed(
        self,
        inputs: Tensor,
        *,
        rows: slice = slice(None),
        hidden: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Embeddings (B, N, D) of the inputs (B, N, d), by all critics of the stack or by `rows`.

        The hidden layer and the result are written to `hidden` and `out` if these are given.
        """
        hidden = torch.baddbmm(self.bias_in[rows], inputs, self.weight_in[rows], out=hidden)
        return torch.baddbmm(self.bias_out[rows], hidden.relu_(), self.weight_out[rows], out=out)

    def set_gradients(self, inputs: Tensor, hidden: Tensor, work: Workspace) -> None:
        """Leave dL/dparameter in each `.grad`, given dL/dembedding in `work.d_embedding`."""
        d_embedding, d_hidden = work.d_embedding, work.d_hidden
        self.weight_out.grad = hidden.mT @ d_embedding
        self.bias_out.grad = d_embedding.sum(1, keepdim=True)
        torch.bmm(d_embedding, self.weight_out.mT, out=d_hidden)
        d_hidden.mul_(torch.gt(hidden, 0, out=work.active))
        self.weight_in.grad = inputs.mT @ d_hidden
        self.bias_in.grad = d_hidden.sum(1, keepdim=True)


class StackedCritics:
    """B independent critics q(x)·k(y), trained side by side.

    A batched product over B small matrices keeps both cores busy where B products one after another
    would leave them waiting; and without autograd's bookkeeping a step is two dozen operations.

    Args:
        sources: where each critic's first weights are drawn from; their number is B.
        dim: d, entries of x and of y.
        hidden: H, units of the hidden layer.
        output: D, entries of an embedding.
    """

    def __init__(self, sources: Sequence[torch.Generator], *, dim: int, hidden: int, output: int):
        for name, size in (("dim", dim), ("hidden_size", hidden), ("output_size", output)):
            if size < 1:
                raise InputError(f"{name}={size}; it must be at least 1.")
        self.sizes = {"dim": dim, "hidden": hidden, "output": output}
        self.num_critics = len(sources)
        self.query_tower = Tower(sources, dim, hidden, output)
        self.key_tower = Tower(sources, dim, hidden, output)

    def parameters(self) -> list[Tensor]:
        """All parameters, each with the stack as its first dimension."""
        return self.query_tower.parameters() + self.key_tower.parameters()

    def workspace(self, num_pairs: int) -> Workspace:
        """Room for steps on `num_pairs` pairs."""
        return Workspace(self.num_critics, num_pairs, **self.sizes)

    def compare(self, work: Workspace) -> None:
        """Fill `work.logits` (B, N, N): every query of `work.x` with every key of `work.y`."""
        self.query_tower.embed(work.x, hidden=work.x_hidden, out=work.queries)
        self.key_tower.embed(work.y, hidden=work.y_hidden, out=work.keys)
        torch.bmm(work.queries, work.keys.mT, out=work.logits)

    def set_gradients(self, work: Workspace) -> None:
        """Leave dL/dparameter in each `.grad`, given N·dL/dlogits in `work.d_logits`.

        The 1/N of the batch mean is applied within the products, where it costs nothing.
        """
        scale = 1 / work.d_logits.shape[-1]
        out = work.d_embedding
        torch.baddbmm(out, work.d_logits, work.keys, beta=0, alpha=scale, out=out)
        self.query_tower.set_gradients(work.x, work.x_hidden, work)
        torch.baddbmm(out, work.d_logits.mT, work.queries, beta=0, alpha=scale, out=out)
        self.key_tower.set_gradients(work.y, work.y_hidden, work)


def linear(sources: Sequence[torch.Generator], inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Weight (B, inputs, outputs) and bias (B, 1, outputs) of a layer, drawn critic by critic."""
    reach = 1 / math.sqrt(inputs)
    weight = torch.empty(len(sources), inputs, outputs)
    bias = torch.empty(len(sources), 1, outputs)
    for row, source in enumerate(sources):
        weight[row].uniform_(-reach, reach, generator=source)
        bias[row].uniform_(-reach, reach, generator=source)
    return weight, bias
