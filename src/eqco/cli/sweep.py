"""`eqco sweep`: one recipe with every combination of some settings, for several seeds."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from eqco.assembly.parts import check_device
from eqco.cli.board import RunsBoard
from eqco.cli.cluster import Cluster, ClusterOptions
from eqco.cli.flags import flag_value
from eqco.cli.help_text import help_text
from eqco.cli.weights import refuse_several_processes
from eqco.data.opening import resolved_name, short_name
from eqco.experiments.experiment import (
    Comparison,
    Experiment,
    RunContext,
    found_records,
    planned_runs,
)
from eqco.experiments.sweep import SWEEP, SweepTask, parse_over, sweep_experiment
from eqco.recipes import (
    RECIPES,
    Recipe,
    named_recipe,
    read_recipe,
    recipe_to_dict,
    with_settings,
)
from eqco.report.run_comparison import loss_note
from eqco.report.tables import comparison_table, markdown, print_table
from eqco.runtime.atomic_files import write_text
from eqco.runtime.errors import InputError
from eqco.training.alarms import NonFiniteLossError

DESCRIPTION = """Train every combination of some settings, for several seeds, and compare them.

Ends with a table: the mean over seeds of each combination, on validation images. Stopped at any
moment, the same command resumes; with more values or seeds it does what is missing.

Precision auto is chosen once, for all trainings; compile auto compiles none of them.

Where Ray is installed (pip install ".[cluster]") several trainings run at a time, with --ray
ADDRESS on a cluster. The results are the same as one after the other, to the bit.

Examples:
    eqco sweep photos/ --over method.count=4,16,64 --over objective.alpha=None,65536 --seeds 0 1 2
    eqco sweep photos/ --recipe runs/photos/recipe.json --over objective.temperature=0.1,0.2
    eqco sweep /shared/photos --over encoder.width=1,2 --out /shared/widths --ray 10.0.0.1:6379"""


@dataclass(frozen=True, kw_only=True)
class Options(Recipe):
    """The recipe's settings, what to sweep over, and where."""

    source: Annotated[str, tyro.conf.Positional] = "groceries"
    """A folder of images, or a data set by name (`eqco data --help`)."""
    over: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A setting of the recipe and its values, such as method.count=4,16,64; may be repeated."""
    seeds: tuple[int, ...] = (0,)
    """Each combination is trained once for each of them."""
    recipe: str = "simo"
    """simo, mocov1, mocov2, simclr; or a JSON file such as a run's recipe.json, of which all but
    the seed is taken."""
    profile: str = "folder"
    """What a named recipe is scaled to; see `eqco recipes`."""
    unlabelled: bool = False
    """Of a folder, take all images without classes."""
    channels: int | None = None
    """Bands of every image; see `eqco train --help`."""
    out: Path | None = None
    """Folder of the trainings, the records and the table; sweeps/ and the name of the data if none
    is given. On a cluster all machines must see it under the same path."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """Where to train: cpu, cuda, mps."""
    cluster: Cluster = field(default_factory=lambda: ClusterOptions(cores=1))

    def __post_init__(self) -> None:
        """Nothing is checked while parsing: `run` makes the recipe, which checks itself."""


def parse(arguments: Sequence[str]) -> Options:
    """Options with the defaults of the chosen recipe and profile."""
    name = flag_value(arguments, "--recipe", "simo")
    profile = flag_value(arguments, "--profile", "folder")
    if name in RECIPES or not Path(name).exists():
        recipe = named_recipe(name, profile)
    else:
        recipe = with_settings(read_recipe(Path(name)), seed=0)  # --seeds has them
    settings = {entry.name: getattr(recipe, entry.name) for entry in fields(Recipe)}
    defaults = Options(recipe=name, profile=profile, **settings)
    return tyro.cli(
        Options,
        args=list(arguments),
        default=defaults,
        prog="eqco sweep",
        description=help_text(DESCRIPTION),
    )


def run(options: Options) -> None:
    """Do what is missing of the sweep, and show the table."""
    refuse_several_processes("eqco sweep", "a sweep")
    check_device(options.device)
    options.cluster.check()
    if not options.over:
        raise InputError("nothing to sweep over; give --over, such as --over method.count=4,16,64.")
    plain = recipe_to_dict(options)
    settings = {entry.name: plain[entry.name] for entry in fields(Recipe)}
    if settings["training"]["seed"] != 0:
        raise InputError(f"--training.seed {settings['training']['seed']}; give --seeds.")
    experiment = sweep_experiment(
        resolved_name(options.source),
        settings,
        parse_over(options.over),
        seeds=options.seeds,
        unlabelled=options.unlabelled,
        channels=options.channels,
        device=options.device,
    )
    out = (options.out or Path("sweeps") / short_name(options.source)).absolute()
    console = Console()
    if chosen := chosen_for_auto(options, experiment.profiles[SWEEP]):
        console.print(f"all trainings: {chosen}", markup=False, highlight=False)
    failed = train_all(console, experiment, options, out)
    records = found_records(experiment, SWEEP, options.seeds, out)
    if records:
        show_table(console, experiment, experiment.compare(records), out, options.seeds)
    for title, reason in failed.items():
        console.print(f"failed: {title}: {reason}", markup=False, highlight=False)
    if failed:
        raise InputError(f"{len(failed)} of the trainings failed.")


def chosen_for_auto(options: Options, tasks: Sequence[SweepTask]) -> str:
    """What is taken where the recipe says auto; empty if it says so nowhere."""
    asked, chosen = options.training, tasks[0].recipe.training
    found: dict[str, tuple[object, object]] = {
        "precision": (asked.precision, chosen.precision),
        "compile": (asked.compile, chosen.compile),
    }
    swept = {name for name, _ in tasks[0].values}
    return ", ".join(
        f"{name} {taken} (auto)"
        for name, (said, taken) in found.items()
        if said == "auto" and f"training.{name}" not in swept
    )


def train_all(
    console: Console, experiment: Experiment[SweepTask], options: Options, out: Path
) -> dict[str, str]:
    """Do the runs that have no record yet; those that diverged, with what they said."""
    context = RunContext(work=out / "runs", device=options.device)
    runs = planned_runs(experiment, SWEEP, options.seeds, out, context)
    total = len(experiment.profiles[SWEEP]) * len(options.seeds)
    address = options.cluster.address(len(runs))
    how = "one after the other" if address is None else f"by Ray ({address})"
    console.print(
        f"{total} trainings of {experiment.title}, {total - len(runs)} done before; {how}; to "
        f"{out}",
        markup=False,
        highlight=False,
    )
    titles = [f"{run.task.title}, seed {run.seed}" for run in runs]
    failed: dict[str, str] = {}
    with RunsBoard(console, titles, [run.size for run in runs]) as board:
        perform = options.cluster.perform(
            address, shared=out, device=options.device, show=board.show
        )
        try:
            with closing(perform(runs)) as ended:
                for run, error in ended:
                    number = runs.index(run)
                    board.end(number, failed=error is not None)
                    if error is None:
                        continue
                    if not isinstance(error, NonFiniteLossError):
                        raise error
                    failed[titles[number]] = str(error)
        except KeyboardInterrupt:
            console.print("what is trained is kept; the same command resumes", markup=False)
            raise
    return failed


def show_table(
    console: Console,
    experiment: Experiment[SweepTask],
    cells: Sequence[Comparison],
    out: Path,
    seeds: Sequence[int],
) -> None:
    """Print the table and write it beside the records."""
    header, lines = comparison_table(cells)
    notes = [f"Seeds {', '.join(map(str, seeds))}; ± the standard deviation over them."]
    if any("%" in str(cell.column) for cell in cells):
        notes.append("Accuracy on validation images; on test images: eqco eval RUN.")
    if note := loss_note([task.recipe for task in experiment.profiles[SWEEP]]):
        notes.append(note)
    print_table(console, header, lines)
    for note in notes:
        console.print(note, markup=False, highlight=False)
    page = out / "table.md"
    write_text(page, "\n\n".join([f"# {experiment.title}", markdown(header, lines), *notes]) + "\n")
    console.print(f"written: {page}", markup=False, highlight=False)
