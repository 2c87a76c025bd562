"""Trainings that experiments share: one folder each, done once, resumed after a stop."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from eqco.assembly import resume, train
from eqco.data import Source, open_source
from eqco.data.sources import with_fewer_images
from eqco.experiments.experiment import PARTS, MissingDataError, RunContext, processor_seconds
from eqco.experiments.tasks import TrainingTask
from eqco.recipes import Recipe, recipe_to_dict
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory, read_json, write_json
from eqco.training.loop import StepReport

__all__ = ["IMAGES", "TrainedRun", "open_data", "train_once", "training_steps"]

# Training and test images of the sets that experiments use: known before they are opened.
IMAGES = {
    **{"groceries": 675, "signs": 1448, "cifar10": 50_000, "cifar10-5000": 5000},
    "imagenet": 1_281_167,
}
TEST_IMAGES = {"groceries": 661, "signs": 409, "cifar10": 10_000, "imagenet": 50_000}


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished training: its folder, its recipe with the seed, and the data to evaluate on."""

    directory: RunDirectory
    training: Recipe
    source: Source
    earlier: tuple[float, float]
    """Seconds, and seconds of processor, spent on it by earlier calls."""

    @property
    def steps(self) -> int:
        """Steps that it was trained for."""
        return int(read_json(self.directory.result)["steps"])

    @property
    def code(self) -> str:
        """The version that trained it, which may be older than this one."""
        return str(read_json(self.directory.result)["code"])


def train_once(task: TrainingTask, seed: int, context: RunContext) -> TrainedRun:
    """Train as a task says, unless that was done before.

    The folder below `context.work` is named after data, training and seed alone, so that tasks
    which evaluate one training in different ways share it.
    """
    source = open_data(PARTS.get(task.data, task.data), context)
    training = replace(task.recipe, training=replace(task.recipe.training, seed=seed))
    run = RunDirectory(context.work / task.run_name(seed))
    earlier = cost_so_far(run)
    if run.result.exists():
        context.advance(read_json(run.result)["steps"])
    else:
        train_or_resume(training, task.data, run, context)
    return TrainedRun(directory=run, training=training, source=source, earlier=earlier)


def open_data(data: str, context: RunContext) -> Source:
    """A data set from the folder the context names, or by its own name; opened once per process."""
    if data in PARTS:
        return with_fewer_images(open_data(PARTS[data], context), IMAGES[data])
    if data in context.folders:
        source = open_once(str(context.folders[data]))
        check_size(data, source, context.folders[data])
        return source
    try:
        return open_once(data)
    except InputError as error:
        raise MissingDataError(
            f"{error} Give its folder with --{data} FOLDER. Profile smoke, and embedded where an "
            f"experiment has it, run on the photographs that come with the package."
        ) from error


def check_size(data: str, source: Source, folder: Path) -> None:
    """Refuse a folder that is not the whole set: its results would be recorded under that name."""
    for known, splits in ((IMAGES, ("train",)), (TEST_IMAGES, ("test", "val"))):
        if data in known:
            found = sum(len(source[split]) for split in splits if split in source)
            if found != known[data]:
                raise InputError(
                    f"{folder} was given as {data}, and has {found:,} images in "
                    f"{' or '.join(splits)} where {data} has {known[data]:,}: its results would "
                    f"stand under a wrong name. Train on a folder of your own with eqco train."
                )


@lru_cache(maxsize=1)
def open_once(data: str) -> Source:
    """The source, kept until another is needed."""
    return open_source(data)


def train_or_resume(training: Recipe, data: str, run: RunDirectory, context: RunContext) -> None:
    """Train from the beginning, or resume where an earlier call was stopped."""
    source = open_data(data, context)  # refused here if it is missing, also with processes
    show = progress_callback(context)
    with add_cost(run):
        if context.launch is not None:
            if data in PARTS:
                raise InputError(
                    f"{data} is a part of {PARTS[data]}, which is trained on by one process only. "
                    f"Leave out --processes."
                )
            folder = str(context.folders.get(data, data))
            context.launch(recipe_to_dict(training), folder, run.path)
            context.advance(read_json(run.result)["steps"])
            return
        if run.last.exists():
            outcome = resume(run.path, source, device=context.device, show=show)
        else:
            outcome = train(source, training, out=run.path, device=context.device, show=show)
    refuse_stopped(outcome.stopped_by)


def refuse_stopped(signal: str | None) -> None:
    """A run that was stopped has no result to record."""
    if signal is not None:
        raise InputError(f"stopped by {signal}; run the same command to resume.")


def progress_callback(context: RunContext) -> Callable[[StepReport], None]:
    """Takes reports of a training, and advances the context by the steps since the last."""
    seen = 0

    def show(report: StepReport) -> None:
        nonlocal seen
        context.advance(report.step - seen)
        seen = report.step

    return show


def cost_file(run: RunDirectory) -> Path:
    """Where the time spent on a training is added up."""
    return run.path / "cost.json"


def cost_so_far(run: RunDirectory) -> tuple[float, float]:
    """Seconds, and seconds of processor, that calls have spent on a training so far."""
    if not cost_file(run).exists():
        return 0.0, 0.0
    cost = read_json(cost_file(run))
    return cost["seconds"], cost["cpu_seconds"]


@contextmanager
def add_cost(run: RunDirectory) -> Iterator[None]:
    """Add the time this block takes to what was spent, also when it is stopped.

    Processor time is of this process and of those it has started and seen end.
    """
    start, start_cpu = time.perf_counter(), processor_seconds()
    before = cost_so_far(run)
    try:
        yield
    finally:
        if run.path.is_dir():
            seconds = before[0] + time.perf_counter() - start
            cpu = before[1] + processor_seconds() - start_cpu
            write_json(cost_file(run), {"seconds": seconds, "cpu_seconds": cpu})


def training_steps(task: TrainingTask) -> int:
    """Steps of a run, from the number of images that the whole set has."""
    settings = task.recipe.training
    return settings.epochs * (IMAGES[task.data] // settings.num_queries)
