"""What an experiment is: the runs of each profile, how one is done, and how they compare."""

import math
import os
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import torch

from eqco.evaluation.scores import interval_of_mean
from eqco.experiments.coordinates import Place
from eqco.runtime.errors import InputError
from eqco.runtime.records import (
    Record,
    code_version,
    find_record,
    hardware,
    read_records,
    recipe_hash,
)

if TYPE_CHECKING:  # tables are printed by commands that train nothing
    from eqco.experiments.tasks import TrainingTask

__all__ = [
    "FOLDERS",
    "PARTS",
    "Comparison",
    "Ended",
    "Experiment",
    "MissingDataError",
    "Perform",
    "PlannedRun",
    "RunContext",
    "RunResult",
    "Show",
    "command_for",
    "found_records",
    "heading_of_differences",
    "missing_runs",
    "one_by_one",
    "planned_runs",
    "processor_seconds",
    "profile_records",
    "reproduce",
    "seed_by_seed",
]

# Data sets that do not come with the package: `eqco reproduce` has an option for each.
FOLDERS = ("cifar10", "imagenet", "tiny-imagenet-20", "bccd", "coco")
# Sets whose training images are a part of another's; accuracies are by the labels of the whole.
PARTS = {"cifar10-5000": "cifar10"}


class HasRecipe(Protocol):
    """What one run does, as a value."""

    def to_dict(self) -> dict[str, Any]:
        """The recipe as a record holds it."""


Task = TypeVar("Task", bound=HasRecipe)
Tables = Mapping[str, Sequence["Comparison"]]  # by title
Advance = Callable[[int], None]
SEEDS_OF_AN_INTERVAL = 3  # that a difference needs for one


class MissingDataError(InputError):
    """A run needs a data set that is not here; says which, and how to give it."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Where a run happens: nothing of it changes what is found.

    Args:
        advance: takes units of progress as they are done.
        work: folder for what a long run leaves to resume from.
        folders: data set by name -> folder to read it from; others are looked up by name.
        device: where to compute.
        launch: trains in processes of its own, from the beginning or from where it was stopped:
            the training recipe as a dict (or a detector's: detection, weights, backbone), data by
            name or folder, and the run directory; None: in this process.
    """

    advance: Advance = lambda count: None
    work: Path = Path("runs")
    folders: Mapping[str, Path] = field(default_factory=dict)
    device: str = "cpu"
    launch: Callable[[dict[str, Any], str, Path], None] | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What one run found; becomes the heart of its record."""

    metrics: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict)
    earlier: tuple[float, float] = (0.0, 0.0)
    """Seconds, and seconds of processor, that earlier calls had spent on what was found done."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One cell of a table: our number of each seed, if it was run, and the paper's beside it."""

    row: Place
    column: Place
    values: tuple[float, ...]  # empty: not run here, the paper's number stands alone
    seeds: tuple[int, ...] = ()  # of the values; needed where cells are compared seed by seed
    published: float | None = None
    kind: str = ""  # "bound" or "estimate" where the number is an f̂
    comparable: bool = True  # whether the paper's number was measured in the same setting
    interval: tuple[float, float] | None = None  # 95 %: over test images, or seeds of a difference
    printed: tuple[Place, Place] | None = None  # row and column in the paper, where not the same
    part: str = ""  # title of the part of the table that the row stands in, below a line

    @classmethod
    def of(cls, row: Place, column: Place, ours: Mapping[int, float], **more: Any) -> "Comparison":
        """A cell from our numbers by their seeds."""
        values, seeds = tuple(ours.values()), tuple(ours)
        return cls(row=row, column=column, values=values, seeds=seeds, **more)

    @classmethod
    def of_difference(
        cls, row: Place, column: Place, ours: Mapping[int, float], **more: Any
    ) -> "Comparison":
        """A cell of differences by seed; with three or more of them the interval of their mean."""
        enough = len(ours) >= SEEDS_OF_AN_INTERVAL
        interval = interval_of_mean(list(ours.values())) if enough else None
        return cls.of(row, column, ours, interval=interval, **more)

    @property
    def mean(self) -> float:
        """Our number: the mean over seeds; NaN where nothing was run."""
        return fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Largest less smallest over seeds; NaN with one seed, which shows none."""
        return max(self.values) - min(self.values) if len(self.values) > 1 else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; NaN with one seed."""
        return stdev(self.values) if len(self.values) > 1 else math.nan

    @property
    def difference(self) -> float | None:
        """Ours less the paper's; None where there is none, or where it is of another setting."""
        if self.published is None or not self.comparable or not self.values:
            return None
        return self.mean - self.published


def heading_of_differences(heading: str, table: Sequence[Comparison]) -> str:
    """The heading, which tells of intervals where there are any."""
    return f"{heading} [95 % interval]" if any(cell.interval for cell in table) else heading


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[Task]):
    """One figure, table or study.

    Args:
        name: as the paper numbers it (`tab5`), or a study's name.
        kind: what it is; figures and tables are the paper's.
        number: of the figure or table.
        title: one line for `eqco reproduce --list`.
        profiles: profile -> the tasks of its runs. Each is run once per seed.
        seeds: profile -> the seeds run unless others are given.
        size: how many units of progress one run reports.
        run: does one run: task, seed, and where it happens.
        compare: the table, from records of one profile; from none: what the paper publishes.
        conclude: tables that follow from the first, by title.
        further: tables of other quantities, by title.
        training: the training that a task needs, if it needs one.
        store: folder of its records below the results; its own name unless it shares them.
    """

    name: str
    kind: Literal["figure", "table", "study", "example"] = "study"
    number: int = 0
    title: str
    profiles: Mapping[str, Sequence[Task]]
    seeds: Mapping[str, tuple[int, ...]]
    size: Callable[[Task], int]
    run: Callable[[Task, int, RunContext], RunResult]
    compare: Callable[[Sequence[Record]], list[Comparison]]
    conclude: Callable[[Sequence[Record]], Tables] = lambda records: {}
    further: Callable[[Sequence[Record]], Tables] = lambda records: {}
    training: Callable[[Task], "TrainingTask | None"] = lambda task: None
    store: str = ""

    @property
    def label(self) -> str:
        """Table 5, or the name of a study."""
        if self.kind in ("figure", "table"):
            return f"{self.kind.capitalize()} {self.number}"
        return self.name

    @property
    def heading(self) -> str:
        """What it is, in one line."""
        kinds = {"study": "Study: ", "example": ""}
        return f"{kinds.get(self.kind, f'{self.label}: ')}{self.title}"

    @property
    def folder(self) -> str:
        """Where its records are, below the results."""
        return self.store or self.name

    def recipes(self, profile: str) -> Sequence[Task]:
        """The tasks of one profile."""
        if profile not in self.profiles:
            raise InputError(
                f"{self.name} has no profile {profile!r}. There are: {', '.join(self.profiles)}."
            )
        return self.profiles[profile]


def seed_by_seed(cells: Sequence[Comparison]) -> dict[int, tuple[float, ...]]:
    """What the cells say for each seed that all of them have.

    >>> few = Comparison(row="", column="K=4", values=(1.0, 2.0), seeds=(0, 1))
    >>> many = Comparison(row="", column="K=255", values=(5.0, 6.0), seeds=(1, 2))
    >>> seed_by_seed([few, many])
    {1: (2.0, 5.0)}
    """
    found = [dict(zip(cell.seeds, cell.values, strict=True)) for cell in cells]
    shared = sorted(set.intersection(*(set(values) for values in found)))
    return {seed: tuple(values[seed] for values in found) for seed in shared}


def profile_records(experiment: Experiment[Any], profile: str, results: Path) -> list[Record]:
    """The records of the tasks that a profile has now; others in the folder are left out."""
    wanted = {recipe_hash(task.to_dict()) for task in experiment.recipes(profile)}
    return read_records(results, experiment.folder, profile, wanted)


def command_for(
    experiment: Experiment[Any],
    profile: str,
    folders: Mapping[str, Path] | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """The command that runs an experiment, with FOLDER where a data set was not given.

    `folders` are those known by data set, `options` further flags and their values.
    """
    recipes = [task.to_dict() for task in experiment.recipes(profile)]
    needs = {PARTS.get(recipe.get("data", ""), recipe.get("data")) for recipe in recipes}
    needs |= {recipe["pretraining"]["data"] for recipe in recipes if "pretraining" in recipe}
    words = ["eqco", "reproduce", experiment.name, "--profile", profile]
    for name in FOLDERS:
        if name in needs:
            words += [f"--{name}", str((folders or {}).get(name, "FOLDER"))]
    for flag, value in (options or {}).items():
        words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)


def processor_seconds() -> float:
    """Processor time so far, of this process and its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def missing_runs(
    experiment: Experiment[Task], profile: str, seeds: Sequence[int], results: Path
) -> list[tuple[Task, int]]:
    """The runs that have no record yet, seed by seed; of one seed those of the fewest units of
    progress first, so that a table fills early.
    """
    return [
        (task, seed)
        for seed in seeds
        for task in sorted(experiment.recipes(profile), key=experiment.size)
        if find_record(results, experiment.folder, profile, task.to_dict(), seed) is None
    ]


@dataclass(frozen=True, kw_only=True)
class PlannedRun(Generic[Task]):
    """A run that has no record yet. When it is called it is done, and its record is written.

    It holds the function that runs and not the experiment, so that it can be sent elsewhere.
    """

    run: Callable[[Task, int, RunContext], RunResult]
    task: Task
    seed: int
    size: int
    """Units of progress that it reports."""
    folder: str
    profile: str
    results: Path
    context: RunContext

    def __call__(self, advance: Advance) -> None:
        """Do it; `advance` takes units of progress as they are done."""
        start, start_cpu = time.perf_counter(), processor_seconds()
        # layers that draw by themselves, such as dropout, know nothing of what was run here before
        torch.manual_seed(self.seed)
        result = self.run(self.task, self.seed, replace(self.context, advance=advance))
        Record(
            experiment=self.folder,
            profile=self.profile,
            recipe=self.task.to_dict(),
            seed=self.seed,
            metrics=result.metrics,
            curves=result.curves,
            code=code_version(),
            hardware=hardware(),
            seconds=round(result.earlier[0] + time.perf_counter() - start, 2),
            cpu_seconds=round(result.earlier[1] + processor_seconds() - start_cpu, 2),
        ).write(self.results)


# gets the number of a run, what it is doing, and the units of progress it has done so far
Show = Callable[[int, str, int], None]
# does all runs, in any order; says of each when it is done, and what was wrong if it failed
Ended = Generator[tuple[PlannedRun[Any], InputError | None], None, None]
Perform = Callable[[Sequence[PlannedRun[Any]]], Ended]


def one_by_one(runs: Sequence[PlannedRun[Any]], show: Show | None = None) -> Ended:
    """Do the runs here, one after the other."""
    for number, run in enumerate(runs):
        advance = run.context.advance if show is None else counted(show, number)
        try:
            run(advance)
        except InputError as error:
            yield run, error
        else:
            yield run, None


def counted(show: Show, number: int) -> Advance:
    """Takes units of progress of a run, and shows how many they are together."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        show(number, "running", done)

    advance(0)
    return advance


def planned_runs(
    experiment: Experiment[Any],
    profile: str,
    seeds: Sequence[int],
    results: Path,
    context: RunContext,
) -> list[PlannedRun[Any]]:
    """The runs that have no record yet, ready to be done."""
    if not seeds:
        raise InputError("no seeds given; name at least one.")
    return [
        PlannedRun(
            run=experiment.run,
            task=task,
            seed=seed,
            size=experiment.size(task),
            folder=experiment.folder,
            profile=profile,
            results=results,
            context=context,
        )
        for task, seed in missing_runs(experiment, profile, seeds, results)
    ]


def reproduce(
    experiment: Experiment[Any],
    profile: str,
    seeds: Sequence[int],
    results: Path,
    context: RunContext | None = None,
    perform: Perform = one_by_one,
) -> list[Record]:
    """Do the runs that have no record yet, and return the records of all.

    Each record is written as soon as its run is done: stopped half-way, it resumes from there.
    """
    runs = planned_runs(experiment, profile, seeds, results, context or RunContext())
    with closing(perform(runs)) as ended:
        for _, error in ended:
            if error is not None:
                raise error
    return found_records(experiment, profile, seeds, results)


def found_records(
    experiment: Experiment[Any], profile: str, seeds: Sequence[int], results: Path
) -> list[Record]:
    """The records of the runs that were done, seed by seed."""
    return [
        record
        for seed in seeds
        for task in experiment.recipes(profile)
        if (record := find_record(results, experiment.folder, profile, task.to_dict(), seed))
    ]
