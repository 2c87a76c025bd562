"""How training looks: a bar with numbers in a terminal, plain lines in a log file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eqco.assembly.parts import scaled_rate
from eqco.assembly.runs import RunInfo
from eqco.data.cache import CachedImages, estimate_bytes
from eqco.training.loop import StepReport

__all__ = ["describe_probe", "format_steps", "heading", "training_display"]

LINES = 60  # lines of a log file for a whole training, about
WIDE = 100  # columns of a terminal with room for a bar beside the words
FEW_STEPS = 200  # with fewer an encoder has hardly begun to learn


def heading(about: RunInfo, place: str) -> list[str]:
    """What is about to be trained, on what and for how long; a note where that is too short."""
    recipe, channels = about.recipe, about.source.channels
    alpha, epochs = recipe.objective.alpha, recipe.training.epochs
    per_epoch = about.loader.steps_per_epoch
    total = epochs * per_epoch
    count = recipe.method.num_negatives(recipe.micro_batch_size)
    numbers = [
        f"N = {recipe.training.num_queries}",
        *([] if count is None else [f"K = {count}"]),
        "plain InfoNCE" if alpha is None else f"α = {alpha:g}",
        f"τ = {recipe.objective.temperature:g}",
        f"learning rate {scaled_rate(recipe):g}",
    ]
    passes = "1 epoch" if epochs == 1 else f"{epochs} epochs"
    network = f"{recipe.method.name}, {recipe.encoder.backbone} at {recipe.data.image_size} pixels"
    lines = [
        f"{about.source.name}: {describe_images(about)}; {network}; to {place}",
        f"{', '.join(numbers)}; {passes} × {format_steps(per_epoch)} = {format_steps(total)}",
    ]
    if channels != 3:
        names = ", ".join(about.left_out)
        without = f"; left out, since they need three colour channels: {names}" if names else ""
        lines.append(f"{channels} band{'s' * (channels > 1)} in each image{without}")
    lines += about.source.notes
    images = about.loader.split.images
    if isinstance(images, CachedImages) and about.step < total:
        size = estimate_bytes(images.files, images.side)
        lines.append(
            f"images are decoded once, their shorter side shrunk to {images.side} pixels where it "
            f"is longer: about {size / 1e6:,.0f} MB in {images.folder} until training is complete "
            f"(--cache-gib 0 decodes in every epoch)"
        )
    if 0 < about.step < total:
        lines.append(f"resuming from step {about.step}")
    if about.step == 0 and total < FEW_STEPS:
        enough = -(-FEW_STEPS // per_epoch)
        lines.append(
            f"little is learned in {format_steps(total)}: raise --training.epochs to {enough} or "
            f"more"
        )
    return lines


def describe_images(about: RunInfo) -> str:
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


def describe_probe(name: str, value: float, chance: float | None) -> str:
    """What a probe has found, for people.

    >>> describe_probe("knn20_test", 0.375, 0.125)
    'kNN accuracy (k = 20) on test: 37.5 % (chance, the most frequent class: 12.5 %)'
    """
    neighbours, _, split = name.removeprefix("knn").partition("_")
    beside = "" if chance is None else f" (chance, the most frequent class: {100 * chance:.1f} %)"
    return f"kNN accuracy (k = {neighbours}) on {split}: {100 * value:.1f} %{beside}"


@contextmanager
def training_display(stream: TextIO | None) -> Iterator[Callable[[StepReport], None]]:
    """A function that shows reports on the stream, if there is one."""
    if stream is None:
        yield lambda report: None
        return
    console = Console(file=stream)
    if not console.is_terminal:
        yield LogLines(stream).show
        return
    columns = [
        TextColumn("{task.description}"),
        # where it would cut the words, the count of steps has to do
        *([BarColumn(bar_width=None)] if console.width >= WIDE else []),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=None)

        def show(report: StepReport) -> None:
            bar.update(task, total=report.total_steps, completed=report.step)
            bar.update(task, description=summary(report))
            for message in report.messages:
                console.print(f"step {report.step}: {message}", style="yellow", markup=False)

        yield show


class LogLines:
    """Every alarm, and about sixty lines for a whole training."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.printed = -1  # the sixtieth of the training that has its line

    def show(self, report: StepReport) -> None:
        """Print the report if it is the first of its sixtieth."""
        for message in report.messages:
            print(f"step {report.step}: {message}", file=self.stream, flush=True)
        total = report.total_steps
        part = LINES * report.step // total
        if part > self.printed:
            self.printed = part
            left = f"{report.seconds_left:.0f} s left"
            words = summary(report, dated=True)
            print(f"{report.step}/{total} {words}, {left}", file=self.stream, flush=True)


def summary(report: StepReport, *, dated: bool = False) -> str:
    """Loss, f̂, whether it is a bound and, if `dated`, its step, learning rate and speed."""
    parts = [f"loss {report.loss:.3f}"]
    if report.diagnostics is not None:
        seen, at = report.diagnostics, report.diagnosed_at
        earlier = f" of step {at}" if dated and at != report.step else ""
        parts.append(f"f̂ {seen.information:.2f} ({seen.information_kind}{earlier})")
    parts.append(f"lr {report.learning_rate:.4g}")
    parts.append(f"{report.images_per_second:.0f} images/s")
    return ", ".join(parts)
