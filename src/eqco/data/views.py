"""What the data hand to the methods: batches of views, and what a view is."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from eqco.data.pipelines import Pipeline, find_pipeline, pipeline_pair

__all__ = ["Batch", "DataSettings", "ViewSpec"]


@dataclass(frozen=True)
class Batch:
    """Some images, each seen several times, on the training device.

    Args:
        views: one tensor for each `ViewSpec`, (n, 3, size, size).
        index: the place of each image in the data set, (n,).
    """

    views: tuple[Tensor, ...]
    index: Tensor


@dataclass(frozen=True)
class ViewSpec:
    """How one view of an image is made: its augmentation, and pixels along each side."""

    pipeline: Pipeline
    size: int


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """From images to views."""

    image_size: int = 224
    """Pixels along each side of a view."""
    pipeline: Literal["mocov1", "mocov2", "simclr", "byol", "mocov3"] = "mocov2"
    """The augmentation; mocov2 is also that of SiMo, which is MoCo without a queue. byol and mocov3
    make the second view in another way than the first."""
    workers: int = 0
    """Processes that decode images from disk; sets held in memory need none."""
    on_unreadable: Literal["error", "skip"] = "error"
    """An image that cannot be read: stop and name it, or go on and list it in the run directory."""

    @property
    def view(self) -> ViewSpec:
        """A view of this size and augmentation."""
        return ViewSpec(find_pipeline(self.pipeline), self.image_size)

    @property
    def pair(self) -> tuple[ViewSpec, ViewSpec]:
        """Two views of this size and augmentation."""
        first, second = pipeline_pair(self.pipeline)
        return ViewSpec(first, self.image_size), ViewSpec(second, self.image_size)
