"""How far an experiment is: what is done, and what the rest needs on this machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch

from eqco.assembly import build_encoder
from eqco.experiments.experiment import Experiment, Recipe, missing_runs, recorded
from eqco.experiments.training_runs import IMAGES
from eqco.recipes import Recipe as TrainingRecipe
from eqco.recipes import recipe_from_dict
from eqco.runtime.records import hardware

__all__ = ["Standing", "standing"]

# Elements of the images that a short timing encodes at once, at most: 64 images of 32 pixels.
TIMED_ELEMENTS = 64 * 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Runs with a record, runs in all, and seconds for the others; None: nothing tells."""

    done: int
    total: int
    seconds: float | None
    measured: bool  # from records of this kind of machine, else from a short timing


def standing(
    experiment: Experiment,
    profile: str,
    results: Path,
    pace: Callable[[Recipe], float] | None = None,
) -> Standing:
    """How far one profile is with the seeds it has by itself.

    Args:
        experiment: of the catalog.
        profile: which of its profiles.
        results: folder of the records.
        pace: seconds of a run that nothing like it is recorded of; None: a short timing.
    """
    seeds = experiment.seeds[profile]
    missing = missing_runs(experiment, profile, seeds, results)
    total = len(seeds) * len(experiment.recipes(profile))
    here = hardware()["processor"]
    records = [
        record
        for record in recorded(experiment, profile, results)
        if record.hardware["processor"] == here
    ]
    units = sum(experiment.size(record.recipe) for record in records)
    seconds: float | None = 0.0
    if missing and units:
        spent = sum(record.cpu_seconds or record.seconds for record in records)
        seconds = spent / units * sum(experiment.size(recipe) for recipe, _ in missing)
    elif missing:
        pace = pace or timed_seconds
        known = all("training" in recipe for recipe, _ in missing)
        seconds = sum(pace(recipe) for recipe, _ in missing) if known else None
    done = total - len(missing)
    return Standing(done=done, total=total, seconds=seconds, measured=bool(units) or not missing)


def timed_seconds(recipe: Recipe) -> float:
    """About how long a training takes here: images times a short timing of the encoder."""
    training = recipe_from_dict(recipe["training"])
    size, count = training.data.image_size, training.training.num_queries
    most = max(2, TIMED_ELEMENTS // (3 * size**2))
    each = seconds_per_image(
        training.encoder.backbone, training.encoder.stem, size, min(count, most)
    )
    # channels in and out both grow with the width
    images = training.training.epochs * IMAGES[recipe["data"]]
    return images * each * training.encoder.width**2


@lru_cache
def seconds_per_image(
    backbone: str, stem: Literal["imagenet", "small"], image_size: int, count: int
) -> float:
    """Queries forward and backward, keys forward: processor time, the best of three timings."""
    recipe = TrainingRecipe()
    recipe = replace(
        recipe,
        encoder=replace(recipe.encoder, backbone=backbone, stem=stem),
        data=replace(recipe.data, image_size=image_size),
    )
    encoder = build_encoder(recipe)
    images = torch.randn(count, 3, image_size, image_size)
    times = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine count as well
    try:
        for _ in range(3):
            start = time.process_time()
            encoder(images).sum().backward()
            with torch.no_grad():
                encoder(images)
            times.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return min(times) / count
