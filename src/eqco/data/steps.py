"""Batches of views as a function of (seed, step)."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from eqco.data.augment import Augment
from eqco.data.cropping import RandomCrops, collate
from eqco.data.decoding import UnreadableImageError
from eqco.data.images import MemoryImages
from eqco.data.parameters import STREAM_ORDER, Parameters, counter_generator, draw_parameters
from eqco.data.sources import Split, write_unreadable
from eqco.data.stored import OnUnreadable
from eqco.data.views import Batch, ViewSpec
from eqco.runtime.devices import copy_to, iterate
from eqco.runtime.errors import InputError

__all__ = ["StepLoader"]


class StepLoader:
    """Views of a batch of images, for any step, at once.

    What comes in step t is a function of (seed, t) for the global batch: each epoch visits the
    images in an order of its own, the last incomplete batch is left out, and a process takes its
    slice. The number of processes and workers changes nothing, and training resumes in the middle
    of an epoch by asking for the next step.
    """

    def __init__(
        self,
        split: Split,
        views: Sequence[ViewSpec],
        *,
        num_queries: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        accumulation_steps: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        on_unreadable: OnUnreadable = "error",
        unreadable_list: Path | None = None,
    ):
        """Args are numbers and values; nothing is read yet.

        Args:
            split: the images.
            views: how each view of an image is made.
            num_queries: images per step over all processes.
            seed: of order and views.
            rank: this process.
            world_size: number of processes.
            accumulation_steps: micro-batches that a batch is computed in, one after the other; a
                process takes its share of each. `world_size · accumulation_steps` must divide
                `num_queries`.
            workers: processes that decode and crop, for images on disk.
            device: where views are made.
            channels_last: memory layout of the views.
            on_unreadable: an image that cannot be read stops the training, or is replaced by the
                next one of its split and listed.
            unreadable_list: file in the run directory for that list.
        """
        if not 1 <= num_queries <= len(split):
            raise InputError(
                f"training.num_queries={num_queries}, but the split {split.name!r} has "
                f"{len(split)} images; give --training.num-queries {len(split)} or less."
            )
        if num_queries % (world_size * accumulation_steps):
            cut = f" in {accumulation_steps} micro-batches" if accumulation_steps > 1 else ""
            raise InputError(
                f"training.num_queries={num_queries} cannot be shared by {world_size} "
                f"processes{cut}; give --training.num-queries a multiple of "
                f"{world_size * accumulation_steps}."
            )
        self.split = split
        self.views = views
        self.num_queries = num_queries
        self.seed = seed
        self.workers = workers
        self.device = torch.device(device)
        self.augments = [Augment(view.pipeline, view.size) for view in views]
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.accumulation_steps = accumulation_steps
        self.skip = on_unreadable == "skip"
        self.unreadable_list = unreadable_list
        self.unreadable: dict[str, UnreadableImageError] = {}
        shares = torch.arange(num_queries, device="cpu").view(accumulation_steps, world_size, -1)
        self.rows = shares[:, rank].flatten()
        self.pixels: Tensor | None = None
        if isinstance(split.images, MemoryImages):
            self.pixels = split.images.pixels.to(self.device)
        self.crops = RandomCrops(split.images, views, self.skip)
        self._epoch: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in the split."""
        return len(self.split) // self.num_queries

    def numbers(self, step: int) -> Tensor:
        """The images of the global batch, (num_queries,)."""
        epoch, within = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            generator = counter_generator(self.seed, STREAM_ORDER, epoch)
            self._epoch = epoch, torch.from_numpy(generator.permutation(len(self.split)))
        return self._epoch[1][within * self.num_queries : (within + 1) * self.num_queries]

    def draws(self, step: int) -> list[Parameters]:
        """The parameters of each view, for this process's images."""
        return [
            draw_parameters(
                view.pipeline, self.num_queries, seed=self.seed, step=step, view=number
            )[self.rows]
            for number, view in enumerate(self.views)
        ]

    def micro_batches(self, step: int) -> list[Batch]:
        """This process's images in that step."""
        if self.pixels is None:
            crops = collate([self.crops[request] for request in self.requests(step)])
            return self.finish(step, *crops)
        numbers = copy_to(self.device, self.numbers(step)[self.rows])
        images = self.pixels.index_select(0, numbers)
        drawn = zip(self.augments, self.draws(step), strict=True)
        return self.cut([augment(images, draws) for augment, draws in drawn], numbers)

    def cut(self, views: list[Tensor], numbers: Tensor) -> list[Batch]:
        """Micro-batches of equal size."""
        laid_out = [view.contiguous(memory_format=self.layout) for view in views]
        pieces = [each.chunk(self.accumulation_steps) for each in (*laid_out, numbers)]
        return [Batch(tuple(views), index) for *views, index in zip(*pieces, strict=True)]

    def iterate(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[list[Batch]]:
        """Micro-batches of step after step, read ahead by workers; for ever without `stop_step`."""
        steps = Steps(self, start_step, stop_step)
        if self.pixels is not None or not self.workers:
            for step in steps.numbers():
                yield self.micro_batches(step)
            return
        loader = DataLoader(
            self.crops,
            batch_sampler=steps,
            num_workers=self.workers,
            collate_fn=collate,
            # else the torch-wide one is drawn from, and dropout differs after a resume
            generator=torch.Generator(),
            pin_memory=self.device.type == "cuda",
        )
        batches = iterate(loader)
        for step in steps.numbers():
            try:
                crops = next(batches)
            except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
                # what the data set itself raised, which a worker hands over as "Caught …"
                if not self.workers or str(error).startswith("Caught"):
                    raise
                # a worker died, which leaves no time to say on what, and may break off a batch that
                # it was handing over
                reason = str(error) if isinstance(error, RuntimeError) else lost_worker()
                names = [self.split.images.name(number) for number, _ in self.requests(step)]
                raise RuntimeError(
                    f"a worker process ended while reading for step {step}, which needs "
                    f"{names[0]} … {names[-1]}: {reason or repr(error)}"
                ) from error
            yield self.finish(step, *crops)

    def requests(self, step: int) -> list[tuple[int, np.ndarray]]:
        """What to read in that step: number and crops, (V, 22), of each image of this process."""
        crops = np.stack([parameters.crops() for parameters in self.draws(step)], axis=1)
        return list(zip(self.numbers(step)[self.rows].tolist(), crops, strict=True))

    def finish(
        self,
        step: int,
        crops: list[Tensor],
        numbers: Tensor,
        unreadable: tuple[UnreadableImageError, ...],
    ) -> list[Batch]:
        """Colours, blur, flip and normalisation on the device, for crops of the workers."""
        self.note_unreadable(unreadable)
        drawn = zip(self.augments, crops, self.draws(step), strict=True)
        views = [
            augment.after_crop(copy_to(self.device, each), draws) for augment, each, draws in drawn
        ]
        return self.cut(views, copy_to(self.device, numbers))

    def note_unreadable(self, unreadable: tuple[UnreadableImageError, ...]) -> None:
        """Stop at an unreadable image, or list it once."""
        fresh = {error.name: error for error in unreadable if error.name not in self.unreadable}
        if fresh and not self.skip:
            raise next(iter(fresh.values()))
        self.unreadable |= fresh
        if len(self.unreadable) >= len(self.split):
            raise InputError(f"none of the {len(self.split)} images of this split can be read.")
        if self.unreadable_list is not None:
            write_unreadable(self.unreadable_list, list(fresh.values()))


def lost_worker() -> str:
    """What torch says of a lost worker.

    It raises from a signal handler, wherever the program is when the signal comes, which may be
    after the worker's last batch broke off: so wait for it here.
    """
    try:
        time.sleep(0.5)
    except RuntimeError as error:
        return str(error)
    return ""


class Steps:
    """The requests of step after step: a batch sampler for workers."""

    def __init__(self, loader: StepLoader, start: int, stop: int | None):
        self.loader = loader
        self.start = start
        self.stop = stop

    def numbers(self) -> Iterator[int]:
        """The steps."""
        step = self.start
        while self.stop is None or step < self.stop:
            yield step
            step += 1

    def __iter__(self) -> Iterator[list[tuple[int, np.ndarray]]]:
        return map(self.loader.requests, self.numbers())
