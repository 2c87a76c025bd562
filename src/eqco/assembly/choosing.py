"""From a folder and a machine to what the rules need to know, and to a recipe."""

import copy
import math
import shutil
import time
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any

import torch
from torch import nn

from eqco.assembly.parts import build_components, probed_splits, training_split
from eqco.data import Source, Split
from eqco.data.cache import CachedImages, cached_side, fill_cache, fits_cache
from eqco.data.images import StoredImages
from eqco.recipes import Recipe, with_settings
from eqco.recipes.rules import Choice, Facts, choose
from eqco.runtime import processes
from eqco.training.loop import time_steps

__all__ = ["DEFAULT_MINUTES", "choose_recipe", "typical_side"]

DEFAULT_MINUTES = 20.0
SECONDS = 1.5  # that a network is timed for, after its first step
SAMPLE = 512  # images that it is timed with, where they have to be decoded


def choose_recipe(
    source: Source,
    *,
    minutes: float = DEFAULT_MINUTES,
    settings: Mapping[str, Any] | None = None,
    of_init: Container[str] = (),
    backbone: nn.Module | None = None,
    cache: Path | None = None,
    cache_gib: float = math.inf,
    device: torch.device | str = "cpu",
) -> Choice:
    """The recipe that the rules choose for the images of a source on this machine.

    Several processes measure together and choose the same.

    Args:
        settings: by name, what is given and not to be chosen.
        of_init: names of those that first weights bring along.
        backbone: a module of the user's, of which a copy is timed.
        cache: where a sample of the files is decoded to, and removed again; None: they will not be
            decoded once, and every step decodes its images.
        cache_gib: the most that the decoded files may take; where they need more, they are not
            decoded once either.
    """
    split = training_split(source)

    def speed(recipe: Recipe) -> tuple[float, float]:
        trial, decoding = source, 0.0
        side = cached_side(recipe.method.views(recipe.data))
        files = split.images
        if isinstance(files, StoredImages) and cache and fits_cache(files, side, cache_gib):
            # no fewer than a batch is of
            count = max(SAMPLE, recipe.training.num_queries)
            sample, decoding = decoded_sample(split, cache / f"{side}-{count}", side, count)
            trial = replace(source, splits={"train": sample})
        # long enough for any queue, and not compiled for a few steps
        plain = with_settings(recipe, epochs=10_000, warmup_epochs=0, compile=False)
        # a copy: the steps that are timed train the network
        components = build_components(plain, trial, backbone=copy.deepcopy(backbone), device=device)
        taken = torch.tensor([time_steps(components, SECONDS), decoding], dtype=torch.float64)
        step, image = processes.mean_over_processes(taken).tolist()
        return recipe.training.num_queries / step, image

    probed = probed_splits(source)
    facts = Facts(
        images=len(split),
        side=typical_side(source),
        minutes=minutes,
        processes=processes.world_size(),
        probed=sum(map(len, probed or ())),
        decoded=sum(len(each) for each in probed or () if not is_trained_on(each, split)),
        network=None if backbone is None else type(backbone).__name__,
    )
    try:
        return choose(facts, speed, settings, of_init=of_init)
    finally:
        if cache is not None and processes.is_writer():
            shutil.rmtree(cache, ignore_errors=True)


def is_trained_on(probed: Split, trained: Split) -> bool:
    """Whether a training reads images that are probed from what it keeps, decoded once."""
    held_in_memory = not isinstance(probed.images, StoredImages)
    return held_in_memory or (trained.name == "train" and probed.name != "val")


def decoded_sample(split: Split, folder: Path, side: int, count: int) -> tuple[Split, float]:
    """So many of the images, spread over all, in a cache; and the seconds that one took."""
    files = split.spread(count).images
    assert isinstance(files, StoredImages)
    start = time.perf_counter()
    images = CachedImages(files, folder, side)
    fill_cache(images)
    return Split("train", images, None), (time.perf_counter() - start) / len(files)


def typical_side(source: Source) -> int:
    """The shorter side of the median image; 0 where nobody has looked."""
    if not source.sizes:
        size = training_split(source).size
        return 0 if size is None else min(size)
    sides = sorted((min(size), count) for size, count in source.sizes.items())
    return median_low([side for side, count in sides for _ in range(count)])
