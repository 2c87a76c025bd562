"""`eqco train`: a folder of images in, an encoder out."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from eqco.assembly import check_processes, resume, train
from eqco.assembly.parts import chance_level
from eqco.assembly.runs import RunInfo
from eqco.cli.display import describe_probe, format_steps, heading, training_display
from eqco.cli.launch import (
    LaunchOptions,
    exit_stopped,
    flag_value,
    is_restarted,
    refused_flag,
    speaks,
)
from eqco.recipes import RECIPES, Recipe, named_recipe, read_recipe, recipe_from_dict
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.loop import Outcome

DESCRIPTION = """Train an encoder by contrastive learning, and leave it in a run directory.

Examples:
    eqco train --profile demo
    eqco train photos/ --recipe simo --method.count 16
    eqco train cifar10 --recipe mocov2 --profile desk --objective.alpha 65536
    eqco train --resume runs/simo
    eqco train photos/ --processes 2
    torchrun --nproc-per-node 8 --max-restarts 3 -m eqco train photos/ --profile paper"""


@dataclass(frozen=True, kw_only=True)
class Options(Recipe):
    """The recipe's settings, and what is not part of a recipe."""

    source: Annotated[str, tyro.conf.Positional] = ""
    """A folder of images, or a data set by name (`eqco data --help`); if none is given, the
    embedded photos, or with --resume what the run was started with."""
    unlabelled: bool = False
    """Of a folder, take all images without classes."""
    channels: int | None = None
    """Bands of every image. By default pictures are colour; npy (height, width, bands), 16-bit grey
    and TIFFs of bands are taken as they are. 1 keeps grey pictures grey; 3 makes all colour."""
    cache_gib: float = 4.0
    """Image files are decoded and shrunk once, into a cache in the run directory, if that takes
    less than this; 0: every epoch decodes them anew."""
    recipe: str = "simo"
    """simo, mocov1, mocov2, simclr, or a JSON file such as a run's recipe.json."""
    profile: str = "folder"
    """What a named recipe is scaled to: folder (32 pixels, 20 epochs), desk (16 pixels, 12 epochs,
    as in the recorded CIFAR-10 experiments), paper, embedded, demo or smoke; see `eqco recipes`."""
    out: Path | None = None
    """The run directory; runs/RECIPE if none is given."""
    resume: Path | None = None
    """A run directory or checkpoint to resume; all settings come from it."""
    launch: Annotated[LaunchOptions, tyro.conf.arg(name="")] = field(default_factory=LaunchOptions)
    arguments: tyro.conf.Suppress[tuple[str, ...]] = ()
    """As they were given, for the other processes."""

    def __post_init__(self) -> None:
        """Nothing is checked while parsing: `run` makes the recipe, which checks itself."""


def parse(arguments: Sequence[str]) -> Options:
    """Options with the defaults of the chosen recipe and profile."""
    if flag := refused_flag(arguments, allowed=("--out",)):
        own = "" if flag in ("--recipe", "--profile") else "--recipe RUN/recipe.json "
        raise InputError(
            f"{flag} was given beside --resume, but a resumed run keeps its recipe. Leave it "
            f"out, or start a new run: eqco train DATA {own}{flag} … --out OTHER."
        )
    name = flag_value(arguments, "--recipe", "simo")
    profile = flag_value(arguments, "--profile", "folder")
    if name in RECIPES or not Path(name).exists():
        recipe = named_recipe(name, profile)
    else:
        recipe = read_recipe(Path(name))
    settings = {entry.name: getattr(recipe, entry.name) for entry in fields(Recipe)}
    defaults = Options(recipe=name, profile=profile, **settings)
    options = tyro.cli(
        Options, args=list(arguments), default=defaults, prog="eqco train", description=DESCRIPTION
    )
    return replace(options, arguments=tuple(arguments))


def run(options: Options) -> None:
    """Train, or resume a run."""
    if options.resume is not None and options.out is not None:
        raise InputError(
            f"--out {options.out} and --resume {options.resume} were both given; a resumed run "
            f"stays in its own directory. Leave out --out."
        )
    recipe = Recipe(**{entry.name: getattr(options, entry.name) for entry in fields(Recipe)})
    checkpoint = options.resume
    if checkpoint is not None:
        place = checkpoint.resolve()
        place = place.parent.parent if place.suffix == ".pt" else place
        recipe = recipe_from_dict(RunDirectory(place).read_recipe())
    else:
        place = options.out or Path("runs") / Path(options.recipe).stem
    options.launch.check()
    if options.launch.processes != 1:
        check_processes(recipe, options.launch.processes)
        options.launch.launch("train", options.arguments)
        return
    if is_restarted(place):
        checkpoint = place
    elif checkpoint is not None and speaks() and not RunDirectory(place).result.exists():
        print_differences(place)
    begun: list[RunInfo] = []

    def on_start(about: RunInfo) -> None:
        begun.append(about)
        if speaks():
            print("\n".join(heading(about, str(place))), flush=True)

    with training_display(sys.stdout if speaks() else None) as show:
        how: dict[str, Any] = {
            "device": options.launch.device,
            "timeout": options.launch.timeout,
            "on_start": on_start,
            "show": show,
        }
        if checkpoint is not None:
            outcome = resume(checkpoint, options.source or None, **how)
        else:
            how |= {"unlabelled": options.unlabelled, "channels": options.channels}
            how |= {"cache_gib": options.cache_gib}
            outcome = train(recipe, options.source or "groceries", out=place, **how)
    conclude(outcome, begun[0], place)


def print_differences(place: Path) -> None:
    """A run resumed on another number of processes is exact to rounding, not to the bit."""
    before = RunDirectory(place).read_environment().get("processes", 1)
    now = int(os.environ.get("WORLD_SIZE", "1"))
    if before != now:
        print(
            f"begun on {before} processes, resumed on {now}: the same to rounding; layers that "
            f"draw at random themselves, such as dropout, draw otherwise"
        )


def conclude(outcome: Outcome, begun: RunInfo, place: Path) -> None:
    """Say how it ended, and what to do next."""
    if outcome.stopped_by is not None:
        exit_stopped(outcome.stopped_by, place, "eqco train", after=f" after step {outcome.step}")
    if not speaks():
        return
    if begun.step == outcome.step:
        steps = format_steps(outcome.step)
        print(f"{place} was finished already, after {steps}; nothing was trained")
    else:
        print(f"trained for {format_steps(outcome.step)}: {place}")
    for name, value in outcome.probe.items():
        print(f"  {describe_probe(name, value, chance_level(begun.source))}")
