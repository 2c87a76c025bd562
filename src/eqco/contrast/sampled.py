"""K negatives for each query, drawn without replacement and reproducible from (seed, step)."""

import torch
from torch import Tensor

from eqco.contrast.in_batch import row_numbers
from eqco.contrast.negatives import Negatives, require_negatives, skip_excluded
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["sampled_negatives"]

# Up to this many, drawing one by one is faster than ranking random numbers for the whole pool.
ONE_BY_ONE = 32


def sampled_negatives(
    pool: Negatives,
    count: int,
    *,
    seed: int,
    step: int,
    index: Tensor | None = None,
    num_queries: int | None = None,
    shared: bool = False,
) -> Negatives:
    """Draw `count` of the pool's negatives for each query, never what the pool excludes for it.

    The draw is made for all queries of the global batch and sliced, so that the number of processes
    never changes what a query meets.

    Args:
        pool: where to draw from; `columns` must be None.
        count: K.
        seed: the run's seed.
        step: the training step: each has its own draw.
        index: the place of each of this process's queries in the global batch, (n,); None: all
            of them are here, as in one process.
        num_queries: N over all processes; None: as many as the pool has exclusions for.
        shared: one draw for all queries instead of separate ones. Then count + E keys are drawn
            once, and each query meets the first `count` of them that are not excluded for it.

    Returns:
        The same pool with `columns` (n, count).

    >>> from eqco.contrast.in_batch import in_batch_negatives
    >>> drawn = sampled_negatives(in_batch_negatives(torch.randn(8, 4)), 3, seed=0, step=0)
    >>> drawn.num_negatives, bool((drawn.columns == torch.arange(8)[:, None]).any())
    (3, False)
    """
    require_negatives(pool)
    if pool.columns is not None:
        raise InputError("negatives were drawn from this pool already; draw from the whole pool.")
    offered = pool.num_negatives
    if not 1 <= count <= offered:
        raise InputError(
            f"count={count}, but the pool of {len(pool.keys)} keys offers {offered} negatives per "
            f"query. Choose 1 to {offered}, or use the pool as it is to meet all."
        )
    if num_queries is None:
        if pool.excluded is None or index is not None:
            raise InputError(
                "num_queries=None, and nothing else says how many queries the whole batch has. "
                "Give num_queries."
            )
        num_queries = len(pool.excluded)
    if index is None:
        index = torch.arange(num_queries, device=pool.keys.device)
    index = row_numbers(index)
    if pool.excluded is not None and len(pool.excluded) != len(index):
        raise InputError(
            f"the pool excludes keys for {len(pool.excluded)} queries, but {len(index)} draw from "
            f"it. Give the index that the pool was made with."
        )
    generator = generator_for("negatives", seed, step)
    device = pool.keys.device
    if shared:
        order = torch.randperm(len(pool.keys), generator=generator).to(device)
        return Negatives(pool.keys, columns=first_allowed(order, pool.excluded, len(index), count))
    places = distinct_places(num_queries, offered, count, generator).to(device)[index]
    return Negatives(pool.keys, columns=skip_excluded(places, pool.excluded))


def distinct_places(
    num_rows: int, num_places: int, count: int, generator: torch.Generator
) -> Tensor:
    """`count` distinct numbers below `num_places` in each row, every set equally likely."""
    if count > ONE_BY_ONE:
        return torch.rand(num_rows, num_places, generator=generator).topk(count, dim=1).indices
    # Floyd: the j-th number is drawn from 0..top; if it was drawn before, it is `top` itself, which
    # cannot have been. Doubles, so that the draw stays uniform for pools of any size.
    fractions = torch.rand(num_rows, count, generator=generator, dtype=torch.float64)
    drawn = torch.empty(num_rows, count, dtype=torch.int64)
    for j in range(count):
        top = num_places - count + j
        candidate = (fractions[:, j] * (top + 1)).long()
        repeated = (drawn[:, :j] == candidate[:, None]).any(dim=1)
        drawn[:, j] = torch.where(repeated, top, candidate)
    return drawn


def first_allowed(order: Tensor, excluded: Tensor | None, num_queries: int, count: int) -> Tensor:
    """For each query the first `count` keys of `order` that are not excluded for it, (N, count)."""
    if excluded is None:
        return order[:count].expand(num_queries, -1)
    candidates = order[: count + excluded.shape[1]]
    barred = (candidates[None, :, None] == excluded[:, None, :]).any(dim=2)
    # a stable sort of False before True keeps the drawn order among the allowed
    allowed_first = barred.to(torch.uint8).sort(dim=1, stable=True).indices
    return candidates[allowed_first[:, :count]]
