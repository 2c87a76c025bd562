"""Convolutions of our own networks: torch's, but for two things that torch does badly on CPUs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["Conv1x1", "Conv3x3"]

# Output maps, in pixels, up to which one matrix product was measured to be the faster way to a
# gradient of weights in bfloat16 (benchmarks/convolution.py): of 3×3 kernels at stride 2 (where no
# larger map was tried) and 1, and of 1×1.
LARGEST_STRIDED = 64
LARGEST_3X3 = 4
LARGEST_1X1 = 16


class Conv1x1(nn.Conv2d):
    """A 1×1 convolution."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels, 1, stride=stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels_in, H, W) -> (N, channels, H / stride, W / stride)."""
        return convolve(maps, self.weight, stride=self.stride[0], padding=(0, 0))


class Conv3x3(nn.Conv2d):
    """A 3×3 convolution with padding, that leaves out the taps that meet nothing but padding.

    Where a map is one pixel high or wide only the middle of the kernel meets it. Left out, the rest
    costs nothing, and its gradient is the zero that it should be: torch 2.15 leaves it unset on
    CPUs, in bfloat16 at stride 2, and what the memory held before becomes a gradient.
    """

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels, 3, stride=stride, padding=1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels_in, H, W) -> (N, channels, H / stride, W / stride)."""
        high, wide = (int(side > 1) for side in maps.shape[2:])
        taps = self.weight
        if not (high and wide):
            taps = taps[:, :, 1 - high : 2 + high, 1 - wide : 2 + wide]
        return convolve(maps, taps, stride=self.stride[0], padding=(high, wide))


def convolve(maps: Tensor, weight: Tensor, *, stride: int, padding: tuple[int, int]) -> Tensor:
    """torch's convolution; the gradient of its weights is one product where that is faster."""
    if not product_is_faster(maps, weight, stride=stride):
        return F.conv2d(maps, weight, stride=stride, padding=padding)
    outputs = F.conv2d(maps, weight.detach(), stride=stride, padding=padding)
    passed: Tensor = WeightGradient.apply(outputs, maps.detach(), weight, stride, padding)
    return passed


def product_is_faster(maps: Tensor, weight: Tensor, *, stride: int) -> bool:
    """Whether the gradient of the weights is wanted, in bfloat16 on a CPU, from small maps."""
    if not (maps.device.type == "cpu" and weight.requires_grad and torch.is_grad_enabled()):
        return False
    autocast = torch.is_autocast_enabled("cpu")
    if (torch.get_autocast_dtype("cpu") if autocast else maps.dtype) != torch.bfloat16:
        return False
    pixels = -(-maps.shape[2] // stride) * -(-maps.shape[3] // stride)
    if weight.shape[2:] == (1, 1):
        return pixels <= LARGEST_1X1
    return pixels <= (LARGEST_3X3 if stride == 1 else LARGEST_STRIDED)


class WeightGradient(torch.autograd.Function):
    r"""Passes on what a convolution made of its inputs, and gives its weights their gradient.

    .. math::
        \frac{dL}{dw} = \sum_{n,p} g_{n,p}\, x_{n,p}^\top

    over images n and output pixels p, where x has the pixels that the kernel meets at p: one
    product of two matrices. It can be differentiated once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        inputs: Tensor,
        weight: Tensor,
        stride: int,
        padding: tuple[int, int],
    ) -> Tensor:
        """The outputs as they are."""
        ctx.save_for_backward(inputs.to(outputs.dtype))
        ctx.weight = weight.shape, weight.dtype
        ctx.stride, ctx.padding = stride, padding
        return outputs.detach()  # not a view: what follows may change it in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the outputs as it is, and that of the weights."""
        (channels, channels_in, *kernel), dtype = ctx.weight
        (inputs,) = ctx.saved_tensors
        seen = patches(inputs, kernel, stride=ctx.stride, padding=ctx.padding)
        pixels = gradient.permute(0, 2, 3, 1).reshape(len(seen), channels)
        found = (pixels.T @ seen).reshape(channels, *kernel, channels_in)
        return gradient, None, found.permute(0, 3, 1, 2).to(dtype), None, None


def patches(maps: Tensor, kernel: list[int], *, stride: int, padding: tuple[int, int]) -> Tensor:
    """What the kernel meets at each output pixel: (N·H·W, kernel pixels · channels).

    Rows are ordered by image, row and column, entries by kernel pixel and channel.
    """
    high, wide = padding
    padded = maps.permute(0, 2, 3, 1)
    if high or wide:
        padded = F.pad(padded, (0, 0, wide, wide, high, high))
    # (N, H, W, channels, kernel rows, kernel columns), a view
    windows = padded.unfold(1, kernel[0], stride).unfold(2, kernel[1], stride)
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(0, 2)
