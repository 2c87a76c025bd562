"""Trainings that experiments share: one folder each, done once, gone on with after a stop."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from eqco.assembly import resume, train
from eqco.data import Source, open_source
from eqco.experiments.experiment import MissingDataError, Recipe, Site, processor_seconds
from eqco.recipes import Recipe as TrainingRecipe
from eqco.recipes import recipe_from_dict, recipe_to_dict
from eqco.runtime.errors import InputError
from eqco.runtime.records import recipe_hash
from eqco.runtime.run_directory import RunDirectory, read_json, write_json
from eqco.training.loop import StepReport

__all__ = ["IMAGES", "TrainedRun", "open_data", "train_once", "training_steps"]

# Training and test images of the sets that experiments use: known before they are opened.
IMAGES = {"groceries": 675, "cifar10": 50_000, "imagenet": 1_281_167}
TEST_IMAGES = {"groceries": 661, "cifar10": 10_000, "imagenet": 50_000}


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished training: its folder, its recipe with the seed, and its data."""

    directory: RunDirectory
    training: TrainingRecipe
    source: Source
    earlier: tuple[float, float]
    """Seconds, and seconds of processor, spent on it by earlier calls."""

    def knn(self, neighbours: int) -> float:
        """kNN accuracy at the end of training, between 0 and 1."""
        ((name, accuracy),) = read_json(self.directory.result)["probe"].items()
        if not name.startswith(f"knn{neighbours}_"):
            raise InputError(
                f"{self.directory.result} holds {name}, and the experiment asks for "
                f"{neighbours} neighbours. Move {self.directory.path} away to train it again."
            )
        return float(accuracy)

    @property
    def steps(self) -> int:
        """Steps that it was trained for."""
        return int(read_json(self.directory.result)["steps"])

    @property
    def code(self) -> str:
        """The version that trained it, which may be older than the one that asks."""
        return str(read_json(self.directory.result)["code"])


def train_once(recipe: Recipe, seed: int, site: Site) -> TrainedRun:
    """Train as `recipe["training"]` says, on `recipe["data"]`, unless that was done before.

    The folder below `site.work` is named after data, training and seed alone, so that experiments
    which ask different questions of one training share it.
    """
    data = recipe["data"]
    source = open_data(data, site)
    training = recipe_from_dict(recipe["training"])
    training = replace(training, training=replace(training.training, seed=seed))
    run = RunDirectory(site.work / run_name(recipe, seed))
    earlier = spent(run)
    if run.result.exists():
        site.advance(read_json(run.result)["steps"])
    elif site.launch is not None:
        with adding_up(run):
            site.launch(recipe_to_dict(training), str(site.folders.get(data, data)), run.path)
        site.advance(read_json(run.result)["steps"])
    else:
        train_or_resume(training, source, run, site)
    return TrainedRun(directory=run, training=training, source=source, earlier=earlier)


def run_name(recipe: Recipe, seed: int) -> str:
    """The folder of a training, named after all that it depends on."""
    named = recipe_hash({"data": recipe["data"], "training": recipe["training"]})
    return f"{recipe['data']}-{named}-{seed}"


def open_data(data: str, site: Site) -> Source:
    """A data set from the folder the site names, or by its own name; opened once per process."""
    if data in site.folders:
        source = opened(str(site.folders[data]))
        check_size(data, source, site.folders[data])
        return source
    try:
        return opened(data)
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
def opened(data: str) -> Source:
    """The source, kept until another is asked for."""
    return open_source(data)


def train_or_resume(
    training: TrainingRecipe, source: Source, run: RunDirectory, site: Site
) -> None:
    """Train from the beginning, or go on where an earlier call was stopped."""
    show = advancing(site)
    with adding_up(run):
        if run.last.exists():
            outcome = resume(run.path, source, device=site.device, show=show)
        else:
            outcome = train(training, source, out=run.path, device=site.device, show=show)
    if outcome.stopped_by is not None:
        raise InputError(f"stopped by {outcome.stopped_by}; run the same command to go on.")


def advancing(site: Site) -> Callable[[StepReport], None]:
    """Takes reports of a training, and tells the site how many steps were done since the last."""
    seen = 0

    def show(report: StepReport) -> None:
        nonlocal seen
        site.advance(report.step - seen)
        seen = report.step

    return show


def cost_file(run: RunDirectory) -> Path:
    """Where the time spent on a training is added up."""
    return run.path / "cost.json"


def spent(run: RunDirectory) -> tuple[float, float]:
    """Seconds, and seconds of processor, that calls have spent on a training so far."""
    if not cost_file(run).exists():
        return 0.0, 0.0
    cost = read_json(cost_file(run))
    return cost["seconds"], cost["cpu_seconds"]


@contextmanager
def adding_up(run: RunDirectory) -> Iterator[None]:
    """Add the time this block takes to what was spent, also when it is stopped.

    Processor time is of this process and of those it has started and seen end.
    """
    start, start_cpu = time.perf_counter(), processor_seconds()
    before = spent(run)
    try:
        yield
    finally:
        if run.path.is_dir():
            seconds = before[0] + time.perf_counter() - start
            cpu = before[1] + processor_seconds() - start_cpu
            write_json(cost_file(run), {"seconds": seconds, "cpu_seconds": cpu})


def training_steps(recipe: Recipe) -> int:
    """Steps of a run, from the number of images that the whole set has."""
    settings: dict[str, Any] = recipe["training"]["training"]
    return int(settings["epochs"] * (IMAGES[recipe["data"]] // settings["num_queries"]))
