"""Bytes: what a queue, the logits that nobody holds, and the streamed loss take."""

import bisect
import re

from eqco.contrast.loss import gathering_small_pays
from eqco.contrast.streaming import (
    GATHERED_ELEMENTS,
    KEPT_ELEMENTS,
    chunk_size,
    gathering_pays,
)
from eqco.runtime.errors import InputError

__all__ = [
    "format_bytes",
    "largest_queue",
    "logits_bytes",
    "loss_bytes",
    "parse_bytes",
    "queue_bytes",
]

FLOAT = 4  # bytes of a float32
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
    num_queries: int,
    num_negatives: int,
    dim: int,
    *,
    pool: int,
    in_batch: bool = False,
    symmetric: bool = False,
) -> int:
    """What the loss of this library takes at the most, forward and backward, without its inputs.

    An upper estimate in whole tensors: chunks of similarities and of keys, the one before still
    alive while the next is made, and a handful of tensors of the queries' shape.

    Args:
        pool: keys that the negatives are taken from.
        in_batch: own keys are excluded or some are drawn, which needs masks.
        symmetric: two contrasts, one for each view as queries, whose keys want gradient.

    >>> loss_bytes(256, 65536, 128, pool=65536) == loss_bytes(256, 4096, 128, pool=4096)
    True
    """
    queries = num_queries * dim * FLOAT
    contrasts = 2 if symmetric else 1
    chunk = min(pool, chunk_size(num_queries, pool, keys_want_gradient=symmetric))
    if in_batch and gathering_small_pays(chunk, pool, num_negatives):
        gathered = num_queries * num_negatives * dim * FLOAT
        return contrasts * (2 * gathered + 6 * queries)
    if in_batch and gathering_pays(chunk, pool, num_negatives):
        gathered = min(max(GATHERED_ELEMENTS, dim), num_queries * num_negatives * dim) * FLOAT
        keys = 3 * pool * dim * FLOAT if symmetric else 0
        return contrasts * (3 * gathered + 6 * queries) + keys
    kept = symmetric and num_queries * pool <= KEPT_ELEMENTS
    similarities = num_queries * (pool if kept else chunk) * FLOAT
    keys = (2 * pool if symmetric else chunk) * dim * FLOAT
    # one chunk alone, or two while they pass by, or those that two contrasts keep for their keys
    copies = 1.0 if chunk == pool and not symmetric else 2.0
    if in_batch:  # one byte for each excluded key; drawn ones are counted
        copies += 0.5 if num_negatives == pool - contrasts else 2.0
    if symmetric and chunk == pool:
        copies += 0.5
    return int(copies * similarities) + 2 * keys + contrasts * 6 * queries


def largest_queue(memory: int, num_queries: int, dim: int) -> int:
    """The largest K whose queue and loss fit a number of bytes.

    >>> largest_queue(64 * 10**6, num_queries=256, dim=128)
    117320
    """

    def required(num_negatives: int) -> int:
        loss = loss_bytes(num_queries, num_negatives, dim, pool=num_negatives)
        return queue_bytes(num_negatives, dim) + loss

    if required(1) > memory:
        raise InputError(
            f"--memory {format_bytes(memory)} is too little: one negative for "
            f"num_queries={num_queries} queries of dim={dim} takes {format_bytes(required(1))}. "
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
