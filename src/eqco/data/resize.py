"""Crop and resize of a batch, each image with its own crop: as two matrix products, or in turn."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["centre_crop", "resize_weights", "resized_crop", "resized_crop_in_turn"]


def resize_weights(start: Tensor, length: Tensor, source: int, size: int) -> Tensor:
    r"""Rows that resize a stretch of a line to `size` pixels, (N, size, source).

    Bilinear with antialiasing, as torch's and Pillow's: output pixel i looks at its own place
    c = s·(i + ½) of the stretch, where s = length/size, through a triangle of half-width max(s, 1):

    .. math:: w_{ip} \propto \max\Big(0, 1 - \frac{|p - start + ½ - c_i|}{\max(s, 1)}\Big)

    over the source pixels p of the stretch, each row summing to 1.

    Args:
        start: first pixel of each stretch, (N,).
        length: its pixels, (N,); negative to read it backwards, which is a flip.
        source: pixels of the whole line.
        size: pixels wanted.

    >>> resize_weights(torch.tensor([1]), torch.tensor([2]), source=4, size=2)
    tensor([[[0., 1., 0., 0.],
             [0., 0., 1., 0.]]])
    """
    reach = length.abs().float()[:, None]
    scale = reach / size
    output = torch.arange(size, device=start.device, dtype=torch.float32)
    centre = scale * (output + 0.5)
    centre = torch.where(length[:, None] < 0, reach - centre, centre)
    pixel = torch.arange(source, device=start.device) - start[:, None]
    inside = (pixel >= 0) & (pixel < reach)
    distance = (pixel + 0.5)[:, None, :] - centre[:, :, None]
    weights = distance.abs_().mul_((-1 / scale.clamp_min(1.0))[:, :, None]).add_(1.0).clamp_min_(0)
    weights.mul_(inside[:, None, :])
    return weights.div_(weights.sum(2, keepdim=True))


def apply_weights(images: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
    """vertical @ image @ horizontalᵀ for every channel of every image."""
    count, channels, height, width = images.shape
    size = horizontal.shape[1]
    # both products with as few, as large matrices as possible: the batched product is the cost
    rows = torch.bmm(images.reshape(count, channels * height, width), horizontal.transpose(1, 2))
    rows = rows.view(count * channels, height, size)
    stacked = vertical[:, None].expand(-1, channels, -1, -1).reshape(-1, *vertical.shape[1:])
    return torch.bmm(stacked, rows).view(count, channels, -1, size)


def resized_crop(images: Tensor, boxes: Tensor, size: int, flipped: Tensor | None = None) -> Tensor:
    """Each image's own crop, resized to a square, mirrored left to right where `flipped` says.

    Float images (N, C, H, W) and boxes (N, 4) of top, left, height, width give (N, C, size, size).
    """
    top, left, height, width = boxes.to(images.device).unbind(1)
    if flipped is not None:
        width = torch.where(flipped.to(images.device), -width, width)
    if images.shape[2] == images.shape[3]:  # both sides in one go: half the small operations
        start, length = torch.cat([top, left]), torch.cat([height, width])
        vertical, horizontal = resize_weights(start, length, images.shape[2], size).chunk(2)
    else:
        vertical = resize_weights(top, height, images.shape[2], size)
        horizontal = resize_weights(left, width, images.shape[3], size)
    return apply_weights(images, vertical, horizontal)


def resized_crop_in_turn(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Each image's own crop, resized to a square, one image after the other.

    What torchvision does to a tensor, rounding included where it is uint8. The matrix products of
    `resized_crop` grow with the cube of the size, this with its square.

    Images (N, C, H, W), uint8 or float32 on the CPU, become (N, C, size, size) of the same type.
    """
    crops = torch.empty((*images.shape[:2], size, size), dtype=images.dtype, device="cpu")
    for crop, image, (top, left, height, width) in zip(
        crops.split(1), images.split(1), boxes.tolist(), strict=True
    ):
        part = image[:, :, top : top + height, left : left + width]
        crop.copy_(F.interpolate(part, (size, size), mode="bilinear", antialias=True))
    return crops


def resized_sides(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width before the centre crop: 8/7 of `size` on the shorter side (256 for 224).

    Paper: the 8/7 is published for photographs far larger than the crop. An image that has no such
    border to give, as at 32 pixels, is resized to `size` itself, and stays as it is if it fits.

    >>> resized_sides(375, 500, 224), resized_sides(32, 32, 32)
    ((256, 341), (32, 32))
    """
    bordered = size * 256 // 224
    short = bordered if min(height, width) >= bordered else size
    if height <= width:
        return short, int(short * width / height)
    return int(short * height / width), short


def centre_crop(images: Tensor, size: int) -> Tensor:
    """The evaluation view: shorter side resized (see `resized_sides`), centre square cut out.

    Float images (N, C, H, W) become (N, C, size, size).
    """
    height, width = images.shape[2:]
    weights = []
    for source, resized in zip((height, width), resized_sides(height, width, size), strict=True):
        start, length = torch.tensor([[0], [source]], device=images.device)
        first = round((resized - size) / 2)
        weights.append(resize_weights(start, length, source, resized)[:, first : first + size])
    vertical, horizontal = weights
    return vertical @ (images @ horizontal.transpose(1, 2))
