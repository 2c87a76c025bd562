"""What is said before a training begins."""

from typing import TYPE_CHECKING

import torch

from eqco.assembly.parts import scaled_rate
from eqco.data.cache import CachedImages, estimate_bytes
from eqco.encoders import has_native_bfloat16

if TYPE_CHECKING:
    from eqco.assembly.runs import RunInfo

__all__ = ["UNREADABLE", "format_steps", "heading"]

UNREADABLE = "unreadable.txt"  # in a run: the files that it left out

INFORMATION = (
    "info below: what one view tells of the other, read off the loss (≥: at least, ≈: about)"
)
FEW_STEPS = 200  # with fewer an encoder has hardly begun to learn


def heading(about: "RunInfo", place: str) -> list[str]:
    """What is about to be trained, on what and for how long; a note where that is too short."""
    recipe, channels = about.recipe, about.source.channels
    alpha, epochs = recipe.objective.alpha, recipe.training.epochs
    per_epoch = about.loader.steps_per_epoch
    total = epochs * per_epoch
    negatives = recipe.num_negatives
    loss = ["no negatives"]
    if negatives is not None:
        loss = [f"K = {negatives}", "plain InfoNCE" if alpha is None else f"α = {alpha:g}"]
    if recipe.method.has_temperature:
        loss.append(f"τ = {recipe.objective.temperature:g}")
    numbers = [
        f"N = {recipe.training.num_queries}",
        *loss,
        f"learning rate {scaled_rate(recipe):g}",
    ]
    passes = "1 epoch" if epochs == 1 else f"{epochs} epochs"
    network = f"{recipe.method.name}, {about.network} at {recipe.data.image_size} pixels"
    lines = [
        f"{about.source.name}: {describe_images(about)}; {network}; to {place}",
        f"{', '.join(numbers)}; {passes} × {format_steps(per_epoch)} = {format_steps(total)}",
    ]
    if about.choice is not None:
        lines += ["chosen (give a setting to keep it from being chosen):"]
        width = max(len(reason.what) for reason in about.choice.reasons)
        lines += [f"  {reason.what:{width}}  {reason.why}" for reason in about.choice.reasons]
    if about.asked.training.precision == "auto":
        lines.append(f"precision auto: {recipe.training.precision}")
    device = about.loader.device
    emulated = recipe.training.precision == "bfloat16" and not has_native_bfloat16(device)
    if emulated and about.step < total:
        remedy = (
            "give --training.precision float32" if about.step == 0 else "a resumed run keeps it"
        )
        lines.append(f"bfloat16 is emulated here ({device}), slower than float32: {remedy}")
    if recipe.training.compile and about.step < total:
        lines.append("compiling the encoders first: the first step takes up to a minute or so")
    if channels != 3:
        names = ", ".join(about.left_out)
        without = f"; left out, since they need three colour channels: {names}" if names else ""
        lines.append(f"{channels} band{'s' * (channels > 1)} in each image{without}")
    lines += about.source.notes
    if count := len(about.source.unreadable):
        lines.append(
            f"left out, since they cannot be read: {count:,}, listed in {place}/{UNREADABLE}"
        )
    if negatives is not None and recipe.method.similarity == "cosine" and about.step < total:
        lines.append(INFORMATION)
    images = about.loader.split.images
    if isinstance(images, CachedImages) and about.step < total:
        size = estimate_bytes(images.files, images.side)
        lines.append(
            f"images are decoded once, their shorter side shrunk to {images.side} pixels where it "
            f"is longer: about {size / 1e6:,.0f} MB in {images.folder} until training is complete "
            f"(--cache-gib 0 decodes in every epoch)"
        )
    if about.unfinished:
        lines.append(about.unfinished)
    if 0 < about.step < total:
        lines.append(f"resuming from step {about.step}")
    if about.was_compiled and about.step < total:
        lines.append(
            f"compiled until step {about.step}, uncompiled from here on: the same to rounding, not "
            f"to the bit"
        )
    before = about.threads_before
    if before is not None and about.step < total:
        lines.append(
            f"threads: {before} when the run began, {torch.get_num_threads()} now: the same to "
            f"rounding; OMP_NUM_THREADS={before} makes it the same to the bit"
        )
    if about.step == 0 and total < FEW_STEPS:
        enough = -(-FEW_STEPS // per_epoch)
        longer = about.choice is not None and not about.choice.length_is_given
        minutes = "--minutes, or " if longer else ""
        lines.append(
            f"little is learned in {format_steps(total)}: raise {minutes}--training.epochs to "
            f"{enough} or more"
        )
    return lines


def describe_images(about: "RunInfo") -> str:
    """The images trained on, and those that are set aside for tests."""
    splits = about.source.splits
    others = [f"{len(splits[name]):,} as {name}" for name in splits if name in ("val", "test")]
    without = f" (not trained on: {' and '.join(others)})" if others else ""
    return f"{len(about.loader.split):,} images{without}"


def format_steps(steps: int) -> str:
    """A number of steps.

    >>> format_steps(1), format_steps(20)
    ('1 step', '20 steps')
    """
    return f"{steps} step{'s' * (steps != 1)}"
