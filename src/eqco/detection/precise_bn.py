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
    """Set running mean and variance of every batch norm to those of all values that it sees.

    The running averages of training lag behind weights that still move. Here the weights stand
    still: batches go through the network in training mode, and the statistics become the exact mean
    and (unbiased) variance over all values of all batches and processes, larger batches counting
    for more. Nothing else of the network changes, its mode included. `forward` puts one of the
    `batches` through the network.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]
    tracking = [Moments(layer) for layer in layers if layer.running_mean is not None]
    mode = network.training
    network.train()
    try:
        for batch in batches:
            forward(batch)
    finally:
        for moments in tracking:
            moments.close()
        network.train(mode)
    for moments in tracking:
        moments.write()


class Moments:
    """Count, sum and sum of squares of a layer's inputs until `close`, by channel, in float64.

    Sums are taken about the running mean of training, so that squares do not swamp a small
    variance.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        buffers = dict(layer.named_buffers(recurse=False))
        self.mean, self.variance = buffers["running_mean"], buffers["running_var"]
        self.tracked = buffers["num_batches_tracked"]
        self.tracked_before = self.tracked.clone()
        self.centre = self.mean.double()
        self.sums = torch.zeros(3, *self.centre.shape, dtype=torch.float64).to(self.centre.device)
        self.hook = layer.register_forward_pre_hook(self.add)

    def add(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Add the values of one batch, (N, C, ...)."""
        values = inputs[0].transpose(0, 1).flatten(1).double() - self.centre[:, None]
        count = torch.full_like(self.centre, values.shape[1])
        self.sums += torch.stack([count, values.sum(1), values.square().sum(1)])

    def close(self) -> None:
        """Track no longer; the count of training batches is as before."""
        self.hook.remove()
        self.tracked.copy_(self.tracked_before)

    def write(self) -> None:
        """Put mean and variance over all processes into the layer."""
        count, total, squares = processes.sum_over_processes(self.sums)
        if count[0] < 2:
            raise InputError(
                "the batches gave a batch norm fewer than 2 values; give it more images."
            )
        mean = total / count
        self.mean.copy_(mean + self.centre)
        self.variance.copy_((squares - count * mean.square()) / (count - 1))
