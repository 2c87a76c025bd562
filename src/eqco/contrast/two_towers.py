r"""Eq. 1 in both directions between two sets of vectors that pair up row by row.

Both directions share one matrix S of similarities over τ, which passes by in tiles. A first pass
sums its exponentials over rows and over columns, a second carries the gradient of both directions
through each tile at once: with g_n and h_m the log-odds of row n and column m, R_n and C_m sums,

    W_nm = e^{S_nm} (σ(g_n)/R_n + σ(h_m)/C_m) / τ,    dL/dx = W y − …,    dL/dy = Wᵀ x − …

Four products in all, and no (N, N) matrix; the usual form takes six and holds several.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

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
from eqco.contrast.counting import log_counts, name_empty
from eqco.contrast.in_batch import own_places
from eqco.contrast.loss import (
    OnEmpty,
    all_keys,
    loss_by_choice,
    loss_per_query,
    reduce_loss,
    terms,
)
from eqco.contrast.modules import EqCoLoss
from eqco.contrast.negatives import Negatives, check_ids
from eqco.contrast.streaming import (
    KEPT_BYTES,
    LARGEST_UNSHIFTED,
    WHOLE_ELEMENTS,
    Choice,
    refuse_second_derivative,
)
from eqco.contrast.temperature import LearnableTemperature
from eqco.contrast.vectors import precision, through_norm, with_lengths, without_autocast
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.theory.infonce import softplus

__all__ = ["TwoTowerLoss"]

# Rows and columns of a tile: 1 MiB of float32, which stays in the cache of one core.
TILE_ROWS, TILE_COLUMNS = 512, 512


class TwoTowerLoss(EqCoLoss):
    """The loss of two encoders whose outputs pair up: images and texts, questions and answers.

    The mean of both directions: each row of `first` against all of `second`, and each of `second`
    against all of `first`. With alpha=None it is CLIP's loss. Of the (N, N)
    similarities at most 64 MiB are held, so that memory grows with N and not with its square.

    Args:
        temperature: τ; None: learns from 0.07 on as in CLIP, with limits (`LearnableTemperature`).
        alpha: the number of negatives imitated in each direction; None: plain; math.inf: decoupled.
        check_finite: as in `contrastive_loss`.
        on_empty: what to do with a row that `ids` leave without negatives: "refuse" or "skip".
        gather: negatives from all processes, as in `contrastive_loss`.

    >>> loss_fn = TwoTowerLoss(alpha=4096)
    >>> images, texts = torch.randn(2, 8, 64)
    >>> ids = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0])  # the first and the last text are the same
    >>> loss_fn(images, texts, ids=ids).shape
    torch.Size([])
    """

    def __init__(
        self,
        *,
        temperature: float | nn.Parameter | LearnableTemperature | None = None,
        alpha: float | None = None,
        check_finite: bool | None = None,
        on_empty: OnEmpty = "refuse",
        gather: bool = False,
    ):
        super().__init__(
            temperature=LearnableTemperature() if temperature is None else temperature,
            alpha=alpha,
            check_finite=check_finite,
            on_empty=on_empty,
            gather=gather,
        )

    def forward(  # type: ignore[override]
        self,
        first: Tensor,
        second: Tensor,
        *,
        ids: Tensor | None = None,
        temperature: float | Tensor | None = None,
    ) -> Tensor:
        """The loss of embeddings (N, D) each, row n of one belonging to row n of the other.

        Rows of the same `ids`, (N,), are no negatives of each other, in either direction.
        A `temperature` of this call takes the place of the module's, where a model has its own.
        """
        if temperature is None:
            temperature = self.current_temperature()
        check_setting(temperature, self.alpha, None, "cosine", "mean")
        check_transforms()
        check_towers(first, second)
        check_temperature(temperature, self.check_finite)
        checked = wants_finite_check(self.check_finite, first)
        if checked:
            check_finite_values({"first": first, "second": second}, "cosine")
        if ids is not None:
            ids = check_ids("ids", ids, (len(first),), first)
        alone = not self.gather or processes.world_size() == 1
        if alone and not torch.compiler.is_compiling():
            losses, empty = self.in_tiles(first, second, temperature, ids)
        else:
            losses, empty = self.in_turn(first, second, temperature, ids)
        if empty is not None:
            if checked and self.on_empty == "refuse":
                name_empty(empty, ids)
            self.count_skipped(empty)
        each = [reduce_loss(loss, "mean", empty, self.gather) for loss in losses]
        whole = (each[0] + each[1]) / 2
        if checked:
            check_finite_loss(whole, torch.cat(list(losses)), "cosine", temperature, None)
        return whole

    def in_tiles(
        self, first: Tensor, second: Tensor, temperature: float | Tensor, ids: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Loss of each row in both directions, and which have no negatives; in one process."""
        size = len(first)
        if size < 2:
            raise InputError(
                f"first and second of shape {tuple(first.shape)}; N ≥ 2 is needed, since the "
                f"negatives are the other rows. Leave out a last batch of one by "
                f"DataLoader(drop_last=True)."
            )
        given = terms(size - 1, self.alpha, None, "cosine")
        offset, empty = given["offset"], None
        if ids is not None:
            own = torch.arange(size, device=first.device)[:, None]
            log_k = log_counts(size, size, Choice(None, own, ids, ids), precision(first, second))
            empty = log_k == -torch.inf
            if self.alpha is not None and not given["decoupled"]:
                offset = (math.log(self.alpha) - log_k.masked_fill(empty, 0.0))[:, None]
        towers = Towers.apply(first, second, temperature, offset, ids, given["decoupled"])
        if empty is not None:
            towers = towers.masked_fill(empty, 0.0)
        return (towers[0], towers[1]), empty

    def in_turn(
        self, first: Tensor, second: Tensor, temperature: float | Tensor, ids: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """The same by one pass over the keys for each direction, with those of all processes."""
        here = torch.arange(len(first), device=first.device)
        own = (own_places(first) if self.gather else here)[:, None]
        everyone = processes.gather(ids) if ids is not None and self.gather else ids
        losses, empty = [], None
        for queries, keys in ((first, second), (second, first)):
            negatives = Negatives(all_keys(keys, self.gather), excluded=own)
            given = terms(negatives.num_negatives, self.alpha, None, "cosine")
            share = KEPT_BYTES // 2  # both are alive until backward
            if ids is None:
                loss = loss_per_query(
                    queries, keys, negatives, temperature, **given, kept_bytes=share
                )
            else:
                choice = Choice(None, own, ids, everyone)
                loss, empty = loss_by_choice(
                    queries, keys, negatives, temperature, choice, self.alpha, given, share
                )
            losses.append(loss)
        return (losses[0], losses[1]), empty


def check_towers(first: Tensor, second: Tensor) -> None:
    """Refuse what is not one row of each for every pair."""
    for name, tower in (("first", first), ("second", second)):
        check_floating(name, tower)
    if first.dim() != 2 or first.shape != second.shape or first.numel() == 0:
        raise InputError(
            f"first of shape {tuple(first.shape)} and second of shape {tuple(second.shape)}; both "
            f"must be (N, D), row n of one belonging to row n of the other."
        )
    check_device("second", second, first, "first")


class Tile(NamedTuple):
    """A part of the matrix: its logits (−∞ for what is no negative), rows and columns."""

    logits: Tensor
    rows: slice
    columns: slice


def tiles(x: Tensor, y: Tensor, temperature: float | Tensor, ids: Tensor | None) -> Iterator[Tile]:
    """x·y/τ in tiles that use the same memory in turn; the pairs themselves are no negatives."""
    size = len(x)
    whole = size * size <= WHOLE_ELEMENTS
    height, width = (size, size) if whole else (min(size, TILE_ROWS), min(size, TILE_COLUMNS))
    scaled_x = x / temperature
    memory = x.new_empty(height * width)
    for top in range(0, size, height):
        rows = slice(top, min(size, top + height))
        some = scaled_x[rows]
        for left in range(0, size, width):
            columns = slice(left, min(size, left + width))
            shape = len(some), columns.stop - left
            part = memory[: shape[0] * shape[1]].view(shape)
            torch.mm(some, y[columns].t(), out=part)
            if ids is not None:
                part.masked_fill_(ids[rows, None] == ids[columns], -torch.inf)
            begin, end = max(top, left), min(rows.stop, columns.stop)
            if begin < end:
                here = slice(begin - top, end - top), slice(begin - left, end - left)
                part[here].fill_diagonal_(-torch.inf)
            yield Tile(part, rows, columns)


class Towers(torch.autograd.Function):
    """Both directions of the loss, (2, N), and the gradient by a second pass over the tiles."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        temperature: float | Tensor,
        offset: float | Tensor,
        ids: Tensor | None,
        decoupled: bool,
    ) -> Tensor:
        """The sums over rows and columns, and the loss from them."""
        dtype = precision(first, second)
        with without_autocast(first):
            x, x_norm = with_lengths(first, dtype, unit=True)
            y, y_norm = with_lengths(second, dtype, unit=True)
            tau = temperature
            if isinstance(tau, Tensor):
                tau = tau.detach().reshape(()).to(torch.promote_types(tau.dtype, dtype)).to(dtype)
            shifted = not fits(tau)
            over_rows, over_columns, kept = tile_sums(x, y, tau, ids, shifted)
            positive = (x * y).sum(dim=1, keepdim=True) / tau
            odds = torch.stack([over_rows - positive, over_columns - positive]) + offset
            loss = odds if decoupled else softplus(odds)
            scale = torch.ones_like(odds) if decoupled else torch.sigmoid(odds)
        ctx.save_for_backward(x, x_norm, y, y_norm, over_rows, over_columns, scale, ids, kept,
                              tau if isinstance(tau, Tensor) else None)  # fmt: skip
        ctx.known = None if isinstance(tau, Tensor) else tau
        ctx.shifted = shifted
        learned = temperature if isinstance(temperature, Tensor) else None
        ctx.types = first.dtype, second.dtype, None if learned is None else learned.dtype
        ctx.shape = None if learned is None else learned.shape
        return loss.squeeze(2)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """W of each tile once, for both directions and both towers."""
        refuse_second_derivative()
        x, x_norm, y, y_norm, over_rows, over_columns, scale, ids, kept, tau = ctx.saved_tensors
        tau = ctx.known if tau is None else tau
        want_first, want_second, want_temperature = ctx.needs_input_grad[:3]
        grad_first = grad_second = grad_temperature = None
        with without_autocast(upstream):
            by_row, by_column = scale * upstream[:, :, None] / tau
            to_x = -(by_row + by_column) * y
            to_y = -(by_row + by_column) * x
            tables = [Tile(kept, slice(None), slice(None))] if kept is not None else None
            for part, rows, columns in tables or tiles(x, y, tau, ids):
                weights = tile_weights(
                    part, over_rows[rows], over_columns[columns], by_row[rows], by_column[columns],
                    kept is not None, ctx.shifted,
                )  # fmt: skip
                if want_first or want_temperature:
                    to_x[rows].addmm_(weights, y[columns])
                if want_second:
                    to_y[columns].addmm_(weights.t(), x[rows])
            if want_temperature:
                d_temperature = -(x * to_x).sum() / tau
                grad_temperature = d_temperature.to(ctx.types[2]).reshape(ctx.shape)
            if want_first:
                grad_first = through_norm(to_x, x, x_norm).to(ctx.types[0])
            if want_second:
                grad_second = through_norm(to_y, y, y_norm).to(ctx.types[1])
        return grad_first, grad_second, grad_temperature, None, None, None


def fits(temperature: float | Tensor) -> bool:
    """Whether exp of a cosine over τ fits its type; a τ on an accelerator is not waited for."""
    if isinstance(temperature, Tensor) and temperature.device.type != "cpu":
        return False
    return bool(1 / temperature <= LARGEST_UNSHIFTED)


def tile_sums(
    x: Tensor, y: Tensor, temperature: float | Tensor, ids: Tensor | None, shifted: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """log Σ exp over each row and over each column, (N, 1); and exponentials (logits where they
    are shifted) where there is one tile.
    """
    size, lowest = len(x), torch.finfo(x.dtype).min
    totals = x.new_zeros(2, size)
    tops = x.new_full((2, size), lowest)
    number = 0
    for part, rows, columns in tiles(x, y, temperature, ids):
        number += 1
        if not shifted:
            part.exp_()
            totals[0, rows] += part.sum(dim=1)
            totals[1, columns] += part.sum(dim=0)
            continue
        for direction, (place, dim) in enumerate(((rows, 1), (columns, 0))):
            before = tops[direction, place]
            top = torch.maximum(before, part.amax(dim=dim))
            more = (part - top.unsqueeze(dim)).exp_().sum(dim=dim)
            total = totals[direction, place]
            total.mul_((before - top).exp_()).add_(more)
            tops[direction, place] = top
    if shifted:
        logs = totals.clamp_min_(torch.finfo(x.dtype).tiny).log_().add_(tops)
    else:
        logs = totals.clamp_min_(torch.finfo(x.dtype).tiny).log_()
    return logs[0, :, None], logs[1, :, None], part if number == 1 else None


def tile_weights(
    part: Tensor,
    over_rows: Tensor,
    over_columns: Tensor,
    by_row: Tensor,
    by_column: Tensor,
    are_exponentials: bool,
    shifted: bool,
) -> Tensor:
    """W of a tile: softmax over rows times its share, and softmax over columns times its own."""
    if shifted:
        from_columns = (part - over_columns.t()).exp_().mul_(by_column.t())
        return (part - over_rows).exp_().mul_(by_row).add_(from_columns)
    if not are_exponentials:
        part.exp_()
    share = by_row * (-over_rows).exp() + (by_column * (-over_columns).exp()).t()
    return share.mul_(part)
