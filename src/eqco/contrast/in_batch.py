"""Negatives from the batch itself: every other instance."""

import torch
from torch import Tensor

from eqco.contrast.negatives import Negatives, check_ids
from eqco.contrast.vectors import without_autocast
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["in_batch_negatives"]


def in_batch_negatives(
    *views: Tensor,
    index: Tensor | None = None,
    gather: bool = False,
    ids: Tensor | None = None,
) -> Negatives:
    """Every other instance of the batch, as one or both views show it.

    Args:
        views: keys of one view, or of both, each (N, D): row i is instance i of the batch over all
            processes.
        index: which instance each query is, (n,); None: query n is instance n, as in one process.
        gather: `views` are of this process alone, and the keys of all processes are wanted, with
            gradient where they carry it. Each process must call this with as many keys. Nothing
            changes where there is one process.
        ids: what each instance of `views` is, (N,), kept with the keys: give the same ids to the
            loss, where keys of another source carry theirs too.

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
    if ids is not None:
        ids = check_ids("ids", ids, (len(views[0]),), views[0], "keys")
    if gather:
        if index is not None:
            raise InputError("index and gather=True were both given; gather finds the index.")
        index = own_places(views[0])
        views = tuple(processes.gather_with_gradient(view) for view in views)
        ids = None if ids is None else processes.gather(ids)
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
    key_ids = None if ids is None else ids.repeat(len(views))
    return Negatives(keys, excluded=index[:, None] + starts, ids=key_ids)


def own_places(rows: Tensor) -> Tensor:
    """The places of this process's rows among those of all, where each has as many, (n,)."""
    if not torch.compiler.is_compiling() and rows.device.type == "cpu":
        sizes = processes.gather(torch.tensor([len(rows)])).tolist()
        if len(set(sizes)) > 1:
            raise InputError(
                f"gather=True with {sizes} rows in the {len(sizes)} processes; all must "
                f"have as many. Leave out a last batch that is smaller by drop_last=True."
            )
    return processes.rank() * len(rows) + torch.arange(len(rows), device=rows.device)


def row_numbers(index: Tensor) -> Tensor:
    """The places of queries as int64; what does not number them is refused."""
    if not isinstance(index, Tensor) or index.dim() != 1 or index.is_floating_point():
        raise InputError(
            f"index={index!r}; it must be a tensor (n,) of whole numbers: the place of each query "
            f"in the batch over all processes, such as torch.arange(n)."
        )
    return index.long()
