"""K negatives for each query, drawn without replacement and reproducible from (seed, step)."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from eqco.contrast.in_batch import row_numbers
from eqco.contrast.negatives import (
    Negatives,
    require_negatives,
    row_counts,
    skip_excluded,
    uncompiled,
)
from eqco.contrast.streaming import GATHER_RATIO_MANY_CHUNKS
from eqco.runtime.devices import copy_to
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["sampled_negatives"]

# Up to this many are drawn one by one, more all at once with repeated ones drawn again.
ONE_BY_ONE = 32
# From one key in so many on, it is drawn for each key whether it is a negative: the loss then takes
# the products with all keys, and a mask is faster to draw and to apply than indices.
DENSE = GATHER_RATIO_MANY_CHUNKS
# Slots of the table that finds repeated numbers: 16 MiB of int32 at a time.
TABLE_ELEMENTS = 2**22


@uncompiled
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
    never changes a query's negatives. It is made on the CPU, and torch.compile leaves it out: draw
    before a step that is compiled as one graph, and pass the result in.

    More than one key in 32, drawn separately, cost more than scoring all of them (the products are
    the same, and the draw comes on top): there the whole pool, or `shared=True`, is faster.

    Args:
        pool: where to draw from; `indices` and `mask` must be None.
        count: K.
        seed: the run's seed.
        step: the training step: each has its own draw.
        index: the place of each of this process's queries in the global batch, (n,); None: all
            of them are here, as in one process.
        num_queries: N over all processes; None: as many as the pool has exclusions for.
        shared: one draw for all queries instead of separate ones. Then count + E keys are drawn
            once, and the negatives of each query are the first `count` of them that are not
            excluded for it.

    Returns:
        The same pool with `indices` (n, count), or with a `mask` (n, M) where these are many; or,
        where `shared`, the drawn keys alone as the pool, with E of them excluded for each query.

    >>> from eqco.contrast.in_batch import in_batch_negatives
    >>> drawn = sampled_negatives(in_batch_negatives(torch.randn(8, 4)), 3, seed=0, step=0)
    >>> drawn.num_negatives, bool((drawn.indices == torch.arange(8)[:, None]).any())
    (3, False)
    """
    require_negatives(pool)
    if pool.indices is not None or pool.mask is not None:
        raise InputError("negatives were drawn from this pool already; draw from the whole pool.")
    offered = pool.num_negatives
    if not 1 <= count <= offered:
        raise InputError(
            f"count={count}, but the pool of {len(pool.keys)} keys offers {offered} negatives per "
            f"query. Choose 1 to {offered}, or use the pool as it is for all of them."
        )
    if num_queries is None:
        if pool.excluded is None or index is not None:
            raise InputError(
                "num_queries=None, and nothing else says how many queries the whole batch has. "
                "Give num_queries."
            )
        num_queries = len(pool.excluded)
    every = index is None
    if index is None:
        index = torch.arange(num_queries, device=pool.keys.device)
    index = row_numbers(index)
    if pool.excluded is not None and len(pool.excluded) != len(index):
        raise InputError(
            f"the pool excludes keys for {len(pool.excluded)} queries, but {len(index)} draw from "
            f"it. Give the index that the pool was made with."
        )
    if count > ONE_BY_ONE and not shared and isinstance(pool.keys, FakeTensor):
        raise InputError(
            f"count={count} in a FakeTensorMode, where repeated numbers cannot be found and drawn "
            f"again. Choose up to {ONE_BY_ONE}, or shared=True."
        )
    generator = generator_for("negatives", seed, step)
    device = pool.keys.device
    if shared:
        order = torch.randperm(len(pool.keys), generator=generator, device="cpu")
        order = copy_to(device, order)
        if pool.excluded is None:
            return some_keys(pool, order[:count], None)
        candidates = order[: count + pool.excluded.shape[1]]
        unused = after_allowed(candidates, pool.excluded, count)
        return some_keys(pool, candidates, unused)
    if drawn_as_mask(count, offered):
        chosen = chosen_places(num_queries, offered, count, generator)
        chosen = copy_to(device, chosen if every else chosen[index.cpu()])
        if pool.excluded is not None:
            allowed = chosen.new_ones(len(index), len(pool.keys)).scatter_(1, pool.excluded, False)
            chosen = torch.zeros_like(allowed).masked_scatter_(allowed, chosen)
        return Negatives(pool.keys, mask=chosen, ids=pool.ids)
    places = copy_to(device, distinct_places(num_queries, offered, count, generator))[index]
    return Negatives(pool.keys, indices=skip_excluded(places, pool.excluded), ids=pool.ids)


def drawn_as_mask(count: int, offered: int) -> bool:
    """Whether negatives of each query's own are so many that a mask says which they are.

    >>> drawn_as_mask(64, 2000), drawn_as_mask(64, 3000)
    (True, False)
    """
    return count > ONE_BY_ONE and DENSE * count > offered


def some_keys(pool: Negatives, rows: Tensor, excluded: Tensor | None) -> Negatives:
    """Some rows of a pool as a pool of their own."""
    ids = None if pool.ids is None else pool.ids.index_select(0, rows)
    return Negatives(pool.keys.index_select(0, rows), excluded=excluded, ids=ids)


def distinct_places(
    num_rows: int, num_places: int, count: int, generator: torch.Generator
) -> Tensor:
    """`count` distinct numbers below `num_places` in each row, every set equally likely."""
    if count > ONE_BY_ONE:
        return many_distinct_places(num_rows, num_places, count, generator)
    # Floyd: the j-th number is drawn from 0..top; if it was drawn before, it is `top` itself, which
    # cannot have been. Doubles, so that the draw stays uniform for pools of any size.
    shape = num_rows, count
    fractions = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    drawn = torch.empty(shape, dtype=torch.int64, device="cpu")
    for j in range(count):
        top = num_places - count + j
        candidate = (fractions[:, j] * (top + 1)).long()
        repeated = (drawn[:, :j] == candidate[:, None]).any(dim=1)
        drawn[:, j] = torch.where(repeated, top, candidate)
    return drawn


def many_distinct_places(
    num_rows: int, num_places: int, count: int, generator: torch.Generator
) -> Tensor:
    """The same in O(num_rows · count): draw all, and again those that repeat another of their row.

    Every set is equally likely, since no step tells one number from another. Takes few of many.
    """
    shape = num_rows, count
    drawn = torch.randint(num_places, shape, generator=generator, device="cpu")
    rows = min(num_rows, max(1, TABLE_ELEMENTS // num_places))
    holder = torch.zeros(rows, num_places, dtype=torch.int32, device="cpu")
    for start in range(0, num_rows, rows):
        part = drawn[start : start + rows]
        draw_repeated_again_(part, holder[: len(part)], generator)
    return drawn


def draw_repeated_again_(drawn: Tensor, holder: Tensor, generator: torch.Generator) -> None:
    """Make the numbers in each row of `drawn` distinct, (n, K), by drawing repeated ones again.

    `holder` (n, M) is for the place in the row that holds each number; what stands in it before
    does not matter.
    """
    (_, count), num_places = drawn.shape, holder.shape[1]
    place = torch.arange(count, dtype=torch.int32, device="cpu").expand_as(drawn)
    holder.scatter_(1, drawn, place)
    repeated = (holder.gather(1, drawn) != place).view(-1).nonzero()[:, 0]
    drawn, holder = drawn.view(-1), holder.view(-1)
    while len(repeated):
        drawn[repeated] = -1
        row = repeated // count
        own = (repeated - row * count).int()
        number = torch.randint(num_places, row.shape, generator=generator, device="cpu")
        slot = row * num_places + number
        # what a slot says is true only if the place it names holds that number
        named = holder[slot].long().clamp_(0, count - 1)
        free = drawn[row * count + named] != number
        # one of those that draw the same free number gets it
        holder.scatter_(0, slot[free], own[free])
        got = free & (holder[slot] == own)
        drawn[repeated[got]] = number[got]
        repeated = repeated[~got]


def chosen_places(num_rows: int, num_places: int, count: int, generator: torch.Generator) -> Tensor:
    """Whether each number is one of the `count` of its row, (num_rows, num_places); every set of
    them is equally likely, since no step tells one number from another.
    """
    if 2 * count > num_places:
        return ~chosen_places(num_rows, num_places, num_places - count, generator)
    # one random byte for each number chooses nearly as many, seldom more: 256 bytes make 32 int64
    width = -(-num_places // 256) * 256
    words = torch.empty(num_rows, width // 8, dtype=torch.int64, device="cpu")
    threshold = max(0, int(256 * (count - 3 * count**0.5) / num_places))
    chosen = words.random_(-(2**63), None, generator=generator).view(torch.uint8) < threshold
    chosen[:, num_places:] = False
    rows, flat = torch.arange(num_rows, device="cpu"), chosen.view(-1)
    while (missing := count - row_counts(chosen)).any():
        row = rows.repeat_interleave(missing.abs())
        number = torch.randint(num_places, row.shape, generator=generator, device="cpu")
        flat[row * width + number] = (missing > 0)[row]
    return chosen[:, :num_places]


def after_allowed(candidates: Tensor, excluded: Tensor, count: int) -> Tensor:
    """For each query the numbers of all candidates but the first `count` not excluded, (N, E)."""
    if excluded.shape[1] == 1:  # the one that is excluded, or else the last: no sorting
        barred = candidates[None] == excluded
        barred[:, -1] |= ~barred.any(dim=1)
        return barred.to(torch.uint8).argmax(dim=1, keepdim=True)
    barred = (candidates[None, :, None] == excluded[:, None, :]).any(dim=2)
    # a stable sort of False before True keeps the drawn order among the allowed
    return barred.to(torch.uint8).sort(dim=1, stable=True).indices[:, count:]
