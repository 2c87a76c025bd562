"""`eqco transfer detection`: average precision of a detector from pre-trained weights."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from eqco.cli.flags import flag_value
from eqco.cli.help_text import help_text
from eqco.cli.launch import (
    LaunchOptions,
    exit_stopped,
    is_restarted,
    refused_flag,
    speaks,
)
from eqco.detection import (
    METRICS,
    Scores,
    Transfer,
    open_annotated,
    require_pycocotools,
    resume_transfer,
    transfer_detection,
)
from eqco.detection.settings import DetectionSettings, detection_profile, with_epochs
from eqco.report.detections import plot_detections
from eqco.report.tables import print_table
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.display import training_display

DESCRIPTION = """Fine-tune Faster R-CNN on a ResNet from pre-trained weights, and test it.

WEIGHTS is a run directory, a checkpoint, a file with a state dict (MoCo's, torchvision's, …),
torchvision:resnet50, or random. DATA is a folder in COCO's form (instances_SPLIT.json here or in
annotations/, images in SPLIT/) or in Pascal VOC's (Annotations/, JPEGImages/, ImageSets/Main/).
Leaves AP, AP50, AP75, APs, APm, APl, the AP of each class and a picture of detections.

--epochs alone makes a profile shorter or longer: drops and warm-up follow, unless they are given.

Examples:
    eqco transfer detection runs/simo blood-cells/ --profile desk
    eqco transfer detection random VOC2007/ --backbone resnet18 --profile desk
    eqco transfer detection runs/simo coco/ --processes 8 --restarts 3
    torchrun --nproc-per-node 8 -m eqco transfer detection torchvision:resnet50 coco/ --workers 4
    eqco transfer detection --resume runs/detection"""


@dataclass(frozen=True, kw_only=True)
class Options(DetectionSettings):
    """The settings of the fine-tuning, and what is not part of them."""

    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")] = ""
    """Where the backbone starts from."""
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = ""
    """A folder of annotated images."""
    profile: str = "paper"
    """paper (COCO on 8 GPUs), desk (a few hundred images on a processor) or a JSON file of
    settings: what to start from."""
    backbone: str = "resnet50"
    """Of the weights `random`: resnet18, resnet34 or resnet50. Other weights know it."""
    train_split: str = "train"
    """To train on."""
    test_split: str | None = None
    """To test on; test, or val where there is none."""
    out: Path = Path("runs/detection")
    """The run directory."""
    resume: Path | None = None
    """A run directory to resume; all settings come from it. DATA alone may be given beside it,
    if the folder was moved."""
    launch: Annotated[LaunchOptions, tyro.conf.arg(name="")] = field(default_factory=LaunchOptions)
    workers: int = 0
    """Processes that read images ahead."""
    arguments: tyro.conf.Suppress[tuple[str, ...]] = ()
    """As they were given, for the other processes."""

    def __post_init__(self) -> None:
        """Nothing is checked while parsing: `run` makes the settings, which check themselves."""


def parse(arguments: Sequence[str]) -> Options:
    """Options with the defaults of the chosen profile."""
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
    if list(arguments[:1]) != ["detection"] and not wants_help:
        given = f"eqco transfer {arguments[0]}" if arguments else "eqco transfer"
        raise InputError(
            f"{given}: to what? The first word is what to transfer to, and there is detection: "
            f"eqco transfer detection WEIGHTS DATA."
        )
    if flag := refused_flag(arguments, allowed=("--workers",)):
        raise InputError(
            f"{flag} was given beside --resume, but a resumed run keeps its settings. Leave it "
            f"out, or start a new run with another --out."
        )
    settings = detection_profile(flag_value(arguments, "--profile", "paper"))
    values = {entry.name: getattr(settings, entry.name) for entry in fields(DetectionSettings)}
    options = tyro.cli(
        Options,
        args=[a for place, a in enumerate(arguments) if place or a != "detection"],
        default=Options(**values),
        prog="eqco transfer detection",
        description=help_text(DESCRIPTION),
    )
    return replace(options, arguments=tuple(arguments))


def settings_of(options: Options) -> DetectionSettings:
    """The chosen settings: drops and warm-up follow --epochs unless they are typed."""
    values = {entry.name: getattr(options, entry.name) for entry in fields(DetectionSettings)}
    profile = detection_profile(options.profile)
    if options.resume is None and options.epochs != profile.epochs:
        scaled = with_epochs(profile, options.epochs)
        values |= {name: getattr(scaled, name) for name in followers(options)}
    return DetectionSettings(**values)


def followers(options: Options) -> list[str]:
    """The settings that follow --epochs: drops and warm-up, unless they are typed."""
    typed = {argument.split("=")[0].replace("-", "_") for argument in options.arguments}
    return [name for name in ("drops", "warmup_steps") if f"__{name}" not in typed]


def fit_warmup(options: Options, settings: DetectionSettings) -> DetectionSettings:
    """A warm-up that follows --epochs takes no more than half of the steps that the data gives."""
    unchanged = settings.epochs == detection_profile(options.profile).epochs
    if unchanged or "warmup_steps" not in followers(options):
        return settings
    images = open_annotated(
        Path(options.data), options.train_split, on_bad_boxes=settings.on_bad_boxes
    )
    steps = settings.epochs * (len(images) // settings.num_images)
    return replace(settings, warmup_steps=min(settings.warmup_steps, steps // 2))


def print_changes(options: Options, settings: DetectionSettings) -> None:
    """Say which settings differ from the profile's without having been typed."""
    profile = detection_profile(options.profile)
    changes = [
        f"{name}={getattr(settings, name)} (was {getattr(profile, name)})"
        for name in followers(options)
        if getattr(settings, name) != getattr(profile, name)
    ]
    if changes:
        print(f"--epochs {settings.epochs} (was {profile.epochs}), so {' and '.join(changes)}")


def run(options: Options) -> None:
    """Fine-tune, or resume; print the table and write the picture."""
    settings = settings_of(options)
    check(options)
    require_pycocotools()  # also before other processes are started
    if options.launch.processes != 1:
        options.launch.launch("transfer", options.arguments)
        return
    place = options.resume or options.out
    restarted = is_restarted(place)
    if options.resume is None and not restarted:
        settings = fit_warmup(options, settings)
        if speaks():
            print_changes(options, settings)
    with training_display(sys.stdout if speaks() else None) as show:
        how: dict[str, Any] = {
            "device": options.launch.device,
            "workers": options.workers,
            "timeout": options.launch.timeout,
            "show": show,
        }
        if options.resume is not None or restarted:
            # the only word beside a resumed run is its data
            moved = options.weights if options.resume is not None else options.data
            outcome = resume_transfer(place, moved or None, **how)
        else:
            outcome = transfer_detection(
                options.weights,
                options.data,
                settings,
                out=place,
                backbone=options.backbone,
                train_split=options.train_split,
                test_split=options.test_split,
                **how,
            )
    conclude(outcome, place)


def check(options: Options) -> None:
    """Refuse words that are missing, or that a resumed run knows by itself."""
    options.launch.check()
    if options.resume is not None and options.data:
        raise InputError(
            f"{options.weights} and {options.data} were given beside --resume {options.resume}, "
            f"which knows its weights. Leave them out, or give DATA alone."
        )
    if options.resume is None and not options.data:
        raise InputError("give WEIGHTS and DATA: eqco transfer detection runs/simo coco/.")


def conclude(outcome: Transfer, place: Path) -> None:
    """Say how it ended, and what to do next."""
    if outcome.stopped_by is not None:
        exit_stopped(outcome.stopped_by, place, "eqco transfer detection")
    if not speaks():
        return
    assert outcome.scores is not None
    assert outcome.tested is not None
    console = Console()
    console.print(f"average precision on {outcome.tested.name}, %", markup=False)
    print_table(console, *score_table(outcome.scores))
    picture = plot_detections(outcome.tested, outcome.found, place / "detections.png")
    for path in (RunDirectory(place).result, picture):
        console.print(f"written: {path}", markup=False)


def score_table(scores: Scores) -> tuple[list[str], list[list[str]]]:
    """One line for all classes, and one for each.

    >>> score_table(Scores({"AP": 0.25, "AP50": 0.5}, {"cat": {"AP": 0.25, "AP50": 0.5}}))[1][1]
    ['cat', '25.0', '50.0', '', '', '', '']
    """
    rows = {"all classes": scores.overall, **scores.classes}
    return ["", *METRICS], [
        [name, *(f"{100 * found[metric]:.1f}" if metric in found else "" for metric in METRICS)]
        for name, found in rows.items()
    ]
