"""Bytes: what a queue, the logits that nobody holds, and the streamed loss take."""

import bisect
import re
from collections.abc import Sequence
from typing import NamedTuple

from eqco.contrast.loss import gathering_small_pays
from eqco.contrast.sampled import ONE_BY_ONE, TABLE_ELEMENTS, drawn_as_mask
from eqco.contrast.streaming import (
    GATHERED_ELEMENTS,
    KEPT_BYTES,
    chunk_size,
    gathering_pays,
)
from eqco.runtime.errors import InputError

__all__ = [
    "bank_draw_bytes",
    "draw_bytes",
    "format_bytes",
    "joining_bytes",
    "largest_queue",
    "logits_bytes",
    "loss_bytes",
    "parse_bytes",
    "queue_bytes",
]

FLOAT, PLACE = 4, 8  # bytes of a float32, and of a row number
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def queue_bytes(num_negatives: int, dim: int) -> int:
    """What a memory of K keys takes.

    >>> queue_bytes(65536, dim=128)
    33554432
    """
    return num_negatives * dim * FLOAT


def logits_bytes(num_queries: int, num_negatives: int) -> int:
    """What the matrix of all similarities would take, once, without its gradient.

    >>> logits_bytes(256, 65536)
    67108864
    """
    return num_queries * num_negatives * FLOAT


def loss_bytes(
    contrasts: Sequence[int],
    num_negatives: int,
    dim: int,
    *,
    pool: int,
    offered: int | None = None,
    trained: int = 0,
) -> int:
    """What the loss of this library takes at the most, forward and backward, without its inputs.

    An upper estimate in whole tensors: chunks of similarities and of keys, the one before still
    alive while the next is made, and a handful of tensors of the queries' shape.

    Args:
        contrasts: the queries of each contrast of a step.
        pool: keys that the negatives are taken from.
        offered: negatives that the batch offers each query, of which some may be drawn; None: the
            whole pool counts.
        trained: keys of the pool that want gradient, as where every view is both query and key.

    >>> loss_bytes([256], 65536, 128, pool=65536) == loss_bytes([256], 4096, 128, pool=4096)
    True
    """
    share = KEPT_BYTES // len(contrasts)
    parts = [
        contrast_bytes(num_queries, num_negatives, dim, pool, offered, trained, share)
        for num_queries in contrasts
    ]
    return sum(part.kept for part in parts) + max(part.passing for part in parts)


class Part(NamedTuple):
    """Bytes of one contrast: until the last backward pass, and for the length of its own."""

    kept: int
    passing: int


def contrast_bytes(
    num_queries: int,
    num_negatives: int,
    dim: int,
    pool: int,
    offered: int | None,
    trained: int,
    kept_bytes: int,
) -> Part:
    """What one contrast takes, with its share of what a step may keep; see `loss_bytes`."""
    queries, keys = 6 * num_queries * dim * FLOAT, pool * dim * FLOAT
    chunk = min(pool, chunk_size(num_queries, pool, trained > 0))
    if offered is not None and gathering_small_pays(chunk, pool, num_negatives):
        each = num_queries * num_negatives
        gathered = 2 * each * dim * FLOAT
        # their gradient, once more as large, and its sum for each key, for which they are sorted
        to_keys = gathered + 6 * each * PLACE + 2 * keys
        return Part(queries + gathered, to_keys if trained else 0)
    if offered is not None and gathering_pays(chunk, pool, num_negatives):
        gathered = min(max(GATHERED_ELEMENTS, dim), num_queries * num_negatives * dim) * FLOAT
        return Part(queries, 3 * gathered + (3 * keys if trained else 0))
    similarities, whole = logits_bytes(num_queries, chunk), chunk == pool
    # one chunk alone, or two while they pass by; and what says which keys are excluded, or drawn
    copies = 1.0 if whole else 2.0
    if offered is not None:
        copies += 0.5 if num_negatives == offered else 2.0
    if not trained:
        return Part(queries, int(copies * similarities) + 2 * chunk * dim * FLOAT)
    # the gradient to keys, and the sum of those before
    passing = int(copies * similarities) + 2 * keys
    if whole:
        return Part(queries + similarities + keys, passing - similarities // 2)
    kept = logits_bytes(num_queries, trained)
    return Part(queries + (kept if kept <= kept_bytes else 0), passing)


def joining_bytes(
    contrasts: Sequence[int], num_negatives: int, dim: int, *, pool: int, drawn: bool
) -> int:
    """What it takes to join the negatives of a batch and of a queue, beside the loss over both.

    Each contrast has a pool of both; where those of the batch are drawn, also the row numbers of
    all K, and of one contrast twice while they are made.

    >>> joining_bytes([256, 256], 510 + 65536, 128, pool=512 + 65536, drawn=False)
    67633152
    """
    places = (len(contrasts) + 1) * max(contrasts) * num_negatives * PLACE
    return len(contrasts) * queue_bytes(pool, dim) + (places if drawn else 0)


def draw_bytes(contrasts: Sequence[int], num_negatives: int, *, offered: int, pool: int) -> int:
    """What says which K of those that a batch offers are drawn, for each query of each contrast:
    their row numbers, or where they are many a mask of all keys of the pool.

    >>> draw_bytes([256, 256], 16, offered=510, pool=512)
    65536
    >>> draw_bytes([256, 256], 255, offered=510, pool=512) == 512 * 512
    True
    """
    each = pool if drawn_as_mask(num_negatives, offered) else num_negatives * PLACE
    return sum(contrasts) * each


def bank_draw_bytes(
    num_queries: int, num_negatives: int, dim: int, *, rows: int, shared: bool
) -> Part:
    """What drawing K rows of a memory bank takes beside it.

    A shared draw orders all row numbers, compares those drawn with each query's own and then copies
    K + 1 rows. A draw for each query names the rows by their numbers, or by a mask where they are
    many.

    >>> bank_draw_bytes(256, 16384, 128, rows=1_281_167, shared=True).kept
    8389120
    """
    if shared:
        copied, compared = queue_bytes(num_negatives + 1, dim), 2 * num_queries * num_negatives
        return Part(copied, (rows + 4 * num_queries) * PLACE + max(0, compared - copied))
    if drawn_as_mask(num_negatives, rows - 1):
        return Part(num_queries * rows, 3 * num_queries * rows)
    numbers = num_queries * num_negatives * PLACE
    # finds numbers that repeat another of their query
    table = min(num_queries * rows, max(TABLE_ELEMENTS, rows)) * FLOAT
    return Part(numbers, 2 * numbers + (table if num_negatives > ONE_BY_ONE else 0))


def largest_queue(memory: int, contrasts: Sequence[int], dim: int) -> int:
    """The largest K whose queue and loss fit a number of bytes.

    Args:
        memory: bytes.
        contrasts: the queries of each contrast of a step.
        dim: D.

    >>> largest_queue(64 * 10**6, [256], dim=128)
    117320
    """

    def required(num_negatives: int) -> int:
        loss = loss_bytes(contrasts, num_negatives, dim, pool=num_negatives)
        return queue_bytes(num_negatives, dim) + loss

    if required(1) > memory:
        raise InputError(
            f"--memory {format_bytes(memory)} is too little: one negative for "
            f"num_queries={contrasts[0]} queries of dim={dim} takes {format_bytes(required(1))}. "
            f"Give more, or lower --num-queries."
        )
    choices = range(1, memory // (dim * FLOAT) + 1)
    return bisect.bisect_right(choices, memory, key=required)


def parse_bytes(text: str) -> int:
    """A size as people write it.

    >>> parse_bytes("512MB"), parse_bytes("1.5 GiB")
    (512000000, 1610612736)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    if match is None or match[2].upper() not in UNITS:
        raise InputError(
            f"--memory {text!r} is not a size. Write a number with its unit: B, KB, MB, GB (powers "
            f"of 1000) or KiB, MiB, GiB (powers of 1024), such as 512MB."
        )
    return int(float(match[1]) * UNITS[match[2].upper()])


def format_bytes(count: int) -> str:
    """A size in the unit that suits it.

    >>> format_bytes(33554432), format_bytes(512)
    ('33.6 MB', '512 B')
    """
    for unit in ("TB", "GB", "MB", "KB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.1f} {unit}"
    return f"{count} B"
