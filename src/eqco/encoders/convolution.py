"""Convolutions of our own networks: torch's, but for what torch does badly on CPUs in bfloat16."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["Conv1x1", "Conv3x3"]

# Output maps, in pixels, up to which products were measured to be faster in bfloat16
# (benchmarks/convolution.py): for all of a 1×1 convolution, and, at stride 2, for that and for the
# gradient of the weights of other kernels; no larger map was tried at stride 2.
LARGEST = 16
LARGEST_STRIDED = 64
# So many maps of 2×2 make products with a 3×3 kernel pay; with fewer, laying out the weights takes
# what they save.
SMALLEST_BATCH = 32

# Who computes: torch; torch, but for the gradient of the weights; or matrix products alone.
Way = Literal["torch", "gradient", "products"]


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
    """A convolution, in the way that is fastest for maps of this size."""
    way = fastest_way(maps, weight, stride=stride)
    if way == "torch":
        return F.conv2d(maps, weight, stride=stride, padding=padding)
    if way == "products":
        one_pixel = weight.shape[2:] == (1, 1)
        return (convolve_pixels if one_pixel else convolve_2x2)(maps, weight, stride=stride)
    outputs = F.conv2d(maps, weight.detach(), stride=stride, padding=padding)
    passed: Tensor = WeightGradient.apply(outputs, maps.detach(), weight, stride, padding)
    return passed


def fastest_way(maps: Tensor, weight: Tensor, *, stride: int) -> Way:
    """Other than torch's only in bfloat16 on a CPU, for small maps."""
    if not in_bfloat16(maps):
        return "torch"
    pixels = -(-maps.shape[2] // stride) * -(-maps.shape[3] // stride)  # of an output map
    small = pixels <= (LARGEST if stride == 1 else LARGEST_STRIDED)
    if weight.shape[2:] == (1, 1):
        return "products" if small else "torch"
    if weight.shape[2:] == (3, 3) and maps.shape[2:] == (2, 2) and stride <= 2:
        return "products" if maps.shape[0] >= SMALLEST_BATCH else "torch"
    learns = weight.requires_grad and torch.is_grad_enabled()
    return "gradient" if learns and small and stride > 1 else "torch"


def in_bfloat16(maps: Tensor) -> bool:
    """Whether a convolution of these maps is computed in bfloat16 on a CPU."""
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else maps.dtype
    # autocast leaves float64 as it is
    return maps.device.type == "cpu" and dtype == torch.bfloat16 and maps.dtype != torch.float64


def convolve_pixels(maps: Tensor, weight: Tensor, *, stride: int) -> Tensor:
    """A 1×1 convolution: one product of all pixels with the weights."""
    pixels = maps[:, :, ::stride, ::stride].permute(0, 2, 3, 1)
    # one matrix: of more dimensions torch makes many small products where no gradient is wanted
    # so flattened, the gradient of the weights has their own layout, channels last
    seen = F.linear(pixels.flatten(0, 2), weight.permute(0, 2, 3, 1).flatten(1))
    return seen.view(*pixels.shape[:3], -1).permute(0, 3, 1, 2)


def convolve_2x2(maps: Tensor, weight: Tensor, *, stride: int) -> Tensor:
    """A 3×3 convolution with padding of maps of 2×2, where each output sees every pixel.

    One product with 16 blocks of weights at stride 1, where a padded convolution has 36.
    """
    matrix: Tensor = Blocks.apply(weight, stride)
    seen = F.linear(maps.permute(0, 2, 3, 1).flatten(1), matrix)
    side = 2 // stride
    return seen.view(maps.shape[0], side, side, weight.shape[0]).permute(0, 3, 1, 2)


class Blocks(torch.autograd.Function):
    """The weights of a 3×3 kernel, by what they connect in a map of 2×2, in bfloat16.

    From (channels, channels_in, 3, 3) to (outputs · channels, 4 · channels_in), where output (i, j)
    meets input (k, l) by the tap (k − i + 1, l − j + 1). It can be differentiated once.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, stride: int) -> Tensor:
        """The matrix."""
        ctx.weight, ctx.stride = (weight.shape, weight.dtype), stride
        taps = weight.detach().bfloat16().permute(0, 2, 3, 1)
        blocks = torch.stack([taps[:, rows, columns] for rows, columns in windows_of(stride)])
        return blocks.flatten(2).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Each tap's sum over the places where it is used."""
        (channels, channels_in, *kernel), dtype = ctx.weight
        found = gradient.new_zeros(channels, *kernel, channels_in, dtype=torch.float32)
        blocks = gradient.view(-1, channels, 2, 2, channels_in)
        for block, (rows, columns) in zip(blocks, windows_of(ctx.stride), strict=True):
            found[:, rows, columns] += block
        return found.permute(0, 3, 1, 2).to(dtype), None


def windows_of(stride: int) -> list[tuple[slice, slice]]:
    """Rows and columns of a 3×3 kernel that meet a map of 2×2, for each output pixel.

    >>> windows_of(2)
    [(slice(1, 3, None), slice(1, 3, None))]
    """
    slices = [slice(1 - output, 3 - output) for output in range(0, 2, stride)]
    return [(rows, columns) for rows in slices for columns in slices]


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
