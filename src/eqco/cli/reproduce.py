"""`eqco reproduce EXPERIMENT`: run it, or what is missing of it, and compare with the paper."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console

from eqco.cli.board import RunsBoard
from eqco.cli.cluster import HERE, Cluster, ClusterOptions
from eqco.cli.launch import launch
from eqco.cli.progress import progress_bar
from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.experiment import (
    FOLDERS,
    Ended,
    Experiment,
    MissingDataError,
    PlannedRun,
    RunContext,
    command_for,
    missing_runs,
    reproduce,
)
from eqco.report.catalog import PLOTS
from eqco.report.status import print_status
from eqco.report.summary import write_summary
from eqco.runtime.atomic_files import refuse_file
from eqco.runtime.errors import InputError, MissingExtraError
from eqco.runtime.records import Record
from eqco.runtime.run_directory import RunDirectory, write_json
from eqco.training.alarms import NonFiniteLossError

ALL = "all"
RESULTS, WORK = Path("results"), Path("runs")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def run(
    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")] = "",
    *,
    profile: str = "desk",
    seeds: tuple[int, ...] = (),
    results: Path = RESULTS,
    out: Path | None = None,
    work: Path = WORK,
    cifar10: Path | None = None,
    imagenet: Path | None = None,
    tiny_imagenet_20: Path | None = None,
    bccd: Path | None = None,
    coco: Path | None = None,
    device: str = DEVICE,
    processes: int = 1,
    cluster: Cluster = HERE,
    list: bool = False,
) -> None:
    """Regenerate a figure, table or study, resuming from the records that exist.

    Trainings that several experiments need are done once: they are found again in --work.

    Args:
        experiment: its name, such as tab5, or all; --list shows them. Of all, those whose data or
            packages are missing are left out, those whose training diverges have failed; both are
            named at the end.
        profile: smoke (seconds), desk (CIFAR-10, minutes to hours on two cores), few-images (5,000
            of its images), embedded (the photographs that come with the package), paper (the
            published setting).
        seeds: seeds to run; the experiment's own if none are given.
        results: folder of the records. A run whose record is there is not repeated.
        out: folder for the table and the plot; RESULTS/EXPERIMENT if none is given.
        work: folder of the trainings, where stopped ones are resumed.
        cifar10: folder with CIFAR-10 as images, train/CLASS/… and test/CLASS/…; downloaded if not
            given.
        imagenet: folder with ImageNet, train/CLASS/… and val/CLASS/….
        tiny_imagenet_20: folder with classes of Tiny-ImageNet, train/… and val/… (tab9).
        bccd: folder with the blood cells in COCO's form (tab9).
        coco: folder with COCO 2017 (tab9).
        device: where to train and to evaluate.
        processes: train in so many processes of this machine, one for each GPU.
        list: show the experiments, what is done and the time the rest needs instead.

    Examples:
        eqco reproduce --list
        eqco reproduce all --profile smoke
        eqco reproduce tab5 --profile paper --seeds 0 1 2
        eqco reproduce fig4 --cifar10 data/cifar10
        eqco reproduce fig4 --profile paper --imagenet data/imagenet --processes 8
        eqco reproduce fig4 --profile embedded --ray local
    """
    console = Console()
    if list:
        print_status(console, EXPERIMENTS, results)
        return
    if not experiment:
        raise InputError(f"name an experiment, or all. There are: {', '.join(EXPERIMENTS)}.")
    for option, folder in (("--out", out), ("--results", results), ("--work", work)):
        if folder is not None:
            refuse_file(folder, option=option)
    cluster.check()
    if cluster.ray is not None and processes > 1:
        raise InputError(f"--processes {processes} beside --ray {cluster.ray}: choose one.")
    given = dict(zip(FOLDERS, (cifar10, imagenet, tiny_imagenet_20, bccd, coco), strict=True))
    context = RunContext(
        work=work.absolute(),  # also for workers, which are in a folder of their own
        folders={name: folder.absolute() for name, folder in given.items() if folder is not None},
        device=device,
        launch=launcher(processes, device) if processes > 1 else None,
    )
    options = {
        "--seeds": (seeds, ()),
        "--results": (results, RESULTS),
        "--out": (out, None),
        "--work": (work, WORK),
        "--device": (device, DEVICE),
        "--processes": (processes, 1),
        **{f"--{name}": (value, getattr(HERE, name)) for name, value in asdict(cluster).items()},
    }
    changed = {flag: value for flag, (value, usual) in options.items() if value != usual}
    left_out: dict[str, str] = {}
    failed: dict[str, str] = {}
    try:
        for chosen in select_experiments(experiment, profile):
            own = seeds or chosen.seeds[profile]
            try:
                records = reproduce_with_progress(
                    console, chosen, profile, own, results.absolute(), context, cluster
                )
            except (MissingDataError, MissingExtraError, NonFiniteLossError) as error:
                if experiment != ALL:
                    raise
                missing = not isinstance(error, NonFiniteLossError)
                (left_out if missing else failed)[chosen.name] = str(error)
                continue
            folder = out or results / chosen.name
            write_summary(console, chosen, records, folder, plot=PLOTS.get(chosen.name))
    finally:
        for what, names in (("left out", left_out), ("failed", failed)):
            for name, reason in names.items():
                command = command_for(EXPERIMENTS[name], profile, context.folders, changed)
                print(f"\n{what}: {name}: {reason}\nrun it with: {command}")
    if failed:
        raise InputError(f"{len(failed)} of the experiments failed: {', '.join(failed)}.")


def reproduce_with_progress(
    console: Console,
    chosen: Experiment[Any],
    profile: str,
    seeds: Sequence[int],
    results: Path,
    context: RunContext,
    cluster: ClusterOptions = HERE,
) -> list[Record]:
    """The records of an experiment; what is missing is done under a bar, on Ray under a table."""
    if cluster.ray is not None:
        on_board = partial(perform_on_board, console, chosen.name, cluster, context)
        return reproduce(chosen, profile, seeds, results, context, on_board)
    if cluster.cores is not None:
        torch.set_num_threads(cluster.cores)
    missing = missing_runs(chosen, profile, seeds, results)
    total = sum(chosen.size(recipe) for recipe, _ in missing)
    with progress_bar(console, f"{chosen.name}, {len(missing)} runs", total) as advance:
        return reproduce(chosen, profile, seeds, results, replace(context, advance=advance))


def perform_on_board(
    console: Console,
    name: str,
    cluster: ClusterOptions,
    context: RunContext,
    runs: Sequence[PlannedRun[Any]],
) -> Ended:
    """Do the runs where --ray says, with all of them in one table."""
    titles = [f"{name}, run {number + 1}, seed {run.seed}" for number, run in enumerate(runs)]
    with RunsBoard(console, titles, [run.size for run in runs]) as board:
        address = cluster.address(len(runs))
        perform = cluster.perform(
            address, shared=context.work, device=context.device, show=board.show
        )
        with closing(perform(runs)) as ended:
            for run, error in ended:
                board.end(runs.index(run), failed=error is not None)
                yield run, error


def select_experiments(name: str, profile: str) -> "tuple[Experiment[Any], ...]":
    """The experiment of that name, or all that have the profile."""
    if name != ALL:
        chosen = find_experiment(name)
        chosen.recipes(profile)  # an unknown profile is refused before anything runs
        return (chosen,)
    found = tuple(each for each in EXPERIMENTS.values() if profile in each.profiles)
    if not found:
        known = dict.fromkeys(name for each in EXPERIMENTS.values() for name in each.profiles)
        raise InputError(f"no experiment has a profile {profile!r}. There are: {', '.join(known)}.")
    return found


def launcher(count: int, device: str) -> "Callable[[dict[str, Any], str, Path], None]":
    """Trains by `eqco train` or `eqco transfer` in several processes."""

    def train(recipe: dict[str, Any], data: str, place: Path) -> None:
        detects = "detection" in recipe
        words = ["transfer", "detection"] if detects else ["train", data]
        if RunDirectory(place).last.exists():
            launch([*words, "--resume", str(place), "--device", device], count=count)
            return
        written = place.with_name(f"{place.name}.json")
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(written, recipe["detection"] if detects else recipe)
        arguments = ["--recipe", str(written)]
        if detects:
            arguments = [recipe["weights"], data, "--profile", str(written)]
            arguments += ["--backbone", recipe["backbone"]]
        launch([*words, *arguments, "--out", str(place), "--device", device], count=count)

    return train
