"""What every framework promises, and the parts that those with a key encoder share."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.contrast import Contrast, Negatives, in_batch_negatives, sampled_negatives
from eqco.data import Views
from eqco.encoders import Encoder
from eqco.runtime import processes
from eqco.runtime.seeds import generator_for

__all__ = ["KeyEncoder", "Method", "StepOutput", "batch_negatives"]


@dataclass(frozen=True)
class StepOutput:
    """What a method made of one batch: contrasts, and keys to enqueue after the step, (M, D).

    Queries and positives are this process's, negatives and keys to enqueue those of all processes.
    """

    contrasts: Sequence[Contrast]
    fresh_keys: Tensor | None = None


class Method(nn.Module, ABC):
    """A framework of contrastive learning: images in, contrasts out.

    `forward` stores nothing; `after_step` is the only writer. What is trained and taken away is
    `encoder`.
    """

    encoder: Encoder

    @abstractmethod
    def forward(self, views: Views, step: int) -> StepOutput:
        """Queries, positives and negatives of this batch; draws are a function of (seed, step)."""

    @abstractmethod
    def after_step(self, fresh_keys: Tensor | None) -> None:
        """Update what is kept: the momentum encoder first, then the queue."""

    def warm_up_memory(self, views: Views, number: int = 0) -> None:
        """Put the keys of one batch, or of its part `number`, into memory before the first step."""


class KeyEncoder(nn.Module):
    """A copy of the query encoder that is moved, never trained (Eq. 16).

    Args:
        encoder: the query encoder; parameters and statistics are copied.
        shuffle: pass images through batch norm in another order than the queries (MoCo's shuffling
            BN). It matters where batch norm sees part of the batch at a time.
        seed: of the order.
    """

    def __init__(self, encoder: Encoder, *, shuffle: bool, seed: int):
        super().__init__()
        self.network = copy.deepcopy(encoder).requires_grad_(False)
        self.shuffle = shuffle
        self.seed = seed

    @torch.no_grad()
    def forward(self, images: Tensor, step: int) -> Tensor:
        """Unit keys of all processes' images, in their order, without gradient, (N, D)."""
        if not self.shuffle:
            return processes.gather(self.unit_keys(images))
        images = processes.gather(images)
        order = torch.randperm(len(images), generator=generator_for("shuffle", self.seed, step))
        order = order.to(images.device)
        keys = processes.gather(self.unit_keys(images[order[processes.own_rows(len(order))]]))
        return torch.empty_like(keys).index_copy_(0, order, keys)

    def unit_keys(self, images: Tensor) -> Tensor:
        """Keys of length one, in float32 or better also under autocast."""
        keys: Tensor = self.network(images)
        return F.normalize(keys.to(torch.promote_types(keys.dtype, torch.float32)), dim=1)


def batch_negatives(
    *views: Tensor, count: int | None, shared: bool, seed: int, draw: int
) -> Negatives:
    """The other instances of the batch, all of them or `count` drawn for each query.

    Args:
        views: keys of one or both views of all processes, each (N, D).
        count: K; None: all that the batch offers.
        shared: one draw for all queries.
        seed: the run's seed.
        draw: which draw this is: the step, or two for each step where there are two contrasts.
    """
    num_queries = len(views[0])
    index = torch.arange(num_queries, device=views[0].device)[processes.own_rows(num_queries)]
    pool = in_batch_negatives(*views, index=index)
    if count is None:
        return pool
    return sampled_negatives(
        pool, count, seed=seed, step=draw, index=index, num_queries=num_queries, shared=shared
    )
