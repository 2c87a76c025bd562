"""The encoder of a run as `eqco.load` gives it: paths, pictures and arrays in, features out."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eqco.data import evaluation_view, find_pipeline
from eqco.data.bands import COLOUR, Layout
from eqco.data.cropping import as_tensor, centre_crop_image
from eqco.data.decoding import find_layout, read_image
from eqco.data.images import DatasetImages
from eqco.encoders import Encoder, in_channels_of
from eqco.recipes import Recipe
from eqco.runtime.errors import InputError

__all__ = ["LoadedEncoder"]

LARGEST = 20.0  # normalised pixels lie within ±3; those of 0 to 255 do not


class LoadedEncoder(Encoder):
    """A trained encoder that also takes images as they are.

    `embed` prepares images as `eqco embed` does. Called as a module, it takes tensors that are
    prepared already: (N, C, image_size, image_size), normalised.
    """

    def __init__(self, encoder: Encoder, recipe: Recipe) -> None:
        super().__init__(encoder.backbone, encoder.head)
        self.image_size = recipe.data.image_size
        self.eval()

    def features(self, images: Tensor) -> Tensor:
        """Features of prepared images, (N, feature_dim)."""
        if not torch.compiler.is_compiling() and images.numel():
            largest = float(images.detach().abs().max())
            if not largest <= LARGEST:
                raise InputError(
                    f"images with values up to {largest:g}; called as a module, this encoder takes "
                    f"normalised images, from about -3 to 3. Give images as they are (paths, "
                    f"pictures, uint8, or floats in [0, 1]) to encoder.embed(…)."
                )
        return super().features(images)

    @torch.no_grad()
    def embed(self, images: Any, *, batch_size: int = 256) -> Tensor:
        """Features of images as they are, (N, feature_dim), as `eqco embed` computes them.

        Args:
            images: one image or several: paths, PIL images, arrays (H, W) or (H, W, C), tensors
                (C, H, W) or (N, C, H, W). Pixels are uint8 or uint16, or floating point in [0, 1];
                floats up to 255 are refused.
            batch_size: images at a time.
        """
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}; it must be at least 1.")
        items = list(as_items(images))
        if not items:
            raise InputError("there are no images; give at least one.")
        device = next(self.parameters()).device
        was_training = self.training
        self.eval()
        batches = (items[start : start + batch_size] for start in range(0, len(items), batch_size))
        found = [
            self.features(torch.cat([self.prepare(item) for item in batch]).to(device)).float()
            for batch in batches
        ]
        self.train(was_training)
        return torch.cat(found)

    def prepare(self, image: Any) -> Tensor:
        """One image, resized, cut at its centre and normalised, (1, C, image_size, image_size)."""
        bands = in_channels_of(self.backbone)
        if isinstance(image, str | Path):
            layout = COLOUR if bands == 3 else find_layout([str(image)], bands)
            pixels, name = read_image(image, layout), str(image)
        else:
            alone = DatasetImages([image], channels=bands if is_picture(image) else None)
            pixels, layout, name = alone.read(0), alone.layout, "an image"
        refuse_bands(layout, bands, name)
        cut = as_tensor(centre_crop_image(pixels, self.image_size, name)).permute(2, 0, 1)
        return evaluation_view(cut[None], self.image_size, find_pipeline("mocov2"))


def is_picture(image: Any) -> bool:
    """Whether it is Pillow's, which may be had with other bands than it has."""
    return not hasattr(image, "shape")


def refuse_bands(layout: Layout, bands: int, name: str) -> None:
    """Refuse an image of other bands than the encoder's."""
    if layout.channels != bands:
        raise InputError(
            f"{name} has {layout}, and the encoder takes {bands}. Arrays are (height, width, "
            f"bands), tensors (bands, height, width)."
        )


def as_items(images: Any) -> Iterable[Any]:
    """One image after the other."""
    if isinstance(images, Tensor) and images.dim() == 4:
        return images.unbind(0)
    if isinstance(images, str | Path) or not isinstance(images, Sequence | Iterable):
        return [images]
    if hasattr(images, "shape"):  # an array: several have four dimensions
        return images if len(images.shape) == 4 else [images]
    return images
