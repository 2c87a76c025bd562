"""Negatives from the batch itself: every other instance."""

import torch
from torch import Tensor

from eqco.contrast.negatives import Negatives
from eqco.runtime.errors import InputError

__all__ = ["in_batch_negatives"]


def in_batch_negatives(*views: Tensor, index: Tensor) -> Negatives:
    """Every other instance of the batch, as one or both views show it.

    Args:
        views: keys of one view, or of both, each (N, D): row i is instance i of the batch over all
            processes.
        index: which instance each query is, (n,).

    Returns:
        All keys, with each query's own instance excluded: K = N − 1, or 2N − 2 with both views.

    >>> keys = torch.eye(4)
    >>> in_batch_negatives(keys, index=torch.arange(4)).num_negatives
    3
    >>> in_batch_negatives(keys, keys, index=torch.arange(4)).num_negatives
    6
    """
    num_instances = len(views[0])
    if any(view.shape != views[0].shape for view in views):
        shapes = ", ".join(str(tuple(view.shape)) for view in views)
        raise InputError(f"views of shapes {shapes}; both views must have one key per instance.")
    if num_instances < 2:
        raise InputError(
            f"a batch of num_queries={num_instances} offers no negatives, since a query never "
            f"meets its own instance. Use a batch of at least 2, or a queue."
        )
    starts = num_instances * torch.arange(len(views), device=index.device)
    keys = views[0] if len(views) == 1 else torch.cat(views)
    return Negatives(keys, excluded=index[:, None] + starts)
