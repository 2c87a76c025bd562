"""What is drawn for each image: a function of (seed, step, view), apart from its application."""

import math
from dataclasses import dataclass, fields
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from eqco.data.pipelines import Pipeline
from eqco.runtime.seeds import counter_generator

__all__ = ["Parameters", "crop_boxes", "draw_parameters"]

ATTEMPTS = 10  # of torchvision's RandomResizedCrop, before it takes the centre
ORDERS = torch.tensor(
    list(permutations(range(4))), device="cpu"
)  # of brightness, contrast, saturation, hue
# Independent streams of one seed; see `counter_generator`.
STREAM_ORDER, STREAM_VIEWS, STREAM_SPLIT = 0, 1, 2


@dataclass(frozen=True)
class Parameters:
    """The draws of N images for one view; nothing in here depends on the images."""

    area: Tensor  # (N, 10) share of the image, one per attempt
    aspect: Tensor  # (N, 10) width to height
    position: Tensor  # (N, 2) in [0, 1): down, right
    flipped: Tensor  # (N,) bool
    jittered: Tensor  # (N,) bool
    order: Tensor  # (N, 4) which of the four factors comes first, second, …
    factors: Tensor  # (N, 4) brightness, contrast, saturation, hue
    gray: Tensor  # (N,) bool
    blurred: Tensor  # (N,) bool
    sigma: Tensor  # (N,) pixels
    solarized: Tensor  # (N,) bool

    def __len__(self) -> int:
        return len(self.area)

    def __getitem__(self, rows: slice | Tensor) -> "Parameters":
        return Parameters(*(getattr(self, field.name)[rows] for field in fields(self)))

    def crops(self) -> np.ndarray:
        """What decides the crops, (N, 22): area, aspect, position."""
        return torch.cat([self.area, self.aspect, self.position], dim=1).numpy()


def draw_parameters(
    pipeline: Pipeline, num_images: int, *, seed: int, step: int, view: int = 0
) -> Parameters:
    """The draws of one view of the global batch; a process takes its slice of the rows.

    The distributions are those of torchvision's RandomResizedCrop, ColorJitter, RandomGrayscale,
    GaussianBlur, RandomSolarize and RandomHorizontalFlip; all images and views draw independently.

    >>> from eqco.data.pipelines import MOCO_V2
    >>> first, again = (draw_parameters(MOCO_V2, 8, seed=0, step=5) for _ in range(2))
    >>> bool((first.factors == again.factors).all())
    True
    """
    generator = counter_generator(seed, STREAM_VIEWS, step, view)
    uniform = torch.from_numpy(generator.random((num_images, 2 * ATTEMPTS + 12)))
    area, aspect, rest = uniform.split([ATTEMPTS, ATTEMPTS, 12], dim=1)
    low, high = (math.log(bound) for bound in pipeline.crop_aspect)
    spreads = (pipeline.brightness, pipeline.contrast, pipeline.saturation)
    ranges = [(max(0.0, 1 - spread), 1 + spread) for spread in spreads]
    ranges.append((-pipeline.hue, pipeline.hue))
    factors = [rescale(rest[:, 4 + i], *bounds) for i, bounds in enumerate(ranges)]
    solarize = torch.from_numpy(generator.random(num_images))
    return Parameters(
        area=rescale(area, *pipeline.crop_scale),
        aspect=rescale(aspect, low, high).exp(),
        position=rest[:, 0:2],
        flipped=rest[:, 2] < pipeline.flip_probability,
        jittered=rest[:, 3] < pipeline.jitter_probability,
        factors=torch.stack(factors, dim=1).float(),
        order=ORDERS[(rest[:, 8] * len(ORDERS)).long()],
        gray=rest[:, 9] < pipeline.grayscale_probability,
        blurred=rest[:, 10] < pipeline.blur_probability,
        sigma=rescale(rest[:, 11], *pipeline.blur_sigma).float(),
        solarized=solarize < pipeline.solarize_probability,
    )


def rescale(uniform: Tensor, low: float, high: float) -> Tensor:
    """Numbers of [0, 1) moved to [low, high)."""
    return low + (high - low) * uniform


def crop_boxes(
    parameters: Parameters,
    height: int,
    width: int,
    aspect_limits: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Where each crop lies in an image of that size, (N, 4): top, left, height, width.

    torchvision's rule: the first of ten attempts that fits; if none does, the largest centred crop
    with an allowed aspect (`aspect_limits`, the pipeline's `crop_aspect`).

    >>> from eqco.data.pipelines import MOCO_V2
    >>> crop_boxes(draw_parameters(MOCO_V2, 2, seed=0, step=0), 32, 32).shape
    torch.Size([2, 4])
    """
    return torch.from_numpy(fit_boxes(parameters.crops(), height, width, aspect_limits))


def fit_boxes(
    crops: np.ndarray, height: int, width: int, aspect_limits: tuple[float, float]
) -> np.ndarray:
    """`crop_boxes` of the rows of `Parameters.crops`: in numpy, quick for one image in a worker."""
    area, aspect, position = np.split(crops, [ATTEMPTS, 2 * ATTEMPTS], axis=1)
    target = area * (height * width)
    # one more column, which always fits; argmax of a mask is its first True
    narrowest, widest = aspect_limits
    spare = np.ones((len(crops), 1))
    widths = np.hstack(
        [np.rint(np.sqrt(target * aspect)), spare * min(width, round(height * widest))]
    )
    heights = np.hstack(
        [np.rint(np.sqrt(target / aspect)), spare * min(height, round(width / narrowest))]
    )
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    choice = fits.argmax(axis=1)
    rows = np.arange(len(crops))
    crop = np.stack([heights[rows, choice], widths[rows, choice]], axis=1)
    room = np.array([height, width]) - crop
    drawn = np.floor(position * (room + 1))
    corner = np.where((choice < ATTEMPTS)[:, None], drawn, room // 2)
    return np.hstack([corner, crop]).astype(np.int64)
