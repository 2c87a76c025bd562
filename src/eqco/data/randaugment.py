"""RandAugment as InfoMin Aug. uses it: fifteen operations on a batch, each image with its own.

The operations are defined on bytes. So images come as whole levels 0 to 255 in float, (N, C, H, W),
and leave as such; each operation computes what torchvision v2 computes on uint8.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.data.colour import luma
from eqco.runtime.devices import copy_to

__all__ = ["OPERATIONS", "apply_operations_", "magnitudes"]

OPERATIONS = (
    *("autocontrast", "equalize", "invert", "rotate", "posterize"),
    *("solarize", "solarize_add", "colour", "contrast", "brightness"),
    *("sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)
NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
ADDED_BELOW = 128  # levels that solarize_add brightens


def magnitudes(numbers: Tensor, levels: Tensor) -> Tensor:
    """The arguments of operations at levels in [−1, 1], whose sign is for geometry alone.

    Degrees, shares of a side, factors, bits, or levels; in the shape of both.

    >>> chosen = [NUMBERS[name] for name in ("rotate", "colour", "posterize")]
    >>> magnitudes(torch.tensor(chosen), torch.tensor([-0.5, -0.5, -0.5]))
    tensor([-15.,   1.,   2.])
    """
    size = levels.abs()
    by_name = {
        "rotate": 30 * levels,
        **dict.fromkeys(("shear_x", "shear_y"), 0.3 * levels),
        **dict.fromkeys(("translate_x", "translate_y"), 0.45 * levels),
        **dict.fromkeys(("colour", "contrast", "brightness", "sharpness"), 0.1 + 1.8 * size),
        "posterize": (4 * size).floor(),
        "solarize": (256 * size).floor(),
        "solarize_add": (110 * size).floor(),
    }
    table = torch.stack([by_name.get(name, size) for name in OPERATIONS], dim=-1)
    return table.gather(-1, numbers.clamp_min(0)[..., None])[..., 0]


def apply_operations_(images: Tensor, numbers: Tensor, levels: Tensor, fill: Tensor) -> None:
    """In place: the drawn operations, one round after the other, on images in [0, 1].

    Images that any operation applies to are rounded to whole levels first. Colour leaves images of
    other than three bands as they are.

    Args:
        images: float, (N, C, H, W).
        numbers: places in `OPERATIONS` for each round, −1 for none, (N, R), on the CPU.
        levels: of each, in [−1, 1], (N, R), on the CPU.
        fill: what is seen beyond the border, in [0, 1], (C, 1, 1).
    """
    touched = (numbers >= 0).any(dim=1).nonzero()[:, 0]
    if not len(touched):
        return
    numbers, sizes = numbers[touched], magnitudes(numbers, levels)[touched].to(images.dtype)
    touched, border = copy_to(images.device, touched), (255 * fill).round()
    pixels = images.index_select(0, touched).mul_(255).round_()
    drawn = (copy_to(images.device, each).unbind(1) for each in (numbers, sizes))
    for number, which, by in zip(numbers.unbind(1), *drawn, strict=True):
        for names, operation in GROUPS:
            meant = torch.stack([number == NUMBERS[name] for name in names]).any(dim=0)
            rows = meant.nonzero()[:, 0]
            if len(rows):
                rows = copy_to(images.device, rows)
                few, kind, size = (each.index_select(0, rows) for each in (pixels, which, by))
                pixels.index_copy_(0, rows, operation(few, kind, size, border))
    images.index_copy_(0, touched, pixels.div_(255))


# Each takes images (n, C, H, W), the numbers of their operations and the magnitudes of these, (n,),
# and the level beyond the border, (C, 1, 1).


def autocontrast(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Stretch each band to the whole range; a band of one level stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    reach = high - low
    stretched = ((images - low) * 255 / reach.clamp_min(1)).floor_()
    return torch.where(reach > 0, stretched, images)


def equalize(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Level the histogram of each band, as Pillow does."""
    levels = images.flatten(2).long()
    counts = levels.new_zeros(*levels.shape[:2], 256)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    brightest = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - brightest) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp_min(1)).clamp_max_(255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(2, levels).view_as(images).to(images.dtype)


def invert(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """The negative."""
    return 255 - images


def posterize(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Keep the highest bits of each level."""
    unit = torch.exp2(8 - per_image(size))
    return (images / unit).floor_().mul_(unit)


def solarize(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Invert the levels from the threshold on."""
    return torch.where(images >= per_image(size), 255 - images, images)


def solarize_add(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Brighten the dark half."""
    return torch.where(images < ADDED_BELOW, (images + per_image(size)).clamp_max_(255), images)


def enhance(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Colour, contrast or brightness by a factor: away from grey, from the mean, from black."""
    colour, contrast = (per_image(number == NUMBERS[name]) for name in ("colour", "contrast"))
    if images.shape[1] == 3:
        gray = luma(images).floor_()
        base = colour * gray + contrast * gray.mean((2, 3), keepdim=True)
    else:  # no colours; contrast is taken about each band's own mean, as in `jitter_bands_`
        base = colour * images + contrast * images.mean((2, 3), keepdim=True)
    return torch.lerp(base, images, per_image(size)).clamp_(0, 255).floor_()


def sharpen(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Away from a blur of 3×3 pixels, whose centre has five times the weight; not at the border."""
    if min(images.shape[2:]) < 3:
        return images
    inner = images[:, :, 1:-1, 1:-1]
    blurred = ((9 * F.avg_pool2d(images, 3, stride=1)).round_() + 4 * inner).div_(13).round_()
    sharpened = images.clone()
    away = torch.lerp(blurred, inner, per_image(size)).clamp_(0, 255).floor_()
    sharpened[:, :, 1:-1, 1:-1] = away
    return sharpened


def move(images: Tensor, number: Tensor, size: Tensor, fill: Tensor) -> Tensor:
    """Rotate about the centre, shear about the upper left corner, or shift; bilinear."""
    places = inverse_maps(number, size)
    grid = F.affine_grid(places, list(images.shape), align_corners=False)
    # zeros beyond the border stand for the fill
    moved = F.grid_sample(images - fill, grid, align_corners=False)
    return (moved + fill).round_().clamp_(0, 255)


def inverse_maps(number: Tensor, size: Tensor) -> Tensor:
    """Where each pixel comes from, (n, 2, 3), in coordinates from −1 to 1 along each side.

    >>> inverse_maps(torch.tensor([NUMBERS["shear_x"]]), torch.tensor([0.25]))
    tensor([[[1.0000, 0.2500, 0.2500],
             [0.0000, 1.0000, 0.0000]]])
    """
    turn, shear_x, shear_y, right, down = (
        size * (number == NUMBERS[name])
        for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    )
    cosine, sine = turn.deg2rad().cos(), turn.deg2rad().sin()
    first = [cosine, shear_x - sine, shear_x + 2 * right]
    second = [shear_y + sine, cosine, shear_y + 2 * down]
    return torch.stack([*first, *second], dim=1).view(-1, 2, 3)


def per_image(values: Tensor) -> Tensor:
    """One value for each image, (n,), to go with images: (n, 1, 1, 1)."""
    return values[:, None, None, None]


Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
GROUPS: tuple[tuple[tuple[str, ...], Operation], ...] = (
    (("autocontrast",), autocontrast),
    (("equalize",), equalize),
    (("invert",), invert),
    (("posterize",), posterize),
    (("solarize",), solarize),
    (("solarize_add",), solarize_add),
    (("colour", "contrast", "brightness"), enhance),
    (("sharpness",), sharpen),
    (("rotate", "shear_x", "shear_y", "translate_x", "translate_y"), move),
)
