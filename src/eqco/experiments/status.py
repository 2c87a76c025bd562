"""How far an experiment is: what is done, and what the rest needs on this machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from eqco.assembly import build_encoder
from eqco.experiments.experiment import Experiment, missing_runs, profile_records
from eqco.experiments.tasks import TrainingTask
from eqco.experiments.training_runs import IMAGES
from eqco.recipes import Recipe
from eqco.runtime.records import hardware, recipe_hash

__all__ = ["Status", "status"]

# Elements of the images that a short timing encodes at once, at most: 64 images of 32 pixels.
TIMED_ELEMENTS = 64 * 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Status:
    """Runs with a record, runs in all, and seconds for the others; None: unknown."""

    done: int
    total: int
    seconds: float | None
    measured: bool  # from records of this kind of machine, else from a short timing


def status(
    experiment: Experiment[Any],
    profile: str,
    results: Path,
    pace: Callable[[TrainingTask], float] | None = None,
) -> Status:
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
        for record in profile_records(experiment, profile, results)
        if record.hardware["processor"] == here
    ]
    sizes = {
        recipe_hash(task.to_dict()): experiment.size(task) for task in experiment.recipes(profile)
    }
    units = sum(sizes[record.hash_of_recipe] for record in records)
    seconds: float | None = 0.0
    if missing and units:
        spent = sum(record.cpu_seconds or record.seconds for record in records)
        seconds = spent / units * sum(experiment.size(task) for task, _ in missing)
    elif missing:
        trainings = [experiment.training(task) for task, _ in missing]
        known = [(pace or timed_seconds)(task) for task in trainings if task is not None]
        seconds = sum(known) if len(known) == len(missing) else None
    done = total - len(missing)
    return Status(done=done, total=total, seconds=seconds, measured=bool(units) or not missing)


def timed_seconds(task: TrainingTask) -> float:
    """About how long a training takes here: images times a short timing of the encoder."""
    recipe = task.recipe
    size, count = recipe.data.image_size, recipe.training.num_queries
    most = max(2, TIMED_ELEMENTS // (3 * size**2))
    each = seconds_per_image(recipe.encoder.backbone, recipe.encoder.stem, size, min(count, most))
    # channels in and out both grow with the width
    images = recipe.training.epochs * IMAGES[task.data]
    return images * each * recipe.encoder.width**2


@lru_cache
def seconds_per_image(
    backbone: str, stem: Literal["imagenet", "small"], image_size: int, count: int
) -> float:
    """Queries forward and backward, keys forward: processor time, the best of three timings."""
    recipe = Recipe()
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
