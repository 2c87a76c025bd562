"""Images and boxes as the detector takes them, batch by batch from any step on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eqco.data.decoding import decode
from eqco.evaluation.detection.annotations import AnnotatedImages
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["Batch", "TrainingBatches", "read_image"]


@dataclass(frozen=True)
class Batch:
    """Some images (3, H, W) from 0 to 1, each of its own size, and the objects to find in them."""

    images: list[Tensor]
    targets: list[dict[str, Tensor]]

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        return Batch(
            [image.to(device) for image in self.images],
            [{name: value.to(device) for name, value in t.items()} for t in self.targets],
        )


class TrainingBatches:
    """Batches in an order, and with flips, that are functions of (seed, step).

    Args:
        images: to train on.
        num_images: of one step, over all processes; those left over at the end of an epoch wait for
            another.
        seed: of order and flips.
        workers: processes that read images ahead; 0: none.
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
        drawn = generator_for("detection order", self.seed, epoch)
        order = torch.randperm(len(self.images), generator=drawn)
        chosen = order[place * self.num_images : (place + 1) * self.num_images].tolist()
        mirrored = generator_for("detection flips", self.seed, step)
        flips = torch.rand(self.num_images, generator=mirrored) < 0.5
        return list(zip(chosen, flips.tolist(), strict=True))

    def iterate(self, start: int, stop: int) -> Iterator[Batch]:
        """This process's share of the batches of these steps."""
        share = processes.own_rows(self.num_images)
        steps = [self.numbers(step)[share] for step in range(start, stop)]
        loader: DataLoader[Batch] = DataLoader(
            _Steps(self.images, steps),
            batch_size=None,
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(0),  # the global one is not moved
        )
        yield from loader


class _Steps(Dataset[Batch]):
    def __init__(self, images: AnnotatedImages, steps: list[list[tuple[int, bool]]]) -> None:
        self.images, self.steps = images, steps

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, place: int) -> Batch:
        examples = [example(self.images, *drawn) for drawn in self.steps[place]]
        return Batch([image for image, _ in examples], [target for _, target in examples])


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
    picture = decode(images.files[number])
    height, width = images.sizes[number]
    if (picture.height, picture.width) != (height, width):
        raise InputError(
            f"{images.files[number]} is {picture.width} x {picture.height}, but {images.name} says "
            f"{width} x {height}: its boxes are of another image. Mend the annotation."
        )
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
