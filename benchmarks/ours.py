"""The trainer itself, as `train.py` measures it, and where a step of it goes."""

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from photos import Photos

from eqco.assembly import build_components
from eqco.contrast import Contrast
from eqco.data import Source, open_source, source_from_dataset
from eqco.encoders import autocast_to
from eqco.methods.base import StepOutput, batch_negatives
from eqco.recipes import Recipe, named_recipe, recipe_to_dict
from eqco.runtime.run_directory import RunDirectory
from eqco.training.diagnostics import diagnose
from eqco.training.loop import TrainerComponents, optimise, run_training

WARM_STEPS, PROFILED_STEPS = 3, 30


def our_training(framework: str, question: dict, done: Callable[[], None]) -> None:
    """The trainer itself, all that surrounds a step included; it asks for a rate in every step."""
    recipe = our_recipe(framework, question)
    components = build_components(recipe, our_source(question))
    rate = components.learning_rate
    components = replace(components, probe=None, learning_rate=lambda step: (done(), rate(step))[1])
    with tempfile.TemporaryDirectory() as place:
        run, written = RunDirectory(Path(place) / "run"), recipe_to_dict(recipe)
        run.start(written, {})
        run_training(components, run, written)


def our_recipe(framework: str, question: dict) -> Recipe:
    recipe = named_recipe(framework, "folder")
    if framework == "simclr":  # all negatives of the batch, as the others have it
        recipe = replace(recipe, method=replace(recipe.method, count=None))
    return replace(
        recipe,
        data=replace(
            recipe.data, image_size=question["size"], pipeline="mocov2", workers=question["workers"]
        ),
        # one batch norm over the batch, as the others have it
        encoder=replace(recipe.encoder, backbone=question["backbone"], bn_groups=1),
        # uncompiled, as the others are and as short runs are
        training=replace(recipe.training, num_queries=question["n"], epochs=1000, compile=False),
    )


def our_source(question: dict) -> Source:
    if question["folder"] is None:
        return source_from_dataset(Photos(question["size"]))
    return open_source(question["folder"], unlabelled=True)  # decoded once, as it comes


def profile(question: dict) -> dict[str, float]:
    """Seconds of each part of a step of SiMo and, as `whole step`, of a step as the trainer takes
    it: medians. Steps cut into parts and whole ones take turns, so that the parts should add up to
    the whole one but for the diagnostics, which count by their share.

    What lies between two marks belongs to the second.
    """
    recipe = our_recipe("simo", question)
    components = build_components(recipe, our_source(question))
    components.method.train()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    times: dict[str, list[float]] = {}
    for turn in range(WARM_STEPS + PROFILED_STEPS):
        marks = marked_step(components, recipe.method.count, 2 * turn)
        begun = time.perf_counter()
        batches = components.loader.micro_batches(2 * turn + 1)
        components.method.after_step(optimise(components, scaler, batches, 2 * turn + 1))
        whole = time.perf_counter() - begun
        if turn >= WARM_STEPS:
            for (_, start), (name, end) in itertools.pairwise(marks):
                times.setdefault(name, []).append(end - start)
            times.setdefault("whole step", []).append(whole)
    found = {name: median(each) for name, each in times.items()}
    found["diagnostics"] /= recipe.training.diagnose_every
    return found


def marked_step(
    components: TrainerComponents, num_negatives: int | None, step: int
) -> list[tuple[str, float]]:
    """A step of SiMo by hand: when it began, and when each of its parts ended."""
    method, objective, optimiser, loader = (
        components.method,
        components.objective,
        components.optimiser,
        components.loader,
    )
    marks = [("", time.perf_counter())]

    def mark(name: str) -> None:
        marks.append((name, time.perf_counter()))

    numbers = loader.numbers(step)
    images = loader.pixels.index_select(0, numbers)
    drawn = zip(loader.augments, loader.draws(step), strict=True)
    mark("data and draws")
    (batch,) = loader.cut([augment(images, draws) for augment, draws in drawn], numbers)
    first, second = batch.views
    mark("augmentation")
    with autocast_to(components.precision, first.device):
        queries = method.encoder(first)
    mark("query encoder, forward")
    with autocast_to(components.precision, first.device):
        keys = method.key_encoder(second, step)
    mark("key encoder, forward")
    negatives = batch_negatives(keys, count=num_negatives, shared=False, seed=0, draw=step)
    contrasts = [Contrast(queries, keys, negatives)]
    loss = objective(contrasts)
    mark("negatives and loss")
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    mark("backward")
    optimiser.step()
    mark("optimiser")
    method.after_step(StepOutput(loss, contrasts))
    mark("momentum update")
    diagnose(contrasts, temperature=objective.temperature, alpha=objective.alpha)
    mark("diagnostics")
    return marks
