"""What worker processes do for images on disk: decode once, cut every view out of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from eqco.data.bands import Bands
from eqco.data.decoding import MAX_PIXELS, UnreadableImageError
from eqco.data.images import Images
from eqco.data.parameters import fit_boxes
from eqco.data.resize import resized_sides
from eqco.data.views import ViewSpec
from eqco.runtime.errors import InputError

__all__ = ["CentreCrops", "Cropped", "RandomCrops", "as_tensor", "centre_crop_image", "collate"]


@dataclass(frozen=True)
class Cropped:
    """One image, cut: or, if it could not be read, what was wrong and which was taken instead."""

    crops: list[Tensor]  # of each view, (size, size, C); empty if it could not be read
    number: int  # of the image that was used
    unreadable: tuple[UnreadableImageError, ...]


class RandomCrops(Dataset):
    """Item (number, a row of `Parameters.crops` for each view) is that image, cut for each."""

    def __init__(self, images: Images, views: Sequence[ViewSpec], skip: bool):
        self.images = images
        self.views = views
        self.skip = skip

    def __getitem__(self, request: tuple[int, np.ndarray]) -> Cropped:
        number, draws = request
        unreadable: list[UnreadableImageError] = []
        # an unreadable image is replaced by the next readable one, whoever reads it
        for shift in range(len(self.images) if self.skip else 1):
            place = (number + shift) % len(self.images)
            try:
                image = self.images.read(place)
            except InputError as error:
                unreadable.append(as_unreadable(error, self.images.name(place)))
                continue
            crops = [random_crop(image, *each) for each in zip(self.views, draws, strict=True)]
            return Cropped(crops, place, tuple(unreadable))
        return Cropped([], number, tuple(unreadable))


def random_crop(image: Image.Image | Bands, view: ViewSpec, draw: np.ndarray) -> Tensor:
    """The pixels of one view, (size, size, C); flip and colours are left for the device."""
    boxes = fit_boxes(draw[None], image.height, image.width, view.pipeline.crop_aspect)
    top, left, height, width = boxes[0].tolist()
    # crop first: Pillow's own box would let pixels from outside the crop into its border
    part = image.crop((left, top, left + width, top + height))
    return as_tensor(part.resize((view.size, view.size), Image.Resampling.BILINEAR))


class CentreCrops(Dataset):
    """Item i is image i, resized and cut at its centre for evaluation, in each of the sizes."""

    def __init__(self, images: Images, sizes: Sequence[int]):
        self.images = images
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Cropped:
        try:
            image, name = self.images.read(number), self.images.name(number)
            cut = [centre_crop_image(image, size, name) for size in self.sizes]
        except InputError as error:
            return Cropped([], number, (as_unreadable(error, self.images.name(number)),))
        return Cropped([as_tensor(each) for each in cut], number, ())


def centre_crop_image(image: Image.Image | Bands, size: int, name: str) -> Image.Image | Bands:
    """The image resized and cut at its centre (see `resized_sides`); `name` is for an error."""
    height, width = resized_sides(image.height, image.width, size)
    if height * width > MAX_PIXELS:
        raise UnreadableImageError(
            name,
            f"it has {image.width} x {image.height} pixels, and would have {width} x {height} with "
            f"its shorter side made {min(height, width)}; cut it",
        )
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def as_unreadable(error: InputError, name: str) -> UnreadableImageError:
    """A refusal as a value: exceptions lose their kind on the way out of a worker process."""
    if isinstance(error, UnreadableImageError):
        return error
    return UnreadableImageError(name, str(error))


def as_tensor(image: Image.Image | Bands) -> Tensor:
    """Pixels, (H, W, C)."""
    return torch.from_numpy(np.array(image))


def collate(
    items: Sequence[Cropped],
) -> tuple[list[Tensor], Tensor, tuple[UnreadableImageError, ...]]:
    """Crops of each view, (n, C, size, size), and numbers, (n,), of what was read; all errors."""
    read = [item for item in items if item.crops]
    errors = tuple(error for item in items for error in item.unreadable)
    views = zip(*(item.crops for item in read), strict=True)
    crops = [torch.stack(view).permute(0, 3, 1, 2) for view in views]
    return (
        crops,
        torch.tensor([item.number for item in read], dtype=torch.long, device="cpu"),
        errors,
    )
