"""`eqco reproduce EXPERIMENT`: run it, or what is missing of it, and compare with the paper."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from eqco.cli.progress import progress_bar
from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.experiment import Site, missing_runs, reproduce
from eqco.report.catalog import PLOTS
from eqco.report.summary import write_summary
from eqco.runtime.errors import InputError


def run(
    experiment: Annotated[str, tyro.conf.Positional] = "",
    *,
    profile: str = "desk",
    seeds: tuple[int, ...] = (),
    results: Path = Path("results"),
    out: Path | None = None,
    work: Path = Path("runs"),
    cifar10: Path | None = None,
    list: bool = False,
) -> None:
    """Regenerate a figure, table or study, resuming from the records that exist.

    Args:
        experiment: its name, such as tab5; --list shows all.
        profile: smoke (seconds), desk (minutes) or paper (the published setting).
        seeds: seeds to run; the experiment's own if none are given.
        results: folder of the records. A run whose record is there is not repeated.
        out: folder for the table and the plot; RESULTS/EXPERIMENT if none is given.
        work: folder where long runs leave what they resume from.
        cifar10: folder with CIFAR-10 as images, train/CLASS/… and test/CLASS/…; downloaded if not
            given.
        list: show the experiments and their profiles instead.

    Examples:
        eqco reproduce --list
        eqco reproduce tab5 --profile smoke
        eqco reproduce tab5 --profile paper --seeds 0 1 2
    """
    console = Console()
    if list:
        for name, known in EXPERIMENTS.items():
            console.print(f"{name:<12} {known.title}  [{', '.join(known.profiles)}]", markup=False)
        return
    if not experiment:
        raise InputError(f"name an experiment. There are: {', '.join(EXPERIMENTS)}.")
    chosen = find_experiment(experiment)
    chosen.recipes(profile)
    seeds = seeds or chosen.seeds[profile]
    missing = missing_runs(chosen, profile, seeds, results)
    total = sum(chosen.size(recipe) for recipe, _ in missing)
    with progress_bar(console, f"{experiment}, {len(missing)} runs", total) as advance:
        site = Site(advance=advance, work=work, folders={"cifar10": cifar10} if cifar10 else {})
        records = reproduce(chosen, profile, seeds, results, site)
    write_summary(console, chosen, records, out or results / experiment, plot=PLOTS.get(experiment))
