"""CPC v2: from the patches above, find those further down among the patches of all images."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.contrast import Contrast, Negatives, sampled_negatives
from eqco.contrast.normaliser import RememberingObjective
from eqco.data import Batch, DataSettings, ViewSpec
from eqco.methods.base import (
    Method,
    MethodParts,
    MethodSettings,
    StepOutput,
    check_count,
    check_least_side,
)
from eqco.runtime import processes
from eqco.runtime.devices import copy_to
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["CPC", "CPCSettings", "ContextNetwork", "cut_patches", "patch_places"]

CONTEXT_BLOCKS = 5


@dataclass(frozen=True, kw_only=True)
class CPCSettings(MethodSettings):
    """CPC v2: predictions of patches among the patches of all images, from one view of each."""

    name = "cpc"
    symmetric = True
    cacheable = False
    unwritten: ClassVar[Mapping[str, Any]] = {"count": None}

    grid: int = 6
    """Patches along each side of the view."""
    patch_share: float = 4 / 13
    """Side of a patch as a share of the view's: 80 of 260 pixels as published."""
    other_images_only: bool = False
    """Negatives are patches of other images alone, which are independent of the query, as EqCo's
    rule asks; otherwise all patches but the positive, as published."""
    count: int | None = None
    """Negatives drawn for each query from the patches of other images, with other_images_only;
    None: all that there are."""
    four_directions: bool = True
    """Predict upwards and to both sides as well, each with a context network of its own."""
    colour_drop: bool = False
    """Each patch keeps one of its bands, drawn for it, as published; others become the mean."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """dot: of vectors of any length, as published, with objective.temperature 10; in place of f̂
    and gradients the rank of the embeddings is shown then."""

    def views(self, data: DataSettings) -> tuple[ViewSpec, ...]:
        """One view, in which the patches must fit, and a patch and its target not overlap."""
        side, size = data.image_size, self.patch_size(data.image_size)
        if size < 1 or len(set(patch_places(side, self.grid, size))) < self.grid:
            raise InputError(
                f"method.grid={self.grid} patches of method.patch_share={self.patch_share:g} along "
                f"the {side} pixels of data.image_size: patches of {size} pixels have at most "
                f"{max(0, side - max(size, 1) + 1)} places there. Lower --method.grid, or raise "
                f"--data.image-size."
            )
        gap = fitting = self.smallest_gap(side)
        if gap < size:
            while replace(self, patch_share=fitting / side).smallest_gap(side) < fitting:
                fitting -= 1
            raise InputError(
                f"method.patch_share={self.patch_share:g} of the {side} pixels of data.image_size "
                f"makes patches of {size} pixels, and with method.grid={self.grid} some patch and "
                f"the one that it predicts begin {gap} pixels apart: they would overlap. Give "
                f"--method.patch-share {fitting / side:.3g} (patches of {fitting}), or another "
                f"--data.image-size."
            )
        check_least_side("patches", self.patch_size, side)
        return (data.view,)

    def input_sizes(self, data: DataSettings) -> tuple[int, ...]:
        """The image, as it is evaluated, and the patches."""
        return (data.image_size, self.patch_size(data.image_size))

    def encoded_at_once(self, num_queries: int, data: DataSettings) -> tuple[int, int]:
        """The patches of all images.

        >>> CPCSettings().encoded_at_once(16, DataSettings(image_size=260))
        (576, 80)
        """
        return num_queries * self.grid**2, self.patch_size(data.image_size)

    def patch_size(self, side: int) -> int:
        """Pixels along each side of a patch.

        >>> CPCSettings().patch_size(260)
        80
        """
        return round(self.patch_share * side)

    def smallest_gap(self, side: int) -> int:
        """The fewest pixels between the beginnings of a patch and of one that it predicts.

        Places are whole pixels, so that it may be less than the share of the side says.

        >>> CPCSettings().smallest_gap(260), CPCSettings(grid=3, patch_share=1 / 3).smallest_gap(32)
        (108, 10)
        """
        places, first = patch_places(side, self.grid, self.patch_size(side)), self.offsets[0]
        return min(later - now for now, later in zip(places, places[first:], strict=False))

    @property
    def offsets(self) -> range:
        """How many places away predicted patches are: from the first that does not overlap.

        >>> CPCSettings().offsets
        range(3, 6)
        """
        stride = (1 - self.patch_share) / (self.grid - 1)
        return range(math.ceil(self.patch_share / stride - 1e-9), self.grid)

    @property
    def num_contrasts(self) -> int:
        """One for each offset and direction."""
        return len(self.contrast_queries)

    @property
    def contrast_queries(self) -> tuple[int, ...]:
        """Fewer the further away the predicted patches are.

        >>> CPCSettings(four_directions=False).contrast_queries
        (18, 12, 6)
        """
        directions = 4 if self.four_directions else 1
        return directions * tuple((self.grid - offset) * self.grid for offset in self.offsets)

    @property
    def independent_negatives(self) -> bool:
        """Patches of a query's own image depend on it."""
        return self.other_images_only

    def able_to_draw(self) -> Self:
        """With negatives of other images only, from which `count` are drawn."""
        return replace(self, other_images_only=True)

    def num_batch_negatives(self, num_queries: int) -> int:
        """All patches but the positive, or those of other images."""
        patches = self.grid**2
        return (num_queries - 1) * patches if self.other_images_only else num_queries * patches - 1

    def num_batch_keys(self, num_queries: int) -> int:
        """All patches of all images."""
        return num_queries * self.grid**2

    def num_negatives(self, num_queries: int) -> int:
        """K: all that are offered, or those drawn."""
        return self.num_batch_negatives(num_queries) if self.count is None else self.count

    def check(self, *, num_queries: int) -> None:
        """Refuse patches as large as the image, and negatives that a batch does not offer."""
        if self.grid < 2:
            raise InputError(f"method.grid={self.grid}; it must be at least 2.")
        if not 0 < self.patch_share <= 0.5:
            raise InputError(
                f"method.patch_share={self.patch_share:g}; a patch must be smaller than its image, "
                f"and leave room for another that it predicts: greater than 0 and at most 0.5, "
                f"such as --method.patch-share 0.3."
            )
        if self.other_images_only and num_queries < 2:
            raise InputError(
                f"method.other_images_only with a micro-batch of {num_queries}, which has no other "
                f"images. Raise --training.num-queries or lower --training.accumulation-steps."
            )
        if self.count is None:
            return
        if not self.other_images_only:
            raise InputError(
                f"method.count={self.count} with method.other_images_only=False, which scores each "
                f"query against all patches, those of its own image too; negatives are drawn from "
                f"other images. Add --method.other-images-only, or leave --method.count out."
            )
        offered = self.num_batch_negatives(num_queries)
        check_count(self.count, offered=offered, num_queries=num_queries)

    def build(self, parts: MethodParts) -> "CPC":
        """One encoder of patches; for each direction a context network and its predictors."""
        return CPC(self, parts)


class CPC(Method):
    """Each offset and direction is one contrast, with a predictor of its own; losses are added.

    The encoder sees patches. It is evaluated on whole images, where it pools over all of them.

    Paper: published code pools the features of the patches themselves; a convolutional encoder
    makes much the same of the whole image at the same scale, and is exported as it is. The 300
    pixels that crops of 260 are cut from, elastic deformation and shear are left to the pipeline.
    """

    def __init__(self, settings: CPCSettings, parts: MethodParts):
        super().__init__()
        if isinstance(parts.objective, RememberingObjective):
            raise InputError(
                "objective.normaliser=instance with cpc, whose images have many queries each, and "
                "a history belongs to one. Give --objective.normaliser batch."
            )
        self.settings, self.objective, self.seed = settings, parts.objective, parts.seed
        self.encoder = parts.make_encoder()
        features, dim = self.encoder.feature_dim, self.encoder.embedding_dim
        directions = range(4 if settings.four_directions else 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator_for("predictors", parts.seed).initial_seed())
            self.contexts = nn.ModuleList(ContextNetwork(features) for _ in directions)
            self.predictors = nn.ModuleList(
                nn.ModuleList(nn.Conv2d(features, dim, 1) for _ in settings.offsets)
                for _ in directions
            )

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """Queries are predictions, keys the targets of all patches of all processes."""
        settings, (view,) = self.settings, batch.views
        grid, size = settings.grid, settings.patch_size(view.shape[-1])
        patches = cut_patches(view, patch_places(view.shape[-1], grid, size), size)
        if settings.colour_drop:
            kept = kept_bands(len(patches), view.shape[1], self.seed, step)
            patches = patches * copy_to(patches.device, kept.to(patches.dtype))
        features = self.encoder.features(patches)
        targets = self.encoder.head(features)
        keys = processes.gather_with_gradient(targets)
        numbers = torch.arange(len(keys), device=keys.device)[processes.own_rows(len(keys))]
        numbers = numbers.view(-1, grid, grid)
        places = features.reshape(*numbers.shape, -1).permute(0, 3, 1, 2)
        contrasts: list[Contrast] = []
        for turn, (context, predictors) in enumerate(
            zip(self.contexts, self.predictors, strict=True)
        ):
            seen = context(places.rot90(turn, (2, 3)))
            turned = numbers.rot90(turn, (1, 2))
            assert isinstance(predictors, nn.ModuleList)
            for offset, predictor in zip(settings.offsets, predictors, strict=True):
                predicted = predictor(seen)[:, :, : grid - offset]
                queries = predicted.permute(0, 2, 3, 1).flatten(0, 2)
                positive = turned[:, offset:].flatten()
                excluded = positive[:, None]
                if settings.other_images_only:
                    whole = torch.arange(grid**2, device=keys.device)
                    excluded = excluded // grid**2 * grid**2 + whole
                negatives = Negatives(keys, excluded=excluded)
                if settings.count is not None:
                    draw = step * settings.num_contrasts + len(contrasts)
                    negatives = self.draw(negatives, settings.count, draw)
                contrasts.append(
                    Contrast(
                        queries,
                        keys[positive],
                        negatives,
                        independent=settings.independent_negatives,
                    )
                )
        embeddings = None
        if self.objective.similarity == "dot":
            # one for each image: the mean of its patches' targets
            embeddings = targets.detach().view(len(numbers), grid**2, -1).mean(dim=1)
        return StepOutput(self.objective(contrasts), contrasts, embeddings=embeddings)

    def draw(self, pool: Negatives, count: int, draw: int) -> Negatives:
        """`count` of a pool for each of this process's queries, or the pool where these are all;
        `draw` tells draws apart.
        """
        if count == pool.num_negatives:
            return pool
        assert pool.excluded is not None
        total = len(pool.excluded) * processes.world_size()
        index = torch.arange(total, device=pool.keys.device)[processes.own_rows(total)]
        return sampled_negatives(
            pool, count, seed=self.seed, step=draw, index=index, num_queries=total
        )

    def after_step(self, output: StepOutput) -> None:
        """Nothing to keep: every key is of the current batch."""


class ContextNetwork(nn.Module):
    """What its own row and those above tell at each place: (N, D, rows, columns), as it comes.

    Residual blocks that look at three columns and one more row up; what lies beyond is zero. They
    are an eighth as wide as the features: 256 for ResNet-50, as published.
    """

    def __init__(self, dim: int):
        super().__init__()
        width = max(dim // 8, min(dim, 16))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(dim, width, 1),
                nn.ReLU(),
                nn.Conv2d(width, width, (1, 3), padding=(0, 1)),
                nn.ZeroPad2d((0, 0, 1, 0)),
                nn.Conv2d(width, width, (2, 1)),
                nn.ReLU(),
                nn.Conv2d(width, dim, 1),
            )
            for _ in range(CONTEXT_BLOCKS)
        )

    def forward(self, places: Tensor) -> Tensor:
        """The context at each place."""
        for block in self.blocks:
            places = places + block(places)
        return F.relu(places)


def patch_places(side: int, grid: int, size: int) -> list[int]:
    """First pixels of patches along a side, evenly spread.

    >>> patch_places(260, 6, 80)
    [0, 36, 72, 108, 144, 180]
    """
    return [round(place * (side - size) / (grid - 1)) for place in range(grid)]


def cut_patches(images: Tensor, places: list[int], size: int) -> Tensor:
    """The patches of each image, row by row, image after image: (N · grid², C, size, size)."""
    patches = [
        images[:, :, top : top + size, left : left + size] for top in places for left in places
    ]
    return torch.stack(patches, dim=1).flatten(0, 1)


def kept_bands(count: int, channels: int, seed: int, step: int) -> Tensor:
    """1 for the band that each of this process's patches keeps, else 0, (count, channels, 1, 1)."""
    total = count * processes.world_size()
    generator = generator_for("kept band", seed, step)
    kept = torch.randint(channels, (total,), generator=generator, device="cpu")
    return F.one_hot(kept[processes.own_rows(total)], channels)[:, :, None, None]
