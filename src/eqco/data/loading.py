"""Images in order, for evaluation."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from eqco.data.augment import evaluation_view
from eqco.data.cropping import CentreCrops, collate
from eqco.data.decoding import UnreadableImageError
from eqco.data.images import MemoryImages
from eqco.data.pipelines import MOCO_V2
from eqco.data.sources import Split
from eqco.data.stored import OnUnreadable
from eqco.runtime.devices import copy_to, iterate
from eqco.runtime.errors import InputError

__all__ = ["EvaluationLoader"]


class EvaluationLoader:
    """All images of a split in order, resized and cut at the centre, with their labels.

    Labels are -1 where there are none. The last batch may be short; under `skip` an unreadable
    image is left out and kept in `unreadable`.
    """

    def __init__(
        self,
        split: Split,
        *,
        size: int,
        batch_size: int = 256,
        workers: int = 0,
        device: torch.device | str = "cpu",
        on_unreadable: OnUnreadable = "error",
    ):
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}; it must be at least 1.")
        self.split = split
        self.size = size
        self.batch_size = batch_size
        self.workers = workers
        self.device = torch.device(device)
        self.skip = on_unreadable == "skip"
        self.unreadable: list[UnreadableImageError] = []

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.in_sizes([self.size]):
            yield images[self.size], labels

    def in_sizes(self, sizes: Sequence[int]) -> Iterator[tuple[dict[int, Tensor], Tensor]]:
        """The same in several sizes, for which every image is read once."""
        labels = self.split.labels
        if labels is None:
            labels = torch.full((len(self.split),), -1, device="cpu")
        for pixels, numbers in self.pixels(sizes):
            images = {
                size: evaluation_view(copy_to(self.device, own), size, MOCO_V2)
                for size, own in zip(sizes, pixels, strict=True)
            }
            yield images, copy_to(self.device, labels[numbers])

    def pixels(self, sizes: Sequence[int]) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
        """Pixels, for each size, and numbers of each batch, from memory or from the workers."""
        images = self.split.images
        if isinstance(images, MemoryImages):
            for numbers in torch.arange(len(images), device="cpu").split(self.batch_size):
                yield [images.pixels[numbers[0] : numbers[-1] + 1]] * len(sizes), numbers
            return
        crops = CentreCrops(images, sizes)
        loader = DataLoader(
            crops,
            batch_size=self.batch_size,
            num_workers=self.workers,
            collate_fn=collate,
            generator=torch.Generator(),  # a look must not draw from the torch-wide one
        )
        for cut, numbers, unreadable in iterate(loader):
            if unreadable and not self.skip:
                raise unreadable[0]
            self.unreadable += unreadable
            if len(numbers):
                yield cut, numbers
