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


class SplitBatchNorm1d(nn.BatchNorm1d):
    """Batch norm whose training statistics are those of each of `groups` sub-batches."""

    groups: int = 1

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C) or (N, C, L); in eval exactly as BatchNorm1d."""
        if not self.training:
            return super().forward(input)
        return _normalise_groups(self, input, self.groups)

    def extra_repr(self) -> str:
        """The settings of BatchNorm1d, and the number of groups."""
        return f"{super().extra_repr()}, groups={self.groups}"


class SplitBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose training statistics are those of each of `groups` sub-batches."""

    groups: int = 1

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, H, W); in eval exactly as BatchNorm2d."""
        if not self.training:
            return super().forward(input)
        return _normalise_groups(self, input, self.groups)

    def extra_repr(self) -> str:
        """The settings of BatchNorm2d, and the number of groups."""
        return f"{super().extra_repr()}, groups={self.groups}"


# what each plain layer becomes; a split one is split anew
SPLIT: dict[type[nn.Module], type[SplitBatchNorm1d] | type[SplitBatchNorm2d]] = {
    nn.BatchNorm1d: SplitBatchNorm1d,
    nn.BatchNorm2d: SplitBatchNorm2d,
    SplitBatchNorm1d: SplitBatchNorm1d,
    SplitBatchNorm2d: SplitBatchNorm2d,
}


def split_batch_norm(module: Network, groups: int) -> Network:
    """Let every batch norm of a network normalise `groups` contiguous sub-batches on their own.

    In training, each sub-batch is normalised with its own statistics, and the running statistics
    move by the mean over the groups. In eval nothing changes. Names, parameters and buffers stay,
    so that state dicts interchange with the plain network.

    Args:
        module: changed in place, like the rest of a network before its training.
        groups: number of sub-batches, 1 or more; every training batch must divide by it.

    Returns:
        The same module.

    >>> split_batch_norm(nn.BatchNorm1d(1, affine=False), groups=2)(
    ...     torch.tensor([[0.0], [2.0], [10.0], [30.0]])
    ... )
    tensor([[-1.0000], [ 1.0000], [-1.0000], [ 1.0000]])
    """
    if groups < 1:
        raise InputError(f"bn_groups={groups}; it must be 1 or more.")
    layers = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)
    }
    for name, layer in layers.items():
        if type(layer) not in SPLIT:
            raise InputError(
                f"{name or 'the module'} is a {type(layer).__name__}; only BatchNorm1d and "
                f"BatchNorm2d can be split into bn_groups={groups}. Replace it by one of these."
            )
    for layer in layers.values():
        split = SPLIT[type(layer)]
        # the class alone changes: an optimiser or a second place in the network that holds this
        # layer, its parameters or its buffers keeps holding the right one
        layer.__class__ = split
        assert isinstance(layer, SplitBatchNorm1d | SplitBatchNorm2d)
        layer.groups = groups
    return module


def _normalise_groups(norm: _BatchNorm, input: Tensor, groups: int) -> Tensor:
    """Normalise each of `groups` contiguous parts of (N, C, ...) with its own statistics.

    One call for each part, since parts are views: folding the groups into the channels would copy
    twice and lose the channels-last layout.
    """
    norm._check_input_dim(input)
    num = input.shape[0]
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
    means: Tensor | None = None
    variances: Tensor | None = None
    factor = 0.0
    if norm.running_mean is not None:
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        tracked = norm.num_batches_tracked.add_(1)
        # momentum None asks for the plain average over all batches so far
        factor = 1 / float(tracked) if norm.momentum is None else norm.momentum
        means, variances = norm.running_mean.repeat(groups, 1), norm.running_var.repeat(groups, 1)
    parts = [
        F.batch_norm(
            part,
            None if means is None else means[group],
            None if variances is None else variances[group],
            norm.weight,
            norm.bias,
            training=True,
            momentum=factor,
            eps=norm.eps,
        )
        for group, part in enumerate(input.chunk(groups))
    ]
    if norm.running_mean is not None and means is not None:
        norm.running_mean.copy_(means.mean(0))
    if norm.running_var is not None and variances is not None:
        norm.running_var.copy_(variances.mean(0))
    return torch.cat(parts)
