"""A memory of keys: first in, first out, for any capacity and any batch size."""

from typing import Any

import torch
from torch import Tensor, nn

from eqco.contrast.checks import check_finite_values, check_floating, wants_finite_check
from eqco.contrast.negatives import Negatives, check_ids, uncompiled
from eqco.runtime import processes
from eqco.runtime.devices import copy_to
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["KeyQueue"]

COUNTERS = ("cursor", "filled", "batches")


class KeyQueue(nn.Module):
    """The last keys seen, as negatives for the next batch (MoCo's memory bank).

    Reading never changes it; `enqueue` is the only writer and is called after the step, so that a
    query's positive is never among its negatives. Slots not yet filled are not used: K counts only
    what is there. A batch with more keys than the queue holds leaves a random choice of itself,
    which is the paper's memory for K < N. Keys, cursor and counts are in the state dict, all as
    tensors.

    With several processes every queue must hold the keys of all of them: `enqueue(keys,
    gather=True)` sees to it. Then a queue may also be part of a module inside DDP, which copies
    the buffers of rank 0 to all ranks at each forward.

    torch.compile leaves `negatives` and `enqueue` out of its graphs, so that the queue's own counts
    compile nothing anew. The loss is compiled for each number of keys: while a queue fills, compile
    the encoder, and call the loss and the queue outside.

    Args:
        capacity: how many keys it holds.
        dim: D, the size of a key.
        seed: chooses which keys of a larger batch stay.
        dtype: of the keys it holds; None: torch's default. float64 keys are refused by a float32
            queue; one of half precision rounds what it is given.
        with_ids: keep what each key is an instance of beside it, so that a loss with `ids` bars
            a query's own earlier keys.

    >>> queue = KeyQueue(capacity=5, dim=2)
    >>> queue.enqueue(torch.ones(3, 2))
    >>> queue, queue.negatives().num_negatives
    (KeyQueue(3 of 5 keys, dim=2), 3)
    >>> queue.enqueue(torch.zeros(3, 2))
    >>> queue.negatives().keys[:, 0]
    tensor([0., 1., 1., 0., 0.])

    The key of a query's own image, of an earlier step, is no negative of it:

    >>> queue = KeyQueue(capacity=5, dim=2, with_ids=True)
    >>> queue.enqueue(torch.eye(2), ids=torch.tensor([7, 8]))
    >>> query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> from eqco import EqCoLoss
    >>> EqCoLoss(temperature=1.0)(query, key, queue.negatives(), ids=torch.tensor([7]))
    tensor(0.6931)
    """

    keys: Tensor
    ids: Tensor | None

    def __init__(
        self,
        capacity: int,
        dim: int,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        with_ids: bool = False,
    ):
        super().__init__()
        if capacity < 1 or dim < 1:
            raise InputError(
                f"a queue of capacity={capacity} keys of dim={dim}; both must be at least 1."
            )
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(
                f"dtype={dtype}; keys are floating-point, such as torch.float32 or torch.float64."
            )
        self.seed = seed
        # numbers, not buffers, so that reading them never waits for a device
        self.cursor = 0
        self.filled = 0
        self.batches = 0
        self.register_buffer("keys", torch.zeros(capacity, dim, dtype=dtype))
        ids = torch.zeros(capacity, dtype=torch.int64) if with_ids else None
        self.register_buffer("ids", ids)

    @property
    def capacity(self) -> int:
        """How many keys it holds when full."""
        return len(self.keys)

    @uncompiled
    def negatives(self) -> Negatives:
        """What it holds, as negatives for every query.

        They are the memory itself, not a copy: use them before the next `enqueue`.
        """
        if self.filled == 0:
            raise InputError(
                f"the queue of {self.capacity} keys is empty. "
                f"Enqueue one batch of keys before the first step."
            )
        ids = None if self.ids is None else self.ids[: self.filled]
        return Negatives(self.keys[: self.filled], ids=ids)

    @uncompiled
    @torch.no_grad()
    def enqueue(
        self, keys: Tensor, *, ids: Tensor | None = None, gather: bool | None = None
    ) -> None:
        """Store a batch of keys (M, D) over the oldest ones; keys carry no gradient here.

        Args:
            keys: of this process, or of all.
            ids: what each key is an instance of, (M,), for a queue made with with_ids=True.
            gather: True: take those of all processes, which all must call this, each with any
                number of keys. False: `keys` are those of all processes already. It must be said
                where there are several.
        """
        if gather is None and processes.world_size() > 1:
            raise InputError(
                f"gather=None with {processes.world_size()} processes, whose queues would hold "
                f"different keys. Give gather=True to enqueue the keys of all processes, or "
                f"gather=False if these are the keys of all."
            )
        self.check_keys(keys)
        self.check_key_ids(ids, keys)
        places = self.store(self.keys, keys.detach().to(self.keys), gather)
        if self.ids is not None and ids is not None:
            self.store(self.ids, ids.to(self.ids), gather)
        self.cursor = (self.cursor + places) % self.capacity
        self.filled = min(self.filled + places, self.capacity)
        self.batches += 1

    def store(self, memory: Tensor, rows: Tensor, gather: bool | None) -> int:
        """Write rows of a batch into a memory from the cursor on; how many were written."""
        if gather:
            rows = processes.gather_uneven(rows)
        if len(rows) > self.capacity:
            generator = generator_for("queue", self.seed, self.batches)
            order = torch.randperm(len(rows), generator=generator, device="cpu")
            rows = rows[copy_to(rows.device, order[: self.capacity])]
        first = min(len(rows), self.capacity - self.cursor)
        memory[self.cursor : self.cursor + first] = rows[:first]
        memory[: len(rows) - first] = rows[first:]
        return len(rows)

    def extra_repr(self) -> str:
        """What is inside the brackets of the queue's repr."""
        return f"{self.filled} of {self.capacity} keys, dim={self.keys.shape[1]}"

    def check_keys(self, keys: Tensor) -> None:
        """Refuse what the queue cannot hold as it is."""
        check_floating("keys", keys)
        if keys.dim() != 2 or keys.shape[1] != self.keys.shape[1]:
            raise InputError(
                f"keys of shape {tuple(keys.shape)} for a queue of (M, {self.keys.shape[1]}) keys."
            )
        kind = self.keys.dtype
        if keys.dtype == torch.float64 and kind == torch.float32:
            raise InputError(
                f"keys of type {keys.dtype} would be rounded to the queue's {kind}. Make the queue "
                f"with dtype=torch.float64, or give keys.float()."
            )
        if not wants_finite_check(None, keys):
            return
        check_finite_values({"keys": keys}, "dot")
        limit = torch.finfo(kind).max
        if keys.numel() and torch.finfo(keys.dtype).max > limit:
            largest = float(keys.abs().max())
            if largest > limit:
                raise InputError(
                    f"keys hold a value of size {largest:g}, and the queue's {kind} holds up to "
                    f"{limit:g}. Scale keys to length one first, or make the queue with "
                    f"dtype=torch.float32."
                )

    def check_key_ids(self, ids: Tensor | None, keys: Tensor) -> None:
        """Refuse keys without ids in a queue that keeps them, and ids in one that does not."""
        if (ids is None) != (self.ids is None):
            raise InputError(
                "keys were given without ids to a queue with with_ids=True. Give ids as well."
                if ids is None
                else "ids were given to a queue that keeps none. Make it with with_ids=True."
            )
        if ids is not None:
            check_ids("ids", ids, (len(keys),), keys, "keys")

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in COUNTERS:
            destination[prefix + name] = torch.tensor(getattr(self, name), device="cpu")

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        *found: list[str],
    ) -> None:
        buffered = ["keys"] if self.ids is None else ["keys", "ids"]
        parts = [*buffered, *COUNTERS]
        missing = [name for name in parts if prefix + name not in state_dict]
        if 0 < len(missing) < len(parts):
            raise InputError(
                f"the state of the queue lacks {', '.join(missing)}; {', '.join(buffered)} and "
                f"counts are of use only together. Give the whole state_dict() of a KeyQueue, as "
                f"this version saves it, to one with the same settings."
            )
        counts = {} if missing else self.checked_counts(state_dict, prefix)
        for name, count in counts.items():
            setattr(self, name, count)
        missing_keys += [prefix + name for name in missing if name not in buffered]
        buffers = {
            key: value
            for key, value in state_dict.items()
            if key not in [prefix + name for name in COUNTERS]
        }
        super()._load_from_state_dict(buffers, prefix, local_metadata, strict, missing_keys, *found)

    def checked_counts(self, state_dict: dict[str, Any], prefix: str) -> dict[str, int]:
        """The counts of a state; that of another queue, or of no queue, is refused."""
        shape = tuple(state_dict[prefix + "keys"].shape)
        if len(shape) != 2:
            raise InputError(damaged_state(f"keys of shape {shape}, which must be (capacity, dim)"))
        if shape != self.keys.shape:
            raise InputError(
                f"the state is of a queue of capacity={shape[0]} and dim={shape[-1]}, and this one "
                f"has capacity={self.capacity} and dim={self.keys.shape[1]}. Make it with those of "
                f"the saved one."
            )
        if self.ids is not None and state_dict[prefix + "ids"].shape != self.ids.shape:
            raise InputError(
                damaged_state(f"ids of shape {tuple(state_dict[prefix + 'ids'].shape)}")
            )
        for name in COUNTERS:
            count = torch.as_tensor(state_dict[prefix + name])
            if count.numel() != 1 or count.is_floating_point():
                raise InputError(damaged_state(f"{name}={count}, which must be one whole number"))
        counts = {name: int(state_dict[prefix + name]) for name in COUNTERS}
        cursor, filled, batches = counts.values()
        limits = {
            f"cursor={cursor}, which must be 0 to {self.capacity - 1}": 0 <= cursor < self.capacity,
            f"filled={filled}, which must be 0 to {self.capacity}": 0 <= filled <= self.capacity,
            f"batches={batches} and filled={filled}, which is no queue's": batches >= (filled > 0),
            f"cursor={cursor} and filled={filled}, which must be equal until the queue of "
            f"{self.capacity} is full": filled == self.capacity or cursor == filled,
        }
        for wrong, holds in limits.items():
            if not holds:
                raise InputError(damaged_state(wrong))
        return counts


def damaged_state(wrong: str) -> str:
    """What is said of a state that no queue can have."""
    return (
        f"the state of the queue is damaged: it has {wrong}. Load another checkpoint, or start "
        f"with an empty queue."
    )
