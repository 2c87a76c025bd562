"""The loss as modules: settings at construction, embeddings at the call."""

import torch
from torch import Tensor, nn

from eqco.contrast.checks import (
    check_device,
    check_finite_loss,
    check_finite_values,
    check_floating,
    check_setting,
    check_temperature,
    check_transforms,
    wants_finite_check,
)
from eqco.contrast.counting import name_empty
from eqco.contrast.in_batch import own_places
from eqco.contrast.loss import (
    OnEmpty,
    Reduction,
    Similarity,
    all_keys,
    is_small,
    loss_and_empty,
    loss_by_choice,
    loss_per_query,
    reduce_loss,
    terms,
)
from eqco.contrast.negatives import Negatives, check_ids
from eqco.contrast.small import small_loss
from eqco.contrast.streaming import Choice
from eqco.contrast.temperature import LearnableTemperature
from eqco.contrast.vectors import without_autocast
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["EqCoLoss", "NTXentLoss"]


class EqCoLoss(nn.Module):
    """`contrastive_loss` as a module: settings at construction, embeddings at the call.

    A temperature that learns is a `LearnableTemperature`, or an nn.Parameter of your own limits.

    >>> loss_fn = EqCoLoss(temperature=0.2, alpha=65536)
    >>> queries, positives = torch.randn(2, 32, 128)
    >>> loss_fn(queries, positives).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        temperature: float | nn.Parameter | LearnableTemperature = 0.2,
        alpha: float | None = None,
        margin: float | None = None,
        similarity: Similarity = "cosine",
        reduction: Reduction = "mean",
        check_finite: bool | None = None,
        on_empty: OnEmpty = "refuse",
        gather: bool = False,
    ):
        super().__init__()
        known = 1.0 if isinstance(temperature, LearnableTemperature) else temperature
        check_setting(known, alpha, margin, similarity, reduction)
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            raise InputError(
                "temperature is a tensor that no optimiser would find here. Give "
                "eqco.LearnableTemperature() or nn.Parameter(temperature) for one that learns, or "
                "a number."
            )
        # a learning temperature is registered by this assignment
        self.temperature = temperature
        self.alpha = alpha
        self.margin = margin
        self.similarity: Similarity = similarity
        self.reduction: Reduction = reduction
        self.check_finite = check_finite
        if on_empty not in ("refuse", "skip"):
            raise InputError(f"on_empty={on_empty!r}; there are 'refuse', 'skip'.")
        self.on_empty: OnEmpty = on_empty
        self.gather = gather
        self.skipped_here: Tensor | int = 0

    @property
    def skipped(self) -> int:
        """How many queries were skipped so far, since they had no negatives."""
        return int(self.skipped_here)

    def forward(
        self,
        queries: Tensor,
        positives: Tensor,
        negatives: Tensor | Negatives | None = None,
        *,
        ids: Tensor | None = None,
        key_ids: Tensor | None = None,
        log_weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of these embeddings; see `contrastive_loss` for shapes."""
        whole, empty = loss_and_empty(
            queries, positives, negatives, self.current_temperature(), self.alpha, self.margin,
            self.similarity, self.reduction, self.check_finite, ids, key_ids, log_weights,
            self.on_empty, self.gather,
        )  # fmt: skip
        self.count_skipped(empty)
        return whole

    def count_skipped(self, empty: Tensor | None) -> None:
        """Add to `skipped`, without waiting for a device."""
        if empty is not None:
            self.skipped_here = self.skipped_here + empty.sum()

    def current_temperature(self) -> float | Tensor:
        """τ as it is now."""
        if not isinstance(self.temperature, LearnableTemperature):
            return self.temperature
        learned: Tensor = self.temperature()
        return learned

    def extra_repr(self) -> str:
        """What `print` shows of the settings."""
        names = ("temperature", "alpha", "margin", "similarity", "reduction")
        # print shows a module in a line of its own
        shown = [name for name in names if not isinstance(getattr(self, name), nn.Module)]
        return ", ".join(f"{name}={getattr(self, name)}" for name in shown)


class NTXentLoss(EqCoLoss):
    """SimCLR's loss: both views are queries and keys, so each of 2N queries has 2N − 2 negatives.

    The mean over all 2N queries, as in lightly and pytorch-metric-learning. SimCLR's own code adds
    the two directions, each a mean over N: twice this loss and twice its gradient. In its place
    use 2 · loss, or twice the learning rate.

    With N = 1 there are no negatives, and the call is refused: leave out a last batch of one by
    drop_last=True of the DataLoader.

    >>> loss_fn = NTXentLoss(temperature=0.1, alpha=4096)
    >>> first, second = torch.randn(2, 32, 128)
    >>> loss_fn(first, second).shape
    torch.Size([])
    """

    def forward(  # type: ignore[override]
        self, first: Tensor, second: Tensor, *, ids: Tensor | None = None
    ) -> Tensor:
        """The loss of the embeddings of two views of the same instances, each (N, D).

        Instances of the same `ids`, (N,), are no negatives of each other.
        """
        temperature = self.current_temperature()
        check_transforms()
        for name, view in (("first", first), ("second", second)):
            check_floating(name, view)
        if first.dim() != 2 or first.shape != second.shape or first.numel() == 0:
            raise InputError(
                f"first of shape {tuple(first.shape)} and second of shape {tuple(second.shape)}; "
                f"both must be (N, D), row n of each from the same instance."
            )
        if len(first) < 2:
            raise InputError(
                f"first and second of shape {tuple(first.shape)}; N ≥ 2 is needed, since the "
                f"negatives are the other instances of the batch. Leave out a last batch of one by "
                f"DataLoader(drop_last=True), or use EqCoLoss with negatives from a queue."
            )
        check_device("second", second, first, "first")
        check_temperature(temperature, self.check_finite)
        checked = wants_finite_check(self.check_finite, first)
        if checked:
            check_finite_values({"first": first, "second": second}, self.similarity)
        own = own_places(first) if self.gather else torch.arange(len(first), device=first.device)
        with without_autocast(first):  # whose torch.cat takes no float16 on the CPU
            both = torch.cat([first, second])
            alone = not self.gather or processes.world_size() == 1
            pool = both if alone else torch.cat([all_keys(each, True) for each in (first, second)])
        num_keys, half = pool.shape[0], pool.shape[0] // 2
        partner = torch.cat([own + half, own])
        given = terms(num_keys - 2, self.alpha, self.margin, self.similarity)
        empty = None
        small = alone and is_small(num_keys, num_keys) and not isinstance(temperature, Tensor)
        if small and ids is None and not isinstance(temperature, Tensor):
            loss = small_loss(both, None, temperature, positive_at=partner[:, None], **given)
        else:
            here = torch.cat([own, own + half])
            negatives = Negatives(pool, excluded=torch.stack([here, partner], dim=1))
            others = torch.cat([second, first]) if not alone else both[partner]
            if ids is None:
                loss = loss_per_query(both, others, negatives, temperature, **given)
            else:
                ids = check_ids("ids", ids, (len(first),), first)
                everyone = processes.gather(ids) if self.gather else ids
                choice = Choice(None, negatives.excluded, ids.repeat(2), everyone.repeat(2), None)
                loss, empty = loss_by_choice(
                    both, others, negatives, temperature, choice, self.alpha, given
                )
                if checked and self.on_empty == "refuse":
                    name_empty(empty, choice.ids)
                self.count_skipped(empty)
        whole = reduce_loss(loss, self.reduction, empty, self.gather)
        if checked:
            check_finite_loss(whole, loss, self.similarity, temperature, self.margin)
        return whole
