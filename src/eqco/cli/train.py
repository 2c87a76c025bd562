"""`eqco train`: a folder of images in, an encoder out."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from eqco.assembly import check_processes, resume, train
from eqco.assembly.choosing import DEFAULT_MINUTES
from eqco.assembly.heading import format_steps, heading
from eqco.assembly.parts import training_split
from eqco.assembly.runs import RunInfo, refuse_extended_file
from eqco.cli.flags import flag_value, flag_values
from eqco.cli.help_text import help_text
from eqco.cli.launch import (
    LaunchOptions,
    exit_stopped,
    is_restarted,
    refused_flag,
    speaks,
)
from eqco.cli.progress import show_stage
from eqco.data.opening import open_source, short_name
from eqco.recipes import (
    RECIPES,
    Recipe,
    named_recipe,
    read_recipe,
    recipe_from_dict,
    with_settings,
)
from eqco.recipes.rules import BASE, Facts, before_length, choose_batch
from eqco.report.assessment import assess_run, is_assessed
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.runtime.seeds import generator_for
from eqco.training.display import training_display
from eqco.training.loop import Outcome

DESCRIPTION = """Train an encoder by contrastive learning, and leave it in a run directory.

Without --recipe and --profile it chooses for itself: image size, network, batch, length and the
rest, for the images, this machine and --minutes, whatever is shown as their default below. Each
choice is printed with its reason, and a setting that is given is kept.

Examples:
    eqco train photos/
    eqco train photos/ --minutes 5 --data.image-size 64
    eqco train --extend runs/photos --training.epochs 60
    eqco train cifar10 --recipe mocov2 --profile desk --objective.alpha 65536
    eqco train --resume runs/photos
    eqco train photos/ --processes 2
    torchrun --nproc-per-node 8 --max-restarts 3 -m eqco train photos/ --profile paper"""

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Options(Recipe):
    """The recipe's settings, and what is not part of a recipe."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """A folder of images, a CSV or Parquet list of them, WebDataset shards
    ("train-{0000..0031}.tar"), hf:PATH or hf:NAME of the library datasets, or a data set by name
    (`eqco data --help`); if none is given, the embedded photos, or with --resume and --extend what
    the run was started with."""
    recipe: str = AUTO
    """auto: chosen for the images and the machine; simo or another name of `eqco recipes`; or a
    JSON file such as a run's recipe.json, whose warm-up and drops keep their share of other
    epochs."""
    profile: str = "folder"
    """What a named recipe is scaled to: folder (32 pixels, 20 epochs), desk (16 pixels, 12 epochs,
    as in the recorded CIFAR-10 experiments), paper, embedded, demo or smoke; see `eqco recipes`."""
    minutes: float = DEFAULT_MINUTES
    """How long the training may take, where its length is chosen."""
    out: Path | None = None
    """The run directory; runs/ and the name of the data or of the recipe if none is given."""
    resume: Path | None = None
    """A run directory or checkpoint to resume; all settings come from it, but for --data.workers if
    they are given, and --training.compile False, with which it goes on uncompiled: the same to
    rounding, not to the bit."""
    extend: Path | None = None
    """A run to continue as a new one: its recipe but for what is given, and all that it has trained
    (encoder, head, predictors, prototypes) from its last checkpoint. Begun anew are learning rate,
    optimiser, key encoder (a copy of the encoder) and its decay, queue, memory bank, normalisers
    and what counts epochs. --training.epochs are so many more than it has, by default as many more;
    with others warm-up and drops keep their share of them, unless they are given. Orders and views
    are drawn anew, by a seed of its own (--training.seed)."""
    init: str | None = None
    """First weights of the encoder: a run, or a file of weights of torchvision, timm or MoCo."""
    unlabelled: bool = False
    """Of a folder, take all images without classes."""
    channels: int | None = None
    """Bands of every image. By default pictures are colour; npy (height, width, bands), 16-bit grey
    and TIFFs of bands are taken as they are. 1 keeps grey pictures grey; 3 makes all colour."""
    cache_gib: float = 4.0
    """Image files are decoded and shrunk once, into a cache in the run directory, if that takes
    less than this; 0: every epoch decodes them anew."""
    launch: Annotated[LaunchOptions, tyro.conf.arg(name="")] = field(default_factory=LaunchOptions)
    arguments: tyro.conf.Suppress[tuple[str, ...]] = ()
    """As they were given, for the other processes."""
    notes: tyro.conf.Suppress[tuple[str, ...]] = ()
    """What was made of them that stands nowhere else."""

    def __post_init__(self) -> None:
        """Nothing is checked while parsing: `run` makes the recipe, which checks itself."""

    @property
    def is_chosen(self) -> bool:
        """Whether the rules choose what is not given."""
        return self.recipe == AUTO and self.extend is None

    @property
    def place(self) -> Path:
        """The run directory of a new run."""
        if self.out is not None:
            return self.out
        if self.extend is not None:
            run = self.extend.resolve() if self.extend.name in ("", "..") else self.extend
            return run.with_name(f"{run.name}-extended")
        name = short_name(self.source or "groceries")
        return Path("runs") / (name if self.is_chosen else Path(self.recipe).stem)


def parse(arguments: Sequence[str]) -> Options:
    """Options with the defaults of the chosen recipe and profile."""
    allowed = ["--out", "--data.workers"]
    if set(flag_values(arguments, "--training.compile")) == {"False"}:
        allowed.append("--training.compile")
    if flag := refused_flag(arguments, allowed=allowed):
        raise InputError(
            f"{flag} was given beside --resume, but a resumed run keeps its recipe. Leave it "
            f"out, or {beside_resume(flag)}."
        )
    profile = flag_value(arguments, "--profile", "")
    name = flag_value(arguments, "--recipe", "simo" if profile else AUTO)
    extended = flag_value(arguments, "--extend", "")
    if (name != AUTO or extended) and flag_value(arguments, "--minutes", ""):
        raise InputError(
            "--minutes was given beside a recipe, which has its length. Give --training.epochs, or "
            "leave out --recipe, --profile and --extend to have the length chosen."
        )
    if name == AUTO and profile:
        raise InputError(f"--profile {profile} scales a named recipe; leave out --recipe {AUTO}.")
    for flag, given in (("--recipe", name != AUTO), ("--profile", bool(profile))):
        if extended and given:
            raise InputError(
                f"{flag} was given beside --extend, but an extended run keeps its recipe, but for "
                f"single settings. Leave it out, or start anew from its weights: eqco train DATA "
                f"{flag} … --init {shlex.quote(extended)}."
            )
    notes: tuple[str, ...] = ()
    if extended:
        refuse_extended_file(extended)
        recipe = recipe_from_dict(RunDirectory(Path(extended)).read_recipe())
        before = recipe.training.seed
        recipe = with_settings(recipe, seed=next_seed(before))
        if flag_value(arguments, "--training.seed", "") == "":
            notes = (f"seed {recipe.training.seed}, which follows {before} of {extended}",)
    elif name == AUTO:
        recipe = BASE
    elif name in RECIPES or not Path(name).exists():
        recipe = named_recipe(name, profile or "folder")
    else:
        recipe = read_recipe(Path(name))
    settings = {entry.name: getattr(recipe, entry.name) for entry in fields(Recipe)}
    defaults = Options(recipe=name, profile=profile or "folder", **settings)
    options = tyro.cli(
        Options,
        args=list(arguments),
        default=defaults,
        prog="eqco train",
        description=help_text(DESCRIPTION),
    )
    options = replace(options, arguments=tuple(arguments), notes=notes)
    return options if recipe is BASE or name in RECIPES else keep_shares(options, recipe)


def beside_resume(flag: str) -> str:
    """What to do instead of giving this flag to a resumed run."""
    if flag == "--extend":
        return "leave out --resume: eqco train --extend RUN makes a new run, from its last weights"
    if flag == "--training.epochs":
        return "train it longer as a new run: eqco train --extend RUN --training.epochs …"
    own = {"--recipe", "--profile", "--minutes"}  # those that no recipe of a file goes with
    file = "" if flag in own else "--recipe RUN/recipe.json "
    return f"start a new run: eqco train DATA {file}{flag} … --out OTHER"


def keep_shares(options: Options, recipe: Recipe) -> Options:
    """The options with the warm-up and the drops of a run's recipe at their share of the epochs,
    where other epochs were given and these were not.

    In a training too short for a share of its own, a drop is left out.
    """
    epochs, before, own = options.training.epochs, recipe.training.epochs, recipe.optimiser
    if epochs == before:
        return options
    given, notes, optimiser = given_settings(options), options.notes, options.optimiser
    if own.warmup_epochs and "warmup_epochs" not in given:
        warmup = own.warmup_epochs * epochs / before
        optimiser = replace(optimiser, warmup_epochs=warmup)
        note = f"warm-up of {warmup:.3g} of {epochs} epochs, the share that it had of {before}"
        notes = (*notes, note)
    if own.drops and "drops" not in given:
        scaled = sorted({round(drop * epochs / before) for drop in own.drops})
        drops = tuple(drop for drop in scaled if 0 < drop < epochs)
        optimiser = replace(optimiser, drops=drops)
        now, then = (", ".join(map(str, each)) for each in (drops or ("none",), own.drops))
        note = f"drops at {now} of {epochs} epochs, where they were at {then} of {before}"
        notes = (*notes, note)
    return replace(options, optimiser=optimiser, notes=notes)


def next_seed(seed: int) -> int:
    """The seed of a run that extends one of that seed: other orders, crops and colours.

    >>> next_seed(0), next_seed(next_seed(0))
    (1109411007, 523685872)
    """
    return generator_for("extension", seed).initial_seed() % 2**31


def run(options: Options) -> None:
    """Train, or resume a run."""
    if options.resume is not None and options.out is not None:
        raise InputError(
            f"--out {options.out} and --resume {options.resume} were both given; a resumed run "
            f"stays in its own directory. Leave out --out."
        )
    checkpoint, place = options.resume, options.place
    recipe: Recipe | None = None
    if checkpoint is not None:
        place = checkpoint.resolve()
        place = place.parent.parent if place.suffix == ".pt" else place
        recipe = recipe_from_dict(RunDirectory(place).read_recipe())
    elif not options.is_chosen:
        recipe = Recipe(**{entry.name: getattr(options, entry.name) for entry in fields(Recipe)})
    options.launch.check()
    if options.launch.processes != 1:
        check_shares(recipe, options)
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
            print("\n".join([*heading(about, str(place)), *options.notes]), flush=True)

    with training_display(sys.stdout if speaks() else None) as show:
        how: dict[str, Any] = {
            "device": options.launch.device,
            "timeout": options.launch.timeout,
            "on_start": on_start,
            "show": show,
        }
        if checkpoint is not None:
            given = given_settings(options)
            how["workers"] = given.get("workers")
            if given.get("compile") is False:
                how["compile"] = False
            outcome = resume(checkpoint, options.source or None, **how)
        else:
            outcome = train(recipe=recipe, out=place, **new_run(options), **how)
    conclude(outcome, begun[0])


def check_shares(recipe: Recipe | None, options: Options) -> None:
    """Refuse a number of processes that cannot share the batch, once, before they are started.

    Of a recipe that is yet to be chosen the batch is known where it is given, or where a folder has
    so few images that it is no larger than they are many.
    """
    count, given = options.launch.processes, given_settings(options)
    if recipe is None and "num_queries" in given:
        recipe = before_length(given)
    if recipe is not None:
        check_processes(recipe, count)
    elif options.source and has_fewer_files(Path(options.source).expanduser(), 2 * count):
        source = open_source(
            options.source,
            unlabelled=options.unlabelled,
            channels=options.channels,
            on_unreadable=given.get("on_unreadable", "error"),
        )
        images = len(training_split(source))
        choose_batch(Facts(images=images, side=0, minutes=options.minutes, processes=count))


def has_fewer_files(folder: Path, count: int) -> bool:
    """Whether it is a folder with fewer files than that, in it and below."""
    files = (file for _, _, names in os.walk(folder) for file in names)
    return folder.is_dir() and sum(1 for _ in islice(files, count)) < count


def new_run(options: Options) -> dict[str, Any]:
    """What `train` needs beside a recipe: data, first weights and, where it chooses, what is given.

    A run that is extended gives its data.
    """
    source, unlabelled, channels = options.source, options.unlabelled, options.channels
    if options.extend is not None:
        run = RunDirectory(options.extend)
        began = run.read_environment()
        network = began.get("network")
        if network is not None:
            raise InputError(
                f"{run.path} trains a module of your own, {network}, which no command can build. "
                f"Train it longer in Python: {run.longer_training()}."
            )
        if not (source or began["source"]):
            raise InputError(
                f"{run.path} was trained on a Dataset given in Python. Give a folder, or train it "
                f"longer in Python: {run.longer_training()}."
            )
        if not source:
            source, unlabelled = began["source"], began["unlabelled"]
            channels = began.get("channels") if channels is None else channels
    found: dict[str, Any] = {
        "data": source or "groceries",
        "unlabelled": unlabelled,
        "channels": channels,
        "init": options.init,
        "extend": options.extend,
        "cache_gib": options.cache_gib,
    }
    if not options.is_chosen:
        return found
    return found | {"minutes": options.minutes} | given_settings(options)


def given_settings(options: Options) -> dict[str, Any]:
    """The settings of the recipe that stand on the command line, by their names."""
    found = {}
    for argument in options.arguments:
        group, dot, flag = argument.split("=")[0].removeprefix("--").partition(".")
        values = getattr(options, group, None) if dot and argument.startswith("--") else None
        name = flag.replace("-", "_")
        name = name if hasattr(values, name) else name.removeprefix("no_")
        if hasattr(values, name):
            found[name] = getattr(values, name)
    return found


def print_differences(place: Path) -> None:
    """A run resumed on another number of processes is exact to rounding, not to the bit."""
    before = RunDirectory(place).read_environment().get("processes", 1)
    now = int(os.environ.get("WORLD_SIZE", "1"))
    if before != now:
        print(
            f"begun on {before} processes, resumed on {now}: the same to rounding; layers that "
            f"draw at random themselves, such as dropout, draw otherwise"
        )


def conclude(outcome: Outcome, begun: RunInfo) -> None:
    """Say how it ended, what it is worth beside simpler things, and what to do next."""
    place = outcome.path
    if outcome.stopped_by is not None:
        exit_stopped(outcome.stopped_by, place, "eqco train", after=f" after step {outcome.step}")
    if not speaks():
        return
    if begun.step == outcome.step and is_assessed(place):
        steps = format_steps(outcome.step)
        print(f"{place} was finished already, after {steps}; nothing was trained")
        return
    print(f"trained for {format_steps(outcome.step)}: {place}")
    console = Console()
    assess_run(begun, place, console, stage=partial(show_stage, console))
