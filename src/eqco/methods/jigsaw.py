"""Jigsaw patches of a view, and the branch that embeds them (PIRL, InfoMin)."""

import torch
from torch import Tensor, nn

from eqco.data import ViewSpec, find_pipeline
from eqco.encoders import Encoder
from eqco.methods.base import MethodParts, check_least_side
from eqco.runtime import processes
from eqco.runtime.devices import copy_to
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["JigsawBranch", "jigsaw_patches", "jigsaw_view", "patch_side"]

GRID = 3
# Published: images of 224 pixels, a jigsaw of 255 in cells of 85, patches of 64.
IMAGE, CELL, PATCH = 224, 85, 64


def jigsaw_view(pipeline: str, image_size: int) -> ViewSpec:
    """The view that patches are cut from: a ninth larger than the image, in the published ratio.

    >>> jigsaw_view("jigsaw", 224).size, jigsaw_view("jigsaw", 32).size
    (255, 36)
    """
    check_least_side("jigsaw patches", lambda size: patch_side(jigsaw_side(size)), image_size)
    return ViewSpec(find_pipeline(pipeline), jigsaw_side(image_size))


def jigsaw_side(image_size: int) -> int:
    """Pixels along each side of the view that patches are cut from, a multiple of 3."""
    return GRID * round(image_size * CELL / IMAGE)


def patch_side(side: int) -> int:
    """Pixels along each side of the patches of a view of that side.

    >>> patch_side(255), patch_side(36)
    (64, 9)
    """
    return round(side // GRID * PATCH / CELL)


def jigsaw_patches(views: Tensor, *, seed: int, step: int) -> Tensor:
    """A patch at a random place of each of 3 × 3 cells, in a random order: (n, 9, C, p, p).

    The draws are a function of (seed, step), made for the batch of all processes and sliced.

    Args:
        views: of this process, (n, C, side, side), with a side that 3 divides.
        seed: the run's seed.
        step: each has its own draws.
    """
    n, _, height, width = views.shape
    cell, patch = height // GRID, patch_side(height)
    if height != width or height % GRID or patch < 1:
        raise InputError(
            f"views of {height} × {width} pixels; a jigsaw is cut from squares whose side is a "
            f"multiple of {GRID}, such as those of jigsaw_view."
        )
    total = n * processes.world_size()
    own = processes.own_rows(total)
    generator = generator_for("jigsaw", seed, step)
    shape = (total, GRID * GRID)
    corners = torch.randint(cell - patch + 1, (2, *shape), generator=generator, device="cpu")
    order = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu").argsort(1)
    starts = cell * torch.stack([order // GRID, order % GRID]) + corners
    places = copy_to(views.device, starts[:, own, :, None] + torch.arange(patch, device="cpu"))
    rows, columns = places[0, :, :, :, None], places[1, :, :, None, :]
    image = torch.arange(n, device=views.device).view(n, 1, 1, 1)
    # channels come last in memory, as convolutions like them
    return views[image, :, rows, columns].permute(0, 1, 4, 2, 3)


class JigsawBranch(nn.Module):
    """Patches -> features of the shared backbone -> a head of their own -> one embedding.

    The head is of the recipe's kind, for each patch; a linear layer joins the nine, in the order in
    which the patches come.
    """

    def __init__(self, dim: int, parts: MethodParts):
        super().__init__()
        self.seed = parts.seed
        # a head like the encoder's, with weights of its own draw
        self.head = parts.make_encoder(1).head
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator_for("jigsaw head", parts.seed).initial_seed())
            self.joint = nn.Linear(GRID * GRID * dim, dim)

    def forward(self, encoder: Encoder, views: Tensor, step: int) -> Tensor:
        """Embeddings of the jigsaws of these views, (n, D)."""
        patches = jigsaw_patches(views, seed=self.seed, step=step)
        features = self.head(encoder.features(patches.flatten(0, 1)))
        embeddings: Tensor = self.joint(features.view(len(views), -1))
        return embeddings


def check_weight(weight: float) -> None:
    """Refuse a share of the loss that is none."""
    if not 0 < weight < 1:
        raise InputError(
            f"method.jigsaw_weight={weight}; the patches' share of the loss lies between 0 and 1, "
            f"and is neither."
        )
