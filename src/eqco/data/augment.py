"""A pipeline applied to a whole batch on the training device."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eqco.data.blur import gaussian_blur_, gaussian_taps, needed_radius
from eqco.data.colour import (
    grayscale_,
    hue_offsets,
    hue_round,
    jitter_,
    jitter_bands_,
    jitter_columns,
    solarize_,
    without_colours,
)
from eqco.data.parameters import Parameters, crop_boxes
from eqco.data.pipelines import Pipeline, blur_radius
from eqco.data.randaugment import apply_operations_
from eqco.data.resize import centre_crop, resized_crop, resized_crop_in_turn
from eqco.runtime.devices import copy_to
from eqco.runtime.errors import InputError

__all__ = ["Augment", "evaluation_view"]

# Pixels (times channels) worked on at once by a CPU, so that the copies stay in its cache.
CPU_CHUNK = 3 << 17
CPU_LARGE = 48  # side from which a CPU crops one image after the other; measured
NO_HUE = 4  # the round of images without jitter


class Augment:
    """One view of each image, as the drawn parameters say: a function, without state.

    Computes in float32 whatever comes in and goes out, also under autocast. Images may have any
    number of bands: `Pipeline.left_out` says which operations apply to three alone.
    """

    def __init__(self, pipeline: Pipeline, size: int, dtype: torch.dtype = torch.float32):
        if size < 2:
            raise InputError(f"size={size}; a view needs at least 2 pixels a side.")
        self.pipeline = pipeline
        self.size = size
        self.dtype = dtype

    def __call__(self, images: Tensor, parameters: Parameters) -> Tensor:
        """Crop, colours, blur, solarisation, RandAugment, flip, normalisation.

        Returns (N, C, size, size) in `dtype`.

        Images are uint8, or float in [0, 1], (N, C, H, W).
        """
        return self._in_chunks(images, parameters, cropped=False)

    def after_crop(self, crops: Tensor, parameters: Parameters) -> Tensor:
        """Flip, colours, blur and normalisation of images that were cropped elsewhere."""
        if crops.shape[2:] != (self.size, self.size):
            raise InputError(f"crops of {tuple(crops.shape[2:])}; they must be {self.size} square.")
        return self._in_chunks(crops, parameters, cropped=True)

    @torch.no_grad()
    def _in_chunks(self, images: Tensor, parameters: Parameters, cropped: bool) -> Tensor:
        if len(images) != len(parameters):
            raise InputError(f"{len(images)} images, but parameters for {len(parameters)}.")
        device = images.device
        channels = images.shape[1]
        shape = (len(images), channels, self.size, self.size)
        views = torch.empty(shape, dtype=self.dtype, device=device)
        on_cpu = device.type == "cpu"
        chunk = self._chunk(len(images), channels) if on_cpu else max(1, len(images))
        plan = AugmentPlan.of(parameters, self.pipeline, self.size, channels, chunk, device)
        height, width = images.shape[2:]
        boxes = crop_boxes(parameters, height, width, self.pipeline.crop_aspect)
        if on_cpu and self.size >= CPU_LARGE and not cropped:
            images, cropped = resized_crop_in_turn(images, boxes, self.size), True
        boxes = copy_to(device, boxes[plan.order])
        with torch.autocast(device.type, enabled=False):
            for first in range(0, len(images), chunk):
                rows = slice(first, min(first + chunk, len(images)))
                if cropped:
                    both = torch.cat([images[rows], images[rows].flip(3)])
                    place = plan.place[rows] + plan.flipped[rows] * (rows.stop - rows.start)
                    part = as_float(both.index_select(0, place))
                else:
                    part = as_float(images[rows].index_select(0, plan.place[rows]))
                    part = resized_crop(part, boxes[rows], self.size, plan.flipped[rows])
                self._colours_(part, plan, rows)
                self._blur_(part, plan, rows)
                if self.pipeline.solarize_probability:
                    solarize_(part, plan.solarized[rows])
                self._operations_(part, plan, rows)
                part.sub_(plan.mean).div_(plan.std)
                torch.index_select(part.to(self.dtype), 0, plan.back[rows], out=views[rows])
        return views

    def _chunk(self, count: int, channels: int) -> int:
        """Images worked on at once by a CPU: about CPU_CHUNK of memory, all chunks alike."""
        most = max(3, CPU_CHUNK // (channels * self.size**2))
        return max(1, math.ceil(count / max(1, round(count / most))))

    def _colours_(self, views: Tensor, plan: "AugmentPlan", rows: slice) -> None:
        rounds = plan.rounds[rows]
        jittered = slice(rows.start, rows.stop - rounds.count(NO_HUE))
        count = jittered.stop - jittered.start
        columns = plan.columns[:, :, jittered]
        if views.shape[1] != 3:
            if count:
                jitter_bands_(views[:count], columns)
            return
        if self.pipeline.grayscale_first:
            grayscale_(views, plan.gray_places(rows))
        if count:
            jitter_(views[:count], rounds[:count], columns, plan.offsets[jittered])
        if not (self.pipeline.grayscale_first or self.pipeline.operations):
            grayscale_(views, plan.gray_places(rows))

    def _operations_(self, views: Tensor, plan: "AugmentPlan", rows: slice) -> None:
        if not self.pipeline.operations:
            return
        apply_operations_(views, plan.operation[rows], plan.level[rows], plan.mean)
        if views.shape[1] == 3 and not self.pipeline.grayscale_first:
            grayscale_(views, plan.gray_places(rows))

    def _blur_(self, views: Tensor, plan: "AugmentPlan", rows: slice) -> None:
        sigma = plan.sigma[rows]
        for blurred, run in itertools.groupby(range(len(sigma)), lambda i: sigma[i] > 0):
            places = list(run)
            first, last = places[0], places[-1] + 1
            radius = needed_radius(max(sigma[first:last]), blur_radius(self.size))
            if blurred and radius:
                taps = plan.taps[rows.start + first : rows.start + last, : radius + 1]
                gaussian_blur_(views[first:last], taps)


@dataclass(frozen=True)
class AugmentPlan:
    """The parameters as the operations take them, once for the batch.

    Inside each chunk the images are sorted so that every operation finds its own side by side: by
    the round in which the hue turns, those without jitter last; in these groups by blur, there and
    back again, so that the stretches to blur join.
    """

    order: Tensor  # (N,) number of the image at each place, on the CPU
    place: Tensor  # (N,) the same inside its chunk
    back: Tensor  # (N,) inside a chunk, the place of each image
    flipped: Tensor  # (N,) bool
    rounds: list[int]
    gray: list[bool]
    sigma: list[float]  # 0 for images that are not blurred
    columns: Tensor  # (3, 4, N, 1, 1, 1); (3, 2, …) without colours
    offsets: Tensor  # (N, 3, 1, 1)
    taps: Tensor  # (N, radius + 1)
    solarized: Tensor  # (N,) bool
    operation: Tensor  # (N, R), on the CPU
    level: Tensor  # (N, R), on the CPU
    mean: Tensor  # (C, 1, 1)
    std: Tensor  # (C, 1, 1)

    @staticmethod
    def of(
        parameters: Parameters,
        pipeline: Pipeline,
        size: int,
        channels: int,
        chunk: int,
        device: torch.device,
    ) -> "AugmentPlan":
        """The plan of these parameters for chunks of that many images."""
        mean, std = pipeline.normalisation(channels)
        numbers = torch.arange(len(parameters), device="cpu")
        rounds = torch.where(parameters.jittered, hue_round(parameters.order), NO_HUE)
        inside = 2 * rounds + (parameters.blurred ^ (rounds % 2 == 1))
        order = (numbers // chunk * 16 + inside).argsort()
        sigma = parameters.sigma * parameters.blurred
        parameters = parameters[order]
        turns = parameters.order if channels == 3 else without_colours(parameters.order)
        return AugmentPlan(
            order=order,
            place=copy_to(device, order % chunk),
            back=copy_to(device, order.argsort() % chunk),
            flipped=copy_to(device, parameters.flipped),
            rounds=rounds[order].tolist(),
            gray=parameters.gray.tolist(),
            sigma=sigma[order].tolist(),
            columns=copy_to(device, jitter_columns(turns, parameters.factors)),
            offsets=copy_to(device, hue_offsets(parameters.factors[:, 3])),
            taps=copy_to(device, gaussian_taps(parameters.sigma, blur_radius(size))),
            solarized=copy_to(device, parameters.solarized),
            operation=parameters.operation,
            level=parameters.level,
            mean=copy_to(device, torch.tensor(mean, device="cpu"))[:, None, None],
            std=copy_to(device, torch.tensor(std, device="cpu"))[:, None, None],
        )

    def gray_places(self, rows: slice) -> Tensor:
        """Places inside the chunk of the images that turn grey."""
        places = [place for place, gray in enumerate(self.gray[rows]) if gray]
        return copy_to(self.place.device, torch.tensor(places, dtype=torch.long, device="cpu"))


def as_float(images: Tensor) -> Tensor:
    """Pixels in [0, 1] as float32, a copy."""
    if images.dtype == torch.uint8:
        return images.float().div_(255)
    return images.to(torch.float32, copy=True)


@torch.no_grad()
def evaluation_view(images: Tensor, size: int, pipeline: Pipeline) -> Tensor:
    """Resize, centre crop, normalisation: what a frozen encoder is tested on.

    Images are uint8, or float in [0, 1], (N, C, H, W); see `resized_sides` for what is cut off.
    """
    mean, std = (
        copy_to(images.device, torch.tensor(each, device="cpu"))[:, None, None]
        for each in pipeline.normalisation(images.shape[1])
    )
    with torch.autocast(images.device.type, enabled=False):
        pixels = as_float(images)
        if pixels.shape[2:] != (size, size):
            pixels = centre_crop(pixels, size)
        return pixels.sub_(mean).div_(std)
