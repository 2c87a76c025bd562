"""A memory of every instance: one row for each, which follows its embeddings."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.contrast.checks import check_finite_values, check_floating, wants_finite_check
from eqco.contrast.negatives import Negatives, has_values, uncompiled
from eqco.contrast.sampled import sampled_negatives
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["MemoryBank", "last_copies", "machine_memory"]

PARTS = 3  # of memory, one is for the bank: looking through it before it is saved takes 1.7 more
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class MemoryBank(nn.Module):
    """One unit vector for each instance of the data set, as positives and negatives.

    Reading never changes it; `update` is the only writer and is called after the step:

    .. math:: r_i \\leftarrow \\frac{\\beta r_i + (1 - \\beta) k_i}{\\| \\cdot \\|}

    A query's own row is never among its negatives. With several processes each bank holds the rows
    of all: `update(keys, index, gather=True)` sees to it. The rows are in the state dict.

    Args:
        num_instances: rows; the place of an instance in the data set is its row.
        dim: D, the size of a row.
        num_views: rows of each instance, where its views have embeddings of their own (CMC).
        decay: β, how much of a row is kept at each visit.
        seed: of the first rows, which are drawn.

    >>> bank = MemoryBank(100, dim=8)
    >>> index = torch.tensor([7, 50, 3])  # the instances of this batch
    >>> bank.negatives(index, 16, seed=0, step=0).num_negatives
    16
    >>> bank.update(torch.ones(3, 8), index)
    """

    rows: Tensor

    def __init__(
        self, num_instances: int, dim: int, *, num_views: int = 1, decay: float = 0.5, seed: int = 0
    ):
        super().__init__()
        if num_instances < 2 or dim < 1 or num_views < 1:
            raise InputError(
                f"a memory bank of num_instances={num_instances}, dim={dim} and num_views="
                f"{num_views}; it needs at least 2 instances, 1 dimension and 1 view."
            )
        if not 0 <= decay < 1:
            raise InputError(f"decay={decay}; it must be at least 0 and less than 1 (no news).")
        refuse_larger_than_memory(num_instances, dim, num_views)
        self.decay = decay
        generator = generator_for("memory bank", seed)
        rows = torch.rand(num_views, num_instances, dim, generator=generator, device="cpu")
        F.normalize(rows.mul_(2).sub_(1), dim=2, out=rows)  # a copy might not fit
        self.register_buffer("rows", rows)

    @property
    def num_instances(self) -> int:
        """The instances that have a row."""
        return self.rows.shape[1]

    def positives(self, index: Tensor, view: int = 0) -> Tensor:
        """The rows of these instances, (N, D), without gradient."""
        return self.rows[self.check_view(view)].index_select(0, self.check_index(index))

    @uncompiled
    def negatives(
        self,
        index: Tensor,
        count: int,
        *,
        seed: int,
        step: int,
        view: int = 0,
        shared: bool = False,
    ) -> Negatives:
        """`count` rows of other instances for each query, a function of (seed, step).

        Use them before the next `update`: without `shared` they are the bank itself, not a copy.

        Args:
            index: the instances of this process's queries, (n,); other processes have as many.
            count: K.
            seed: of the draws.
            step: each has its own draw.
            view: whose rows.
            shared: one draw for all queries instead of one for each.
        """
        num_queries = len(index) * processes.world_size()
        places = torch.arange(num_queries, device=index.device)[processes.own_rows(num_queries)]
        rows = self.rows[self.check_view(view)]
        pool = Negatives(rows, excluded=self.check_index(index)[:, None])
        return sampled_negatives(
            pool, count, seed=seed, step=step, index=places, num_queries=num_queries, shared=shared
        )

    @uncompiled
    @torch.no_grad()
    def update(self, keys: Tensor, index: Tensor, *, gather: bool | None = None) -> None:
        """Move the rows of these instances towards their keys.

        Args:
            keys: embeddings of any length, (M, D); of several views side by side, (M, views · D).
                Of this process, or of all.
            index: their instances, (M,). Of one that comes twice, as in place of an image that
                cannot be read, the last counts.
            gather: True: take those of all processes, which all must call this, each with any
                number of keys. False: `keys` and `index` are those of all processes already. It
                must be said where there are several.
        """
        if gather is None and processes.world_size() > 1:
            raise InputError(
                f"gather=None with {processes.world_size()} processes, whose banks would come to "
                f"hold different rows. Give gather=True to take the keys of all processes, or "
                f"gather=False if these are the keys of all."
            )
        self.check_keys(keys, self.check_index(index))
        if gather:
            keys, index = processes.gather_uneven(keys), processes.gather_uneven(index)
        num_views, _, dim = self.rows.shape
        last = keys[last_copies(index)].to(self.rows)
        views = last.view(-1, num_views, dim).transpose(0, 1)
        moved = torch.lerp(F.normalize(views, dim=2), self.rows[:, index], self.decay)
        self.rows[:, index] = F.normalize(moved, dim=2)

    def check_keys(self, keys: Tensor, index: Tensor) -> None:
        """Refuse what no row can move towards."""
        check_floating("keys", keys)
        num_views, _, dim = self.rows.shape
        if keys.shape != (len(index), num_views * dim):
            raise InputError(
                f"keys of shape {tuple(keys.shape)} for {len(index)} instances of {num_views} × "
                f"{dim}; they must be ({len(index)}, {num_views * dim})."
            )
        if keys.dtype == torch.float64 and self.rows.dtype == torch.float32:
            raise InputError(
                f"keys of type {keys.dtype} would be rounded to the bank's {self.rows.dtype}. Make "
                f"the bank float64 by bank.double(), or give keys.float()."
            )
        if wants_finite_check(None, keys):
            check_finite_values({"keys": keys}, "cosine")

    def check_view(self, view: int) -> int:
        """Refuse a view that has no rows."""
        if not 0 <= view < len(self.rows):
            raise InputError(
                f"view={view}, but the bank has num_views={len(self.rows)}. Give a view from 0 to "
                f"{len(self.rows) - 1}, or make the bank with more."
            )
        return view

    def check_index(self, index: Tensor) -> Tensor:
        """Refuse what is no row of the bank."""
        if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype != torch.int64:
            raise InputError(
                f"index={index!r}; it must be a tensor (N,) of type torch.int64: the row of each "
                f"instance."
            )
        if index.device.type == "cpu" and has_values(index) and len(index):
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= self.num_instances:
                raise InputError(
                    f"index holds {low} to {high}, but the bank's {self.num_instances} instances "
                    f"have the numbers 0 to {self.num_instances - 1}."
                )
        return index

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        rows = state_dict.get(prefix + "rows")
        if rows is not None and rows.shape != self.rows.shape:
            names = ("num_views", "num_instances", "dim")
            theirs, ours = (
                ", ".join(f"{name}={size}" for name, size in zip(names, shape, strict=False))
                for shape in (rows.shape, self.rows.shape)
            )
            raise InputError(
                f"the state is of a memory bank of {theirs}, and this one has {ours}. Make it with "
                f"those of the saved one: its images, views and embeddings."
            )
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        """What is inside the brackets of the bank's repr."""
        num_views, count, dim = self.rows.shape
        return f"{num_views} × {count} rows, dim={dim}, decay={self.decay}"


def last_copies(index: Tensor) -> Tensor:
    """For each instance of a batch the place of its last copy there, so that all copies can write
    the same, in any order.

    >>> last_copies(torch.tensor([5, 3, 5])).tolist()
    [2, 1, 2]
    """
    same = index[:, None] == index  # unique would wait for the device
    return len(index) - 1 - same.flip(1).to(torch.uint8).argmax(dim=1)


def refuse_larger_than_memory(num_instances: int, dim: int, num_views: int) -> None:
    """Refuse a bank that this machine cannot hold and save, before it is allocated."""
    size = num_instances * dim * num_views * torch.finfo(torch.get_default_dtype()).bits // 8
    memory, copies = machine_memory(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if memory is not None and copies * size > memory / PARTS:
        each = f" in each of {copies} processes" if copies > 1 else ""
        raise InputError(
            f"a memory bank of {num_views} × {num_instances} rows of dim={dim} takes "
            f"{size / 1e9:.1f} GB{each}, and this machine has {memory / 1e9:.1f} GB, of which "
            f"banks may take {memory / PARTS / 1e9:.1f}: saving one takes almost twice that. Lower "
            f"encoder.embedding_dim or train on fewer images; a queue (--recipe mocov2) needs no "
            f"row for each."
        )


def machine_memory() -> int | None:
    """Bytes of memory of this machine, or of the container that this runs in; None where the
    system does not tell.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    for file in CONTAINER_LIMITS:
        limit = Path(file).read_text().strip() if Path(file).is_file() else "max"
        if limit.isdigit():
            memory = min(memory, int(limit))
    return memory
