r"""Eq. 1 with a remembered normaliser in place of that of the batch.

Few negatives bias the weights of Eq. 13, not only their scale: the mean of e^{s/τ} over four keys
is not that over all. With u_n, a running mean of it for each instance (SogCLR, Yuan et al., 2022),

    key k weighs (α/K) e^{s_k/τ} / (e^{s_0/τ} + α u_n),   the positive α u_n / (e^{s_0/τ} + α u_n)

which is EqCo where u_n is the mean over the K keys at hand, and SogCLR as α → ∞.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eqco.contrast.checks import check_device, check_setting, wants_finite_check
from eqco.contrast.loss import OnEmpty, Similarity, loss_and_empty, reduce_loss
from eqco.contrast.memory_bank import last_copies
from eqco.contrast.negatives import Contrast, Negatives
from eqco.contrast.streaming import KEPT_BYTES
from eqco.contrast.temperature import LearnableTemperature
from eqco.contrast.vectors import precision, with_lengths, without_autocast
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.theory.infonce import softplus

__all__ = ["RememberingObjective", "RunningNormaliser"]

# of an image that was not met yet: a finite number, since a checkpoint holds no other
NEVER = torch.finfo(torch.float32).min


class RunningNormaliser(nn.Module):
    """The loss with normalisers u_n that remember: from an instance's own history, from keys of a
    queue, or both. Without either it is `EqCoLoss`.

    While training, each call updates the history of the instances it is given, as batch norm
    does its statistics, and uses the updated one; in eval mode nothing is stored. The first visit
    takes the batch's value. History is kept as logarithms, is in the state dict, and is that of all
    processes in each of them.

    Args:
        num_instances: how many instances the data set has; their places are the `index` of a call.
        temperature: τ, a number or a `LearnableTemperature`.
        alpha: the number of negatives imitated; None: K; math.inf: SogCLR.
        decay: how much of the old u_n is kept at each visit, 0 ≤ decay < 1.
        schedule: "constant", or "cosine": decay rises from 0 over the first `total_steps` calls.
        total_steps: only for "cosine".
        on_empty: what to do with a query that `ids` leave without negatives: "refuse" it, or "skip"
            it, with its history as it was; `skipped` counts them.
        gather: negatives from all processes, as in `contrastive_loss`.

    >>> loss_fn = RunningNormaliser(5000, temperature=0.07, alpha=65536, decay=0.5)
    >>> queries, positives = torch.randn(2, 8, 64)
    >>> index = torch.arange(100, 108)  # which of the 5000 these are
    >>> loss_fn(queries, positives, index=index).shape
    torch.Size([])
    """

    log_mean: Tensor
    kept_bytes = KEPT_BYTES  # until backward; several normalisers of a step share them

    def __init__(
        self,
        num_instances: int,
        *,
        temperature: float | LearnableTemperature = 0.2,
        alpha: float | None = None,
        decay: float = 0.9,
        schedule: Literal["constant", "cosine"] = "constant",
        total_steps: int | None = None,
        on_empty: OnEmpty = "refuse",
        gather: bool = False,
    ):
        super().__init__()
        known = 1.0 if isinstance(temperature, LearnableTemperature) else temperature
        check_setting(known, alpha, None, "cosine", "mean")
        if num_instances < 1:
            raise InputError(f"num_instances={num_instances}; it must be at least 1.")
        if not 0 <= decay < 1:
            raise InputError(
                f"decay={decay}; it must be at least 0 (no memory) and less than 1 (no news)."
            )
        if schedule not in ("constant", "cosine"):
            raise InputError(f"schedule={schedule!r}; there are 'constant', 'cosine'.")
        if (schedule == "cosine") != (total_steps is not None and total_steps > 0):
            raise InputError(
                f"schedule={schedule!r} with total_steps={total_steps}; 'cosine' needs how many "
                f"calls decay takes to rise, and 'constant' takes none."
            )
        self.temperature = temperature
        self.alpha, self.decay, self.schedule = alpha, decay, schedule
        if on_empty not in ("refuse", "skip"):
            raise InputError(f"on_empty={on_empty!r}; there are 'refuse', 'skip'.")
        self.on_empty: OnEmpty = on_empty
        self.total_steps, self.gather = total_steps, gather
        self.skipped_here: Tensor | int = 0
        self.steps = 0  # a number, so that reading it never waits for a device
        # log u_n
        self.register_buffer("log_mean", torch.full((num_instances,), NEVER))

    @property
    def skipped(self) -> int:
        """How many queries were skipped so far, since they had no negatives."""
        return int(self.skipped_here)

    def current_decay(self) -> float:
        """How much of the old value the next call keeps."""
        if self.total_steps is None:
            return self.decay
        done = min(1.0, self.steps / self.total_steps)
        return self.decay * (1 - math.cos(math.pi * done)) / 2

    def forward(
        self,
        queries: Tensor,
        positives: Tensor,
        negatives: Tensor | Negatives | None = None,
        *,
        index: Tensor | None = None,
        memory: Tensor | Negatives | None = None,
        ids: Tensor | None = None,
        key_ids: Tensor | None = None,
    ) -> Tensor:
        """The mean loss; negatives as in `contrastive_loss`.

        Args:
            queries: (N, D).
            positives: (N, D).
            negatives: those that get a weight and a gradient.
            index: the instance of each query, (N,), whose history enters u_n. Of one that comes
                twice, as in place of an image that cannot be read, the last is remembered.
            memory: keys that enter u_n alone, without gradient: queue.negatives().
            ids: what each query is an instance of, (N,): a key of the same id enters neither the
                loss nor u_n. A memory must carry its own, as that of a `KeyQueue` with ids does.
            key_ids: those of the negatives, as in `contrastive_loss`.
        """
        temperature = self.temperature
        tau = temperature() if isinstance(temperature, LearnableTemperature) else temperature
        # log Σ e^{s_k/τ} − s_0/τ, with its gradient
        gap, empty = loss_and_empty(
            queries, positives, negatives, tau, math.inf, None, "cosine", "none", None,
            ids, key_ids, None, self.on_empty, self.gather, self.kept_bytes,
        )  # fmt: skip
        with without_autocast(queries):
            dtype = precision(queries, positives)
            pair = [with_lengths(each, dtype, unit=True)[0] for each in (queries, positives)]
            own = (pair[0] * pair[1]).sum(dim=1) / tau
            with torch.no_grad():
                log_count = self.log_count(gap, negatives, ids, key_ids, self.gather)
                log_sum, log_total = gap + own, log_count
                if memory is not None:
                    beside, log_held = self.of_memory(queries, positives, memory, tau, ids)
                    log_sum = torch.logaddexp(log_sum, beside + own)
                    log_total = torch.logaddexp(log_total, log_held)
                log_mean = log_sum - log_total
                if index is not None:
                    places = self.check_index(index, queries)
                    log_mean = self.remember(log_mean, places, empty)
                log_batch_mean = gap + own - log_count
                # α u_n / e^{s_0/τ}
                odds = log_mean - own
                if self.alpha == math.inf:
                    missed, value = torch.ones_like(odds), odds + log_count
                else:
                    odds = odds + (log_count if self.alpha is None else math.log(self.alpha))
                    missed, value = torch.sigmoid(odds), softplus(odds)
                on_keys = missed * (log_batch_mean - log_mean).exp()
            # its gradient is on_keys · d log Σ e^{s_k/τ} − missed · d s_0/τ
            carrier = on_keys * gap + (on_keys - missed) * own
            loss = value + (carrier - carrier.detach())
            if empty is not None:
                loss = loss.masked_fill(empty, 0.0)
                self.skipped_here = self.skipped_here + empty.sum()
            return reduce_loss(loss, "mean", empty, self.gather)

    def of_memory(
        self,
        queries: Tensor,
        positives: Tensor,
        memory: Tensor | Negatives,
        tau: float | Tensor,
        ids: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """log Σ e^{s/τ} − s_0/τ over the keys of a memory and the log of their number, (N,) each;
        −∞ where all of them carry the query's id.
        """
        held = memory if isinstance(memory, Negatives) else Negatives(memory)
        if ids is not None and held.ids is None:
            raise InputError(
                "ids were given with a memory that has none. Fill a queue made with with_ids=True, "
                "or give Negatives(keys, ids=…)."
            )
        beside, empty = loss_and_empty(
            queries, positives, held, tau, math.inf, None, "cosine", "none", None,
            ids, None, None, "skip", False,
        )  # fmt: skip
        log_held = self.log_count(beside, held, ids, None, False)
        if empty is not None:
            beside, log_held = (each.masked_fill(empty, -torch.inf) for each in (beside, log_held))
        return beside, log_held

    def log_count(
        self,
        like: Tensor,
        negatives: Tensor | Negatives | None,
        ids: Tensor | None,
        key_ids: Tensor | None,
        gather: bool,
    ) -> Tensor:
        """log K of each query, (N,); 0 for one that has no negatives."""
        if ids is None:
            return torch.full_like(like, math.log(self.count(like, negatives)))
        # vectors of zero: log Σ e^0 counts what is left
        nothing = like.new_zeros(len(like), 1)
        keys = negatives
        if isinstance(keys, Negatives):
            keys = replace(keys, keys=like.new_zeros(len(keys.keys), 1))
        elif keys is not None:
            keys = like.new_zeros(*keys.shape[:-1], 1)
        found, _ = loss_and_empty(
            nothing, nothing, keys, 1.0, math.inf, None, "dot", "none", None,
            ids, key_ids, None, "skip", gather,
        )  # fmt: skip
        return found

    def count(self, queries: Tensor, negatives: Tensor | Negatives | None) -> int:
        """K of each query."""
        others = processes.world_size() if self.gather else 1
        if negatives is None:
            return len(queries) * others - 1
        if isinstance(negatives, Negatives):
            return negatives.num_negatives
        return len(negatives) * others if negatives.dim() == 2 else negatives.shape[1]

    def check_index(self, index: Tensor, queries: Tensor) -> Tensor:
        """The place of each query's history; what is none is refused."""
        size, limit = len(queries), len(self.log_mean)
        if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
            raise InputError(
                f"index={index!r}; it must be a tensor ({size},) of whole numbers: the place of "
                f"each query's instance in the data set."
            )
        if tuple(index.shape) != (size,):
            raise InputError(
                f"index of shape {tuple(index.shape)}; it must be ({size},): one for each query."
            )
        check_device("index", index, queries)
        if torch.finfo(self.log_mean.dtype).eps > 1e-4:
            raise InputError(
                f"the history log_mean is {self.log_mean.dtype}, which rounds the changes of a "
                f"visit away. Keep it in float32 by loss_fn.float(); queries may be of any type."
            )
        if wants_finite_check(None, queries):
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= limit:
                raise InputError(
                    f"index holds {low} to {high}, but num_instances={limit} have the numbers 0 to "
                    f"{limit - 1}."
                )
        return index.long()

    @torch.no_grad()
    def remember(self, log_mean: Tensor, index: Tensor, empty: Tensor | None) -> Tensor:
        """Mix the new means into the old ones; stores them while training, but for queries that
        have no negatives.
        """
        old = self.log_mean[index].to(log_mean)
        decay = self.current_decay()
        mixed = log_mean
        if decay > 0:
            kept = torch.logaddexp(old + math.log(decay), log_mean + math.log1p(-decay))
            mixed = torch.where(old <= NEVER, log_mean, kept)
        if self.training:
            here = (index, mixed) if empty is None else (index[~empty], mixed[~empty])
            places, news = (processes.gather_uneven(each) for each in here)
            self.log_mean[places] = news[last_copies(places)].to(self.log_mean)
            self.steps += 1
        return mixed

    def get_extra_state(self) -> Tensor:
        """The number of calls, beside the history."""
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Any) -> None:
        """Go on counting calls."""
        self.steps = int(state)

    def extra_repr(self) -> str:
        """What `print` shows of the settings."""
        shown = {"num_instances": len(self.log_mean), "alpha": self.alpha, "decay": self.decay}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class RememberingObjective(nn.Module):
    """`Objective` with a `RunningNormaliser` for each of a step's contrasts.

    Args:
        num_instances: of the data set; 1 where only a queue is remembered.
        num_contrasts: how many contrasts a step has.
        temperature: τ.
        alpha: as in `Objective`.
        source: "instance": the history of each instance; "queue": keys beside the negatives.
        decay: how much of the history each visit keeps.

    >>> queries, positives = torch.randn(2, 4, 8)
    >>> given = Contrast(queries, positives, Negatives(torch.randn(6, 8)), index=torch.arange(4))
    >>> RememberingObjective(100, 1, temperature=0.2, alpha=64)([given]).shape
    torch.Size([])
    """

    similarity: Similarity = "cosine"

    def __init__(
        self,
        num_instances: int,
        num_contrasts: int,
        *,
        temperature: float,
        alpha: float | None = None,
        source: Literal["instance", "queue"] = "instance",
        decay: float = 0.9,
    ):
        super().__init__()
        self.temperature, self.alpha, self.source = temperature, alpha, source
        normalisers = [
            RunningNormaliser(num_instances, temperature=temperature, alpha=alpha, decay=decay)
            for _ in range(num_contrasts)
        ]
        for each in normalisers:
            each.kept_bytes = KEPT_BYTES // num_contrasts
        self.normalisers = nn.ModuleList(normalisers)

    def forward(self, contrasts: Sequence[Contrast]) -> Tensor:
        """Weighted sum of the mean losses."""
        losses = [
            contrast.weight
            * normaliser(
                contrast.queries,
                contrast.positives,
                contrast.negatives,
                index=contrast.index if self.source == "instance" else None,
                memory=contrast.memory,
            )
            for normaliser, contrast in zip(self.normalisers, contrasts, strict=True)
        ]
        return torch.stack(losses).sum()
