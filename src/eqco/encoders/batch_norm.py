"""Batch norm with the statistics of sub-batches: the effect of several devices, on one.

Batch statistics let a network recognise which images share a batch. MoCo breaks this by shuffling
the keys over devices, each of which normalises its own part; here the parts are contiguous
sub-batches of one batch.
"""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from eqco.runtime.errors import InputError

__all__ = ["SplitBatchNorm1d", "SplitBatchNorm2d", "split_batch_norm"]

Network = TypeVar("Network", bound=nn.Module)


class _SplitBatchNorm(_BatchNorm):
    groups: int = 1

    def forward(self, input: Tensor) -> Tensor:
        return _normalise_groups(self, input) if self.training else super().forward(input)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, groups={self.groups}"


class SplitBatchNorm1d(_SplitBatchNorm, nn.BatchNorm1d):
    """Batch norm of (N, C) or (N, C, L) with the statistics of each of `groups` sub-batches."""


class SplitBatchNorm2d(_SplitBatchNorm, nn.BatchNorm2d):
    """Batch norm of (N, C, H, W) with the statistics of each of `groups` sub-batches."""


def split_batch_norm(module: Network, groups: int) -> Network:
    """Let every batch norm of a network normalise `groups` contiguous sub-batches on their own.

    In training, each sub-batch is normalised with its own statistics, and the running statistics
    move by the mean over the groups. In eval nothing changes. Names, parameters and buffers stay,
    so that state dicts interchange with the plain network. The module is changed in place and
    returned; every training batch must divide by `groups`.

    >>> split_batch_norm(nn.BatchNorm1d(1, affine=False), groups=2)(
    ...     torch.tensor([[0.0], [2.0], [10.0], [30.0]])
    ... )
    tensor([[-1.0000], [ 1.0000], [-1.0000], [ 1.0000]])
    """
    if groups < 1:
        raise InputError(f"bn_groups={groups}; it must be 1 or more.")
    for layer in convert(
        module, SplitBatchNorm1d, SplitBatchNorm2d, f"split into bn_groups={groups}"
    ):
        assert isinstance(layer, _SplitBatchNorm)
        layer.groups = groups
    return module


def convert(
    module: nn.Module,
    one: type[nn.BatchNorm1d],
    two: type[nn.BatchNorm2d],
    purpose: str,
) -> list[_BatchNorm]:
    """Make every batch norm of a network one of these two classes; refuses any other kind.

    The class alone changes: an optimiser or a second place in the network that holds a layer, its
    parameters or its buffers keeps holding the right one.
    """
    kinds = {nn.BatchNorm1d: one, nn.BatchNorm2d: two, one: one, two: two}
    layers = {n: layer for n, layer in module.named_modules() if isinstance(layer, _BatchNorm)}
    for name, layer in layers.items():
        if type(layer) not in kinds:
            raise InputError(
                f"{name or 'the module'} is a {type(layer).__name__}; only BatchNorm1d and "
                f"BatchNorm2d can be {purpose}. Replace it by one of these."
            )
    for layer in layers.values():
        layer.__class__ = kinds[type(layer)]
    return list(layers.values())


def count_batch(norm: _BatchNorm) -> float:
    """Count one more training batch; returns its share in the running statistics."""
    assert norm.num_batches_tracked is not None
    tracked = norm.num_batches_tracked.add_(1)
    # momentum None asks for the plain average over all batches so far
    return 1 / float(tracked) if norm.momentum is None else norm.momentum


def _normalise_groups(norm: _SplitBatchNorm, input: Tensor) -> Tensor:
    """Normalise each of the contiguous parts of (N, C, ...) with its own statistics.

    One call for each part, since parts are views: folding the groups into the channels would copy
    twice and lose the channels-last layout.
    """
    norm._check_input_dim(input)
    num, groups = len(input), norm.groups
    if num % groups:
        raise InputError(
            f"a batch of {num} images does not divide into bn_groups={groups} equal parts. "
            f"Choose a batch size that is a multiple of {groups}, or other bn_groups."
        )
    if input[:, 0].numel() == groups:
        raise InputError(
            f"bn_groups={groups} leaves one value per channel in each part of a batch of {num}, "
            f"and one value has no variance. Choose a larger batch, or fewer bn_groups."
        )
    running = [each for each in (norm.running_mean, norm.running_var) if each is not None]
    factor = count_batch(norm) if running else 0.0
    moved = [each.repeat(groups, 1) for each in running]
    parts = []
    for group, part in enumerate(input.chunk(groups)):
        mean, variance = (each[group] for each in moved) if moved else (None, None)
        parts.append(
            F.batch_norm(part, mean, variance, norm.weight, norm.bias, True, factor, norm.eps)
        )
    for statistic, own in zip(running, moved, strict=True):
        statistic.copy_(own.mean(0))
    return torch.cat(parts)
