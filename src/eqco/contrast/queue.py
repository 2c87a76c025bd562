"""A memory of keys: first in, first out, for any capacity and any batch size."""

import torch
from torch import Tensor, nn

from eqco.contrast.checks import check_finite_values, check_floating, wants_finite_check
from eqco.contrast.negatives import Negatives
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["KeyQueue"]


class KeyQueue(nn.Module):
    """The last keys seen, as negatives for the next batch (MoCo's memory bank).

    Reading never changes it; `remember` is the only writer and is called after the step, so that a
    query's positive is never among its negatives. Slots not yet filled are not used: K counts only
    what is there. A batch with more keys than the queue holds leaves a random choice of itself,
    which is the paper's memory for K < N. Keys, cursor and counts are in the state dict.

    Args:
        capacity: how many keys it holds.
        dim: D, the size of a key.
        seed: chooses which keys of a larger batch stay.

    >>> queue = KeyQueue(capacity=5, dim=2)
    >>> queue.remember(torch.ones(3, 2))
    >>> queue.negatives().num_negatives
    3
    >>> queue.remember(torch.zeros(3, 2))
    >>> queue.negatives().keys[:, 0]
    tensor([0., 1., 1., 0., 0.])
    """

    keys: Tensor

    def __init__(self, capacity: int, dim: int, *, seed: int = 0):
        super().__init__()
        if capacity < 1 or dim < 1:
            raise InputError(
                f"a queue of capacity={capacity} keys of dim={dim}; both must be at least 1."
            )
        self.seed = seed
        self.cursor = 0
        self.filled = 0
        self.batches = 0
        self.register_buffer("keys", torch.zeros(capacity, dim))

    @property
    def capacity(self) -> int:
        """How many keys it holds when full."""
        return len(self.keys)

    def negatives(self) -> Negatives:
        """What is remembered, as negatives for every query.

        They are the memory itself, not a copy: use them before the next `remember`.
        """
        if self.filled == 0:
            raise InputError(
                f"the queue of {self.capacity} keys is empty. "
                f"Remember one batch of keys before the first step."
            )
        return Negatives(self.keys[: self.filled])

    @torch.no_grad()
    def remember(self, fresh: Tensor) -> None:
        """Store a batch of keys (M, D) over the oldest ones; keys carry no gradient here."""
        check_floating("keys", fresh)
        if fresh.dim() != 2 or fresh.shape[1] != self.keys.shape[1]:
            raise InputError(
                f"keys of shape {tuple(fresh.shape)} for a queue of (M, {self.keys.shape[1]}) keys."
            )
        if wants_finite_check(None, fresh):
            check_finite_values({"keys": fresh}, "dot")
        fresh = fresh.detach().to(self.keys)
        if len(fresh) > self.capacity:
            generator = generator_for("queue", self.seed, self.batches)
            kept = torch.randperm(len(fresh), generator=generator)[: self.capacity]
            fresh = fresh[kept.to(fresh.device)]
        first = min(len(fresh), self.capacity - self.cursor)
        self.keys[self.cursor : self.cursor + first] = fresh[:first]
        self.keys[: len(fresh) - first] = fresh[first:]
        self.cursor = (self.cursor + len(fresh)) % self.capacity
        self.filled = min(self.filled + len(fresh), self.capacity)
        self.batches += 1

    def get_extra_state(self) -> dict[str, int]:
        """The place of the next key and the counts: part of the state dict."""
        return {
            "capacity": self.capacity,
            "cursor": self.cursor,
            "filled": self.filled,
            "batches": self.batches,
        }

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Take over what `get_extra_state` gave."""
        if state["capacity"] != self.capacity:
            raise InputError(
                f"the state is of a queue of capacity={state['capacity']}, and this one has "
                f"capacity={self.capacity}. Make it with that of the saved one."
            )
        self.cursor, self.filled = state["cursor"], state["filled"]
        self.batches = state["batches"]
