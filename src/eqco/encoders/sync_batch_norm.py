"""Batch norm with one statistic over the batches of all processes (Sync BN).

torch's own runs on GPUs only; here is the same on the CPU, so that what will run on GPUs can be
tried, tested and compared with one process anywhere.
"""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from eqco.encoders.batch_norm import convert, count_batch
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["SyncBatchNorm1d", "SyncBatchNorm2d", "average_running_statistics", "sync_batch_norm"]

Network = TypeVar("Network", bound=nn.Module)


class _SyncBatchNorm(_BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        return _normalise_jointly(self, input) if self.training else super().forward(input)


class SyncBatchNorm1d(_SyncBatchNorm, nn.BatchNorm1d):
    """Batch norm of (N, C) or (N, C, L) with the statistics of all processes' batches."""


class SyncBatchNorm2d(_SyncBatchNorm, nn.BatchNorm2d):
    """Batch norm of (N, C, H, W) with the statistics of all processes' batches."""


def sync_batch_norm(module: Network, device: torch.device | str = "cpu") -> Network:
    """Let every batch norm of a network take its statistics over the batches of all processes.

    Names, parameters and buffers stay, so that state dicts interchange with the plain network. The
    module is changed and returned: on a GPU it becomes torch's own SyncBatchNorm.
    """
    if torch.device(device).type == "cuda":
        converted: Network = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted
    convert(module, SyncBatchNorm1d, SyncBatchNorm2d, "synchronised over processes")
    return module


def average_running_statistics(module: nn.Module) -> None:
    """Give all processes the mean of their running statistics.

    These move linearly in the batches' statistics, so that the mean is what one process with as
    many groups (`split_batch_norm`) would hold; where they are synchronised nothing changes.
    """
    if processes.world_size() == 1:
        return
    running = [
        statistic
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
        for statistic in (layer.running_mean, layer.running_var)
        if statistic is not None
    ]
    if not running:
        return
    means = processes.mean_over_processes(torch.cat(running)).split([len(each) for each in running])
    for statistic, mean in zip(running, means, strict=True):
        statistic.copy_(mean)


def _normalise_jointly(norm: _BatchNorm, input: Tensor) -> Tensor:
    """Normalise (N, C, ...) with the statistics of all processes, and move the running ones."""
    norm._check_input_dim(input)
    mean, variance, count = joint_statistics(input.detach())
    if count == 1:
        raise InputError(
            "batch norm over processes got one value per channel in all, which has no variance. "
            "Choose a larger batch."
        )
    if norm.running_mean is not None:
        assert norm.running_var is not None
        factor = count_batch(norm)
        norm.running_mean.lerp_(mean.to(norm.running_mean), factor)
        norm.running_var.lerp_((variance * count / (count - 1)).to(norm.running_var), factor)
    normalised: Tensor = _Normalise.apply(
        input, norm.weight, norm.bias, mean, variance, count, norm.eps
    )
    return normalised


def joint_statistics(input: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean and biased variance of each channel over all processes, and the values in each.

    The processes' means and variances are combined, not sums of squares, which would cancel.
    """
    # running statistics that are thrown away: their type makes those of half precision exact,
    # without a copy of the input
    dtype = torch.promote_types(input.dtype, torch.float32)
    unused = input.new_zeros(2, input.shape[1], dtype=dtype)
    mean, variance = torch.batch_norm_update_stats(input, unused[0], unused[1], 0.0)
    count = input[:, 0].numel()
    own = torch.cat([mean, variance, mean.new_tensor([count])])
    rows = processes.gather(own[None])
    total = int(rows[:, -1].sum())
    weights = rows[:, -1:] / total
    # the means of all means and of all variances at once; then the spread of the means is added.
    # Sums, not a matrix product: that would be in half precision under autocast
    joint, spread = (weights * rows[:, :-1]).sum(dim=0).chunk(2)
    if len(rows) > 1:
        spread = spread + (weights * (rows[:, : len(mean)] - joint).square_()).sum(dim=0)
    return joint, spread, total


class _Normalise(torch.autograd.Function):
    r"""y = w·x̂ + b with x̂ = (x − μ)/σ, where μ and σ are functions of all processes' x.

    .. math:: dx = \frac{w}{\sigma} \left(dy - \overline{dy} - \hat x\,\overline{\hat x\,dy}\right)

    with dx = dL/dx, dy = dL/dy and means over all processes; L is the sum of their losses.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: int,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(input, weight, mean, variance)
        ctx.count, ctx.eps = count, eps
        return F.batch_norm(input, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, mean, variance = ctx.saved_tensors
        # half precision beside the statistics' float32: addcmul_ would first make copies of both
        mixed = gradients[0].dtype != variance.dtype
        # of this process: w·dL/dy/σ where it is wanted, Σ x̂·dL/dy and Σ dL/dy
        direct, weight_gradient, bias_gradient = torch.ops.aten.native_batch_norm_backward(
            gradients[0],
            input,
            weight,
            mean,
            variance,
            None,
            None,
            False,
            ctx.eps,
            [mixed, True, True],
        )
        sums = processes.sum_over_processes(torch.stack([weight_gradient, bias_gradient]))
        scale = torch.rsqrt(variance + ctx.eps)
        if weight is not None:
            scale = scale * weight
        # what the statistics add is linear in x̂, and is made by the same kernel as the forward
        means = sums * (scale / -ctx.count)
        through = F.batch_norm(input, mean, variance, means[0], means[1], eps=ctx.eps)
        if mixed:
            through.add_(direct)
        else:
            through.addcmul_(gradients[0], scale.view(-1, *[1] * (input.dim() - 2)))
        affine = (None, None) if weight is None else (weight_gradient, bias_gradient)
        return through, *affine, None, None, None, None
