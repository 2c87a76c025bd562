"""K in its parts: how many negatives of a query are of the batch, of a queue and of a bank."""

from dataclasses import fields
from typing import NamedTuple

from eqco.methods import MethodSettings
from eqco.planning.footprint import (
    bank_draw_bytes,
    draw_bytes,
    joining_bytes,
    largest_queue,
    loss_bytes,
)
from eqco.runtime.errors import InputError

__all__ = ["KeyCounts", "count_keys", "counts_within", "whole_loss_bytes"]


class KeyCounts(NamedTuple):
    """The negatives of a query, by where they are kept.

    >>> KeyCounts(batch=510, queue=65536).total
    66046
    """

    batch: int = 0
    queue: int = 0
    bank: int = 0

    @property
    def total(self) -> int:
        """K."""
        return sum(self)


def count_keys(
    method: MethodSettings,
    num_queries: int,
    *,
    num_negatives: int | None,
    queue_size: int | None,
    dataset_size: int,
) -> KeyCounts:
    """K as given or the recipe's, in its parts.

    K alone is of the batch as far as that goes, and the rest of a queue where the recipe has one
    beside it.
    """
    offered, own = offered_by_batch(method, num_queries), recipe_counts(method, num_queries)
    if num_negatives is not None:
        check_num_negatives(method, num_queries, num_negatives, own.total)
    if queue_size is not None:
        check_queue_size(method, queue_size)
    count = own.total if num_negatives is None else num_negatives
    if method.num_banks:
        if count >= dataset_size:
            raise InputError(
                f"--num-negatives={count}, but a bank of --dataset-size={dataset_size} images "
                f"offers {dataset_size - 1} per query. Lower --num-negatives."
            )
        return KeyCounts(bank=count)
    if offered is None:
        return KeyCounts(queue=count)
    if num_negatives is None:
        found = own if queue_size is None else own._replace(queue=queue_size)
    elif queue_size is not None:
        found = KeyCounts(batch=count - queue_size, queue=queue_size)
    elif own.queue:
        found = KeyCounts(batch=min(count, offered), queue=max(0, count - offered))
    else:
        found = KeyCounts(batch=count)
    if not 1 <= found.batch <= offered:
        beside = f", and the queue beside it has {found.queue}" if found.queue else ""
        longer = "change --queue-size" if found.queue else "use a queue (--framework mocov2)"
        raise InputError(
            f"--num-negatives={count}, but a batch of --num-queries={num_queries} offers {offered} "
            f"negatives per query{beside}. Choose {found.queue + 1} to {found.queue + offered}, "
            f"raise --num-queries, or {longer}."
        )
    return found


def counts_within(method: MethodSettings, num_queries: int, dim: int, memory: int) -> KeyCounts:
    """The longest queue that fits so many bytes with its loss, where K is a queue alone."""
    offered = offered_by_batch(method, num_queries)
    if method.num_banks:
        raise InputError(
            f"--memory chooses the length of a queue, and {method.name} has memory banks with a "
            f"row for each image. Give --num-negatives, or --framework mocov1 or mocov2."
        )
    if method.queue_beside_batch:
        raise InputError(
            f"--memory chooses K where all negatives are in a queue, and {method.name} has those "
            f"of its batch beside it. Give --queue-size, or --framework mocov1 or mocov2."
        )
    if offered is not None:
        raise InputError(
            f"--memory chooses the length of a queue, and {method.name} has none: its batch offers "
            f"{offered} negatives per query. Give --num-negatives, or --framework mocov1 or mocov2."
        )
    contrasts = [num_queries * each for each in method.contrast_queries]
    return KeyCounts(queue=largest_queue(memory, contrasts, dim))


def whole_loss_bytes(
    method: MethodSettings, num_queries: int, dim: int, counts: KeyCounts, *, bank_rows: int = 0
) -> int:
    """What the loss of a step takes at the most, with what draws or joins the negatives."""
    contrasts = [num_queries * each for each in method.contrast_queries]
    if method.num_banks:
        shared = getattr(method, "shared", False)
        kept, passing = bank_draw_bytes(
            num_queries, counts.total, dim, rows=bank_rows, shared=shared
        )
        pool = counts.total + 1 if shared else bank_rows
        loss = loss_bytes(contrasts, counts.total, dim, pool=pool, offered=pool - 1)
        return method.num_banks * kept + max(passing, loss)
    keys = method.num_batch_keys(num_queries)
    if keys is None:
        return loss_bytes(contrasts, counts.total, dim, pool=counts.total)
    offered, pool = offered_by_batch(method, num_queries), keys + counts.queue
    assert offered is not None
    found = loss_bytes(
        contrasts,
        counts.total,
        dim,
        pool=pool,
        offered=offered + counts.queue,
        trained=keys if method.symmetric else 0,
    )
    drawn = counts.batch < offered
    if counts.queue:
        found += joining_bytes(contrasts, counts.total, dim, pool=pool, drawn=drawn)
    elif drawn:
        found += draw_bytes(contrasts, counts.total, offered=offered, pool=pool)
    return found


def offered_by_batch(method: MethodSettings, num_queries: int) -> int | None:
    """What a batch offers each query; a batch that offers nothing is refused."""
    offered = method.num_batch_negatives(num_queries)
    if offered == 0:
        raise InputError(
            f"--num-queries={num_queries} offers no negatives, since a query's own instance is "
            f"never one. Use at least 2, or a queue (--framework mocov2)."
        )
    return offered


def recipe_counts(method: MethodSettings, num_queries: int) -> KeyCounts:
    """K of the recipe, in its parts."""
    total = method.num_negatives(num_queries)
    assert total is not None
    if method.num_banks:
        return KeyCounts(bank=total)
    if method.num_batch_negatives(num_queries) is None:
        return KeyCounts(queue=total)
    beside = method.queue_size if method.queue_beside_batch else 0
    return KeyCounts(batch=total - beside, queue=beside)


def options(method: MethodSettings) -> set[str]:
    """What of K a method lets choose."""
    return {"count", "queue_size"} & {entry.name for entry in fields(method)}


def check_num_negatives(method: MethodSettings, num_queries: int, count: int, own: int) -> None:
    """Refuse a query without negatives, and a choice where a method has none."""
    if count < 1:
        raise InputError(f"--num-negatives={count}; a query needs at least 1 negative.")
    if count != own and not options(method):
        raise InputError(
            f"--num-negatives={count}, but {method.name} scores each query against all {own} keys "
            f"that a batch of --num-queries={num_queries} offers, and draws none of them. Leave "
            f"--num-negatives out, or choose another --num-queries or --framework."
        )


def check_queue_size(method: MethodSettings, size: int) -> None:
    """Refuse a queue beside the batch where a method has none, or nothing else."""
    if options(method) != {"count", "queue_size"}:
        remedy = "Leave it out, or choose --framework simo or simclrv2"
        if options(method) == {"queue_size"}:
            remedy = f"The negatives of {method.name} are all in its queue: give --num-negatives"
        raise InputError(
            f"--queue-size={size} is of a queue beside the negatives of the batch, which "
            f"{method.name} does not have. {remedy}."
        )
    if size < 0:
        raise InputError(f"--queue-size={size}; it must be at least 0.")
