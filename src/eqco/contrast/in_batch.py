"""Negatives from the batch itself: every other instance."""

import torch
from torch import Tensor

from eqco.contrast.negatives import Negatives
from eqco.contrast.streaming import without_autocast
from eqco.runtime.errors import InputError

__all__ = ["in_batch_negatives"]


def in_batch_negatives(*views: Tensor, index: Tensor | None = None) -> Negatives:
    """Every other instance of the batch, as one or both views show it.

    Args:
        views: keys of one view, or of both, each (N, D): row i is instance i of the batch over all
            processes.
        index: which instance each query is, (n,); None: query n is instance n, as in one process.

    Returns:
        All keys, with each query's own instance excluded: K = N − 1, or 2N − 2 with both views.

    >>> keys = torch.eye(4)
    >>> in_batch_negatives(keys).num_negatives
    3
    >>> in_batch_negatives(keys, keys, index=torch.tensor([2, 3])).excluded
    tensor([[2, 6],
            [3, 7]])
    """
    if not views or not all(isinstance(view, Tensor) for view in views):
        kinds = ", ".join(type(view).__name__ for view in views) or "nothing"
        raise InputError(f"{kinds} given as views; give the keys of one or both as tensors (N, D).")
    num_instances = len(views[0])
    if any(view.shape != views[0].shape for view in views):
        shapes = ", ".join(str(tuple(view.shape)) for view in views)
        raise InputError(f"views of shapes {shapes}; both views must have one key per instance.")
    if num_instances < 2:
        raise InputError(
            f"a batch of num_queries={num_instances} offers no negatives, since a query's "
            f"own instance is none. Use a batch of at least 2, or a queue."
        )
    if index is None:
        index = torch.arange(num_instances, device=views[0].device)
    index = row_numbers(index)
    starts = num_instances * torch.arange(len(views), device=index.device)
    with without_autocast(views[0]):  # whose torch.cat takes no float16 on the CPU
        keys = views[0] if len(views) == 1 else torch.cat(views)
    return Negatives(keys, excluded=index[:, None] + starts)


def row_numbers(index: Tensor) -> Tensor:
    """The places of queries as int64; what does not number them is refused."""
    if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point():
        raise InputError(
            f"index={index!r}; it must be a tensor (n,) of whole numbers: the place of each query "
            f"in the batch over all processes, such as torch.arange(n)."
        )
    return index.long()
