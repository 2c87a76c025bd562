"""Images and boxes as the detector takes them, batch by batch from any step on."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eqco.data.decoding import UnreadableImageError, decode
from eqco.detection.annotations import AnnotatedImages
from eqco.runtime import processes
from eqco.runtime.devices import iterate
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["Batch", "TrainingBatches", "read_image"]


# images (3, H, W) from 0 to 1, each of its own size, and the boxes and labels to find in them
Batch = list[tuple[Tensor, dict[str, Tensor]]]


class TrainingBatches:
    """Batches in an order, and with flips, that are functions of (seed, step).

    A step has `num_images` over all processes; those left over at the end of an epoch wait for
    another.
    """

    def __init__(
        self, images: AnnotatedImages, *, num_images: int, seed: int, workers: int = 0
    ) -> None:
        if not 1 <= num_images <= len(images):
            raise InputError(
                f"num_images={num_images}, but {images.name} has {len(images)} images; choose 1 to "
                f"{len(images)}."
            )
        if num_images % processes.world_size():
            raise InputError(
                f"num_images={num_images} over {processes.world_size()} processes; each must get "
                f"as many. Choose a multiple of {processes.world_size()}."
            )
        self.images, self.num_images, self.seed = images, num_images, seed
        self.workers = workers
        self.steps_per_epoch = len(images) // num_images

    def numbers(self, step: int) -> list[tuple[int, bool]]:
        """The images of one step, of all processes, each with whether it is mirrored."""
        epoch, place = divmod(step, self.steps_per_epoch)
        first = place * self.num_images
        chosen = order_of(len(self.images), self.seed, epoch)[first : first + self.num_images]
        mirrored = generator_for("detection flips", self.seed, step)
        flips = torch.rand(self.num_images, generator=mirrored, device="cpu") < 0.5
        return list(zip(chosen.tolist(), flips.tolist(), strict=True))

    def iterate(self, start: int, stop: int) -> Iterator[Batch]:
        """This process's share of the batches of these steps."""
        loader: DataLoader[Batch | InputError] = DataLoader(
            _Steps(self, range(start, stop), processes.own_rows(self.num_images)),
            batch_size=None,
            num_workers=self.workers,
            generator=torch.Generator(),  # else the torch-wide one is drawn from
        )
        for batch in iterate(loader):
            if isinstance(batch, InputError):
                raise batch
            yield batch


class _Steps(Dataset[Batch | InputError]):
    """The batches of these steps; a refusal is passed on as a value, whole from any worker."""

    def __init__(self, batches: TrainingBatches, steps: range, share: slice) -> None:
        self.batches, self.steps, self.share = batches, steps, share

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, place: int) -> Batch | InputError:
        drawn = self.batches.numbers(self.steps[place])[self.share]
        try:
            return [example(self.batches.images, *each) for each in drawn]
        except InputError as error:
            return error


@lru_cache(maxsize=2)
def order_of(count: int, seed: int, epoch: int) -> Tensor:
    """The order of all images in one epoch."""
    generator = generator_for("detection order", seed, epoch)
    return torch.randperm(count, generator=generator, device="cpu")


def example(
    images: AnnotatedImages, number: int, mirrored: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """One image and what the detector is to find in it; crowds are not to be found."""
    image = read_image(images, number)
    objects = images.objects(number)
    boxes, labels = objects.boxes[~objects.crowd], objects.labels[~objects.crowd]
    if mirrored:
        image = image.flip(2)
        left, top, right, bottom = boxes.unbind(1)
        width = image.shape[2]
        boxes = torch.stack([width - right, top, width - left, bottom], dim=1)
    return image, {"boxes": boxes, "labels": labels}


def read_image(images: AnnotatedImages, number: int) -> Tensor:
    """One image, (3, H, W), from 0 to 1; its size must be what its annotation says."""
    try:
        picture = decode(images.files[number])
    except UnreadableImageError as error:
        raise InputError(
            f"{error.name} cannot be read: {error.reason}. Restore it, or remove the image from "
            f"the annotations."
        ) from error
    height, width = images.sizes[number]
    if (picture.height, picture.width) != (height, width):
        raise InputError(
            f"{images.files[number]} is {picture.width} x {picture.height}, but {images.name} says "
            f"{width} x {height}: its boxes are of another image. Mend the annotation."
        )
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
