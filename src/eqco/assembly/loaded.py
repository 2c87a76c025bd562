"""The encoder of a run as `eqco.load` gives it: paths, pictures and arrays in, features out."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from eqco.data import UnreadableImageError, evaluation_view, find_pipeline
from eqco.data.bands import Layout, WrongBandsError
from eqco.data.cropping import as_tensor, centre_crop_image
from eqco.data.decoding import find_layout, named_errors, read_image
from eqco.data.images import image_in, load_picture, read_value, value_layout
from eqco.encoders import Encoder, in_channels_of
from eqco.recipes import Recipe
from eqco.runtime.errors import InputError

if TYPE_CHECKING:
    from eqco.assembly.search import PhotoIndex

__all__ = ["LoadedEncoder", "prepare_image"]

LARGEST = 20.0  # normalised pixels lie within ±3; those of 0 to 255 do not


class LoadedEncoder(Encoder):
    """A trained encoder that also takes images as they are.

    `embed` prepares images as `eqco embed` does, `index` makes a folder of them searchable. Called
    as a module, it takes tensors that are prepared already: (N, C, image_size, image_size),
    normalised. `run` is the run directory or checkpoint it came from, if it did; `network` the name
    of its backbone, of a module of your own its class.
    """

    def __init__(
        self,
        encoder: Encoder,
        recipe: Recipe,
        run: Path | None = None,
        network: str | None = None,
    ) -> None:
        super().__init__(encoder.backbone, encoder.head)
        self.recipe, self.run = recipe, run
        self.network = recipe.encoder.backbone if network is None else network
        self.image_size = recipe.data.image_size
        self.checked = False
        self.eval()

    def features(self, images: Tensor) -> Tensor:
        """Features of prepared images, (N, feature_dim); the first ones that come are checked."""
        if not (torch.compiler.is_compiling() or self.checked) and images.numel():
            refuse_unprepared(images)
            self.checked = True  # the others too would cost a pass, and a wait for the device
        return super().features(images)

    @torch.no_grad()
    def embed(self, images: Any, *, batch_size: int = 256) -> Tensor:
        """Features of images as they are, (N, feature_dim), as `eqco embed` computes them.

        Args:
            images: one image or several: paths, PIL images, arrays (H, W) or (H, W, C), tensors
                (C, H, W) or (N, C, H, W), dicts with an image as "image". Files and PIL images are
                turned upright by their EXIF orientation; arrays and tensors must be upright. Pixels
                are uint8 or uint16, or floating point in [0, 1]; floats up to 255 are refused.
            batch_size: images at a time.
        """
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}; it must be at least 1.")
        items = list(as_items(images))
        if not items:
            raise InputError("there are no images; give at least one.")
        names = [f"images[{number}]" for number in range(len(items))]
        if items[0] is images:
            names = ["the image"]
        device = next(self.parameters()).device
        named = list(zip(items, names, strict=True))
        batches = (named[start : start + batch_size] for start in range(0, len(items), batch_size))
        was_training = self.training
        self.eval()
        try:
            found = [
                Encoder.features(
                    self, torch.cat([self.prepare(*each) for each in batch]).to(device)
                ).float()
                for batch in batches
            ]
        finally:
            self.train(was_training)
        return torch.cat(found)

    def prepare(self, image: Any, name: str = "the image") -> Tensor:
        """One image, resized, cut at its centre and normalised, (1, C, image_size, image_size).

        Errors call it by its `name`, a file by its path.
        """
        return prepare_image(image, in_channels_of(self.backbone), self.image_size, name)

    def index(self, photos: Path | str, out: Path | str, **options: Any) -> "PhotoIndex":
        """Make the photos of a folder searchable by this encoder, as `eqco index` does.

        Args:
            photos: a folder of any layout, or a data set by name.
            out: folder of the index; `eqco.open_index` opens it again.
            options: of `eqco.assembly.search.build_index`, such as overwrite or workers.
        """
        from eqco.assembly.search import build_index

        weights = None if self.run is None else str(self.run.resolve())
        was_training = self.training
        try:
            return build_index(
                self.backbone, self.image_size, photos, out, weights=weights, **options
            )
        finally:
            self.train(was_training)

    def __repr__(self) -> str:
        from eqco.assembly.summary import summary_text

        return summary_text(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: recipe, curve, accuracies and neighbours of the run."""
        from eqco.assembly.summary import summary_html

        return summary_html(self)


def refuse_unprepared(images: Tensor) -> None:
    """Refuse images that are not normalised."""
    largest = float(images.detach().abs().max())
    if not largest <= LARGEST:
        raise InputError(
            f"images with values up to {largest:g}; called as a module, this encoder takes "
            f"normalised images, from about -3 to 3. Give images as they are (paths, pictures, "
            f"uint8, or floats in [0, 1]) to encoder.embed(…)."
        )


def prepare_image(image: Any, bands: int, size: int, name: str = "the image") -> Tensor:
    """One image as it is, resized, cut at its centre and normalised, (1, bands, size, size)."""
    image = image_in(image)
    is_file = isinstance(image, str | Path)
    try:
        if is_file:
            layout = find_layout([str(image)], bands)
            pixels, name = read_image(image, layout), str(image)
        else:
            if isinstance(image, Image.Image):
                image = upright(image, name)
            layout = value_layout(image, bands if isinstance(image, Image.Image) else None, name)
            refuse_bands(image, layout, bands, name)
            pixels = read_value(image, layout, name)
        cut = as_tensor(centre_crop_image(pixels, size, name)).permute(2, 0, 1)
    except WrongBandsError as error:
        raise error.of_network("the encoder") from error
    except UnreadableImageError as error:
        if is_file:
            raise
        raise UnreadableImageError(name, error.reason, "Give another, or leave it out.") from error
    return evaluation_view(cut[None], size, find_pipeline("mocov2"))


def upright(image: Image.Image, name: str) -> Image.Image:
    """A PIL image turned upright by its EXIF orientation."""
    load_picture(image, name)
    with named_errors(name):
        return ImageOps.exif_transpose(image)


def refuse_bands(image: Any, layout: Layout, bands: int, name: str) -> None:
    """Refuse an array or a tensor of other bands than the encoder's."""
    if layout.channels == bands:
        return
    remedy = "Give images like those it was trained on"
    if layout.channels == 1 and bands == 3:
        remedy = f"Give a grey image as colour: {grey_as_colour(image)}"
    raise InputError(
        f"{name} has {layout}, and the encoder takes {bands}. {remedy}. Arrays are (height, width, "
        f"bands), tensors (bands, height, width)."
    )


def grey_as_colour(image: Any) -> str:
    """The code that repeats the one band of an array or a tensor.

    >>> grey_as_colour(torch.zeros(1, 24, 20))
    'image.expand(3, -1, -1)'
    """
    if isinstance(image, Tensor):
        return "image.expand(3, -1, -1)"
    return "np.stack([image] * 3, -1)" if np.ndim(image) == 2 else "np.repeat(image, 3, -1)"


def as_items(images: Any) -> Iterable[Any]:
    """One image after the other; a dict that names its image, as a row of `datasets`, is one."""
    if isinstance(images, Tensor) and images.dim() == 4:
        return images.unbind(0)
    if isinstance(images, str | Path | Mapping) or not isinstance(images, Sequence | Iterable):
        return [images]
    if hasattr(images, "shape"):  # an array: several have four dimensions
        return images if len(images.shape) == 4 else [images]
    return images
