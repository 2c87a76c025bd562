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
    it: at K = 512 a step takes half as long again without this. x and y end in a column of ones,
    which carries the bias of the first layer.
    """

    def __init__(self, num_critics: int, num_pairs: int, *, dim: int, hidden: int, output: int):
        def room(width: int) -> Tensor:
            return torch.ones(num_critics, num_pairs, width)

        self.x, self.y = room(dim + 1), room(dim + 1)
        self.x_hidden, self.y_hidden, self.d_hidden = room(hidden), room(hidden), room(hidden)
        self.queries, self.keys, self.d_embedding = room(output), room(output), room(output)
        self.logits, self.d_logits = room(num_pairs), room(num_pairs)


class Layer:
    """One linear layer of every critic: a weight (B, inputs, outputs) and a bias (B, 1, outputs).

    Both are views of one block, (B, inputs + 1, outputs), with the bias as its last row; so are
    their gradients.
    """

    def __init__(self, block: Tensor, gradient: Tensor):
        self.block, self.gradient = block, gradient
        self.weight, self.bias = block[:, :-1], block[:, -1:]


class Tower:
    """One MLP of every critic: dim → hidden → ReLU → output, stacked along B."""

    def __init__(self, first: Layer, last: Layer):
        self.first, self.last = first, last

    def embed(
        self,
        inputs: Tensor,
        *,
        rows: slice = slice(None),
        hidden: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Embeddings (B, N, D) of inputs (B, N, d + 1), by all critics of the stack or by `rows`.

        The hidden layer and the result are written to `hidden` and `out` if these are given.
        """
        hidden = torch.bmm(inputs, self.first.block[rows], out=hidden).relu_()
        return torch.baddbmm(self.last.bias[rows], hidden, self.last.weight[rows], out=out)

    def set_gradients(self, inputs: Tensor, hidden: Tensor, work: Workspace) -> None:
        """Write dL/dparameter, given dL/dembedding in `work.d_embedding`; uses `hidden` up."""
        last = self.last.gradient
        torch.bmm(hidden.mT, work.d_embedding, out=last[:, :-1])
        torch.sum(work.d_embedding, 1, keepdim=True, out=last[:, -1:])
        torch.bmm(work.d_embedding, self.last.weight.mT, out=work.d_hidden)
        work.d_hidden.mul_(hidden.sign_())
        torch.bmm(inputs.mT, work.d_hidden, out=self.first.gradient)


class StackedCritics:
    """B independent critics q(x)·k(y), trained side by side.

    A batched product over B small matrices keeps both cores busy where B products one after another
    would leave them waiting; and without autograd's bookkeeping a step is two dozen operations. All
    parameters are views of one tensor, `parameters`, with its gradient in `.grad`: for Adam, which
    works entry by entry, the stack is one long vector.

    Weights and biases start as those of `torch.nn.Linear`: uniform within ±1/√(inputs).

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
        shapes = 2 * [(len(sources), dim + 1, hidden), (len(sources), hidden + 1, output)]
        self.parameters = torch.cat([first_block(sources, shape).flatten() for shape in shapes])
        self.parameters.grad = torch.zeros_like(self.parameters)
        sections = [math.prod(shape) for shape in shapes]
        layers = [
            Layer(block.view(shape), gradient.view(shape))
            for block, gradient, shape in zip(
                self.parameters.split(sections),
                self.parameters.grad.split(sections),
                shapes,
                strict=True,
            )
        ]
        self.query_tower, self.key_tower = Tower(*layers[:2]), Tower(*layers[2:])

    def workspace(self, num_pairs: int) -> Workspace:
        """Room for steps on `num_pairs` pairs."""
        return Workspace(self.num_critics, num_pairs, **self.sizes)

    def compare(self, work: Workspace) -> None:
        """Fill `work.logits` (B, N, N): every query of `work.x` with every key of `work.y`."""
        self.query_tower.embed(work.x, hidden=work.x_hidden, out=work.queries)
        self.key_tower.embed(work.y, hidden=work.y_hidden, out=work.keys)
        torch.bmm(work.queries, work.keys.mT, out=work.logits)

    def set_gradients(self, work: Workspace) -> None:
        """Write dL/dparameter to `parameters.grad`, given N·dL/dlogits in `work.d_logits`.

        The 1/N of the batch mean is applied within the products, where it costs nothing.
        """
        scale = 1 / work.d_logits.shape[-1]
        out = work.d_embedding
        torch.baddbmm(out, work.d_logits, work.keys, beta=0, alpha=scale, out=out)
        self.query_tower.set_gradients(work.x, work.x_hidden, work)
        torch.baddbmm(out, work.d_logits.mT, work.queries, beta=0, alpha=scale, out=out)
        self.key_tower.set_gradients(work.y, work.y_hidden, work)


def first_block(sources: Sequence[torch.Generator], shape: tuple[int, int, int]) -> Tensor:
    """First values of a layer, (B, inputs + 1, outputs), drawn critic by critic."""
    block = torch.empty(shape)
    reach = 1 / math.sqrt(shape[1] - 1)
    for row, source in zip(block, sources, strict=True):
        row.uniform_(-reach, reach, generator=source)
    return block
