"""Batch-norm statistics of the trained network, in place of averages over its training."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["set_precise_statistics"]


@torch.no_grad()
def set_precise_statistics(
    network: nn.Module, batches: Iterable[Any], forward: Callable[[Any], Any]
) -> None:
    """Set running mean and variance of every batch norm to those of all values that it meets.

    The running averages of training lag behind weights that still move. Here the weights stand
    still: batches go through the network in training mode, and the statistics become the exact mean
    and (unbiased) variance over all values of all batches and processes, larger batches counting
    for more. Nothing else of the network changes, its mode included.

    Args:
        network: with batch norms.
        batches: what to look at; at least one.
        forward: puts a batch through the network.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]
    watched = [Moments(layer) for layer in layers if layer.running_mean is not None]
    mode = network.training
    network.train()
    try:
        for batch in batches:
            forward(batch)
    finally:
        for moments in watched:
            moments.close()
        network.train(mode)
    for moments in watched:
        moments.write()


class Moments:
    """Count, sum and sum of squares of the values that a layer meets, by channel, in float64.

    Sums are taken about the running mean of training, so that squares do not swamp a small
    variance.

    Args:
        layer: watched until `close`; it has running statistics.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        mean, variance, tracked = layer.running_mean, layer.running_var, layer.num_batches_tracked
        assert mean is not None
        assert variance is not None
        assert tracked is not None
        self.mean, self.variance, self.tracked = mean, variance, tracked
        self.before = tracked.clone()
        self.centre = mean.double()
        self.count = torch.zeros(1, dtype=torch.float64, device=mean.device)
        self.sum, self.squares = torch.zeros_like(self.centre), torch.zeros_like(self.centre)
        self.watch = layer.register_forward_pre_hook(self.look)

    def look(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Add the values of one batch, (N, C, ...)."""
        values = inputs[0].transpose(0, 1).flatten(1).double() - self.centre[:, None]
        self.count += values.shape[1]
        self.sum += values.sum(1)
        self.squares += values.square().sum(1)

    def close(self) -> None:
        """Watch no longer; the count of training batches is as before."""
        self.watch.remove()
        self.tracked.copy_(self.before)

    def write(self) -> None:
        """Put mean and variance over all processes into the layer."""
        whole = torch.cat([self.count, self.sum, self.squares])
        whole = processes.mean_over_processes(whole) * processes.world_size()
        count, (total, squares) = whole[0], whole[1:].chunk(2)
        if count < 2:
            raise InputError(
                "the batches showed a batch norm fewer than 2 values; give it more images."
            )
        mean = total / count
        self.mean.copy_(mean + self.centre)
        self.variance.copy_((squares - count * mean.square()) / (count - 1))
