"""Colour operations on a whole batch, each image with its own factors and its own order.

Images are float in [0, 1], (N, 3, H, W). Each operation computes what torchvision v2 computes on a
float tensor; the forms differ, and are chosen for few passes over memory and no branches.
"""

import bisect
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "blend_",
    "grayscale_",
    "hue_offsets",
    "hue_round",
    "hue_shift",
    "jitter_",
    "jitter_bands_",
    "jitter_columns",
    "solarize_",
    "without_colours",
]

# columns in the factors; 0 and 1 are brightness and contrast
SATURATION, HUE = 2, 3


def luma(images: Tensor) -> Tensor:
    """Brightness as seen, (N, 1, H, W): 0.2989 R + 0.587 G + 0.114 B."""
    red, green, blue = images.split(1, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def grayscale_(images: Tensor, gray: Tensor) -> None:
    """In place: greyscale for the images of these numbers, (G,)."""
    if len(gray):
        luminance = luma(images.index_select(0, gray))
        images.index_copy_(0, gray, luminance.expand(-1, 3, -1, -1))


def solarize_(images: Tensor, solarized: Tensor) -> None:
    """In place: invert the pixels from ½ on, of the images where `solarized`, (N,), is True.

    Any number of bands; x becomes the lesser of x and 1 − x.
    """
    chosen = solarized[:, None, None, None]
    torch.where(chosen, torch.minimum(images, 1 - images), images, out=images)


def hue_offsets(shift: Tensor) -> Tensor:
    """What `hue_shift` needs of a shift in turns, (N,) between −½ and ½: (N, 3, 1, 1).

    6·shift minus the hue of each channel's centre, where green's is 2 or −4 and blue's 4 or −2: the
    one from which the shifted hue is at most 7 sixths away.
    """
    backward = 6.0 * (shift < 0)
    centres = torch.stack([torch.zeros_like(shift), 2 - backward, 4 - backward], dim=1)
    return (6 * shift[:, None] - centres)[:, :, None, None]


def hue_shift(images: Tensor, offsets: Tensor, out: Tensor | None = None) -> Tensor:
    r"""Turn each image's hue, keeping value and saturation of HSV.

    With M, m the largest and smallest channel, C = M − m and the hue h in sixths of a turn
    (red 0, green 2, blue −2), measured from red both ways,

    .. math:: |h| = (M + G + B - R - 2m) / C, \qquad h > 0 \iff G > B

    and a channel centred at hue c becomes m + C·clamp(| |h + shift − c| − 3 | − 1, 0, 1), as long
    as |h + shift − c| ≤ 7. Exact, without a case for each sextant. `offsets` are of `hue_offsets`;
    `out` may be `images`.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> hue_shift(red, hue_offsets(torch.tensor([1 / 3]))).flatten().round(decimals=4)
    tensor([0., 1., 0.])
    """
    red, green, blue = images.split(1, dim=1)
    largest = torch.maximum(red, green)
    largest = torch.maximum(largest, blue, out=largest)
    smallest = torch.minimum(red, green)
    smallest = torch.minimum(smallest, blue, out=smallest)
    chroma = largest - smallest
    hue = largest.add_(green).add_(blue).sub_(red).sub_(smallest, alpha=2)
    # a grey pixel has no hue: any finite number will do, C = 0 takes it out
    hue = hue.div_(chroma.clamp_min(1e-12)).copysign_(green - blue)
    near = (hue + offsets).abs_().sub_(3).abs_().clamp_(1, 2)
    return torch.addcmul(smallest.sub_(chroma), near, chroma, out=near if out is None else out)


def blend_(images: Tensor, factor: Tensor, contrast: Tensor, saturation: Tensor) -> None:
    """In place, image by image: brightness, contrast or saturation by a factor, (N, 1, 1, 1).

    All three are clamp(factor·x + (1 − factor)·base) with base black, the image's mean luma, or
    each pixel's luma. `contrast` and `saturation` are 1 for the images where that is meant, else 0.
    """
    gray = luma(images)
    mean = gray.mean((2, 3), keepdim=True).mul_(contrast)
    base = gray.mul_(saturation).add_(mean)
    torch.lerp(base, images, factor, out=images).clamp_(0, 1)


def hue_round(order: Tensor) -> Tensor:
    """In which of the four rounds each image's hue turns, (N,)."""
    return (order == HUE).int().argmax(1)


def jitter_columns(order: Tensor, factors: Tensor) -> Tensor:
    """The arguments of `blend_` in each of R rounds, (3, R, N, 1, 1, 1), from an order (N, R)."""
    columns = torch.stack([factors.gather(1, order), order == 1, order == 2])
    return columns.transpose(1, 2)[..., None, None, None]


def without_colours(order: Tensor) -> Tensor:
    """The order of brightness and contrast alone, (N, 2), out of all four, (N, 4).

    >>> without_colours(torch.tensor([[3, 1, 2, 0], [0, 3, 1, 2]]))
    tensor([[1, 0],
            [0, 1]])
    """
    return order[order < SATURATION].view(-1, 2)


def jitter_bands_(images: Tensor, columns: Tensor) -> None:
    """In place: brightness and contrast of any number of bands, in an order of each image's own.

    Contrast is taken about each band's own mean: bands of different sensors may differ widely, and
    a mean over all would drive the dark ones out of the range. One band: as torchvision does grey.
    The columns are of `jitter_columns` with the order `without_colours`.
    """
    for factor, contrast, _ in columns.unbind(1):
        base = images.mean((2, 3), keepdim=True).mul_(contrast)
        torch.lerp(base, images, factor, out=images).clamp_(0, 1)


def jitter_(images: Tensor, rounds: Sequence[int], columns: Tensor, offsets: Tensor) -> None:
    """In place: brightness, contrast, saturation and hue, in an order of each image's own.

    The images come sorted by the round in which their hue turns, so that in each of the four rounds
    one stretch of the batch turns its hue and the rest blends: few operations for any batch.
    `rounds`, `columns` and `offsets` are of `hue_round`, `jitter_columns` and `hue_offsets`.
    """
    ends = [bisect.bisect_left(rounds, turn) for turn in range(5)]
    for turn, (start, end) in enumerate(itertools.pairwise(ends)):
        for first, last in ((0, start), (end, len(images))):
            if first < last:
                blend_(images[first:last], *columns[:, turn, first:last])
        if start < end:
            turning = images[start:end]
            hue_shift(turning, offsets[start:end], out=turning)
