"""`eqco eval`: the accuracy of an encoder, beside raw pixels and random weights."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from rich.console import Console

from eqco.assembly import Weights
from eqco.assembly.comparison import compare_encoder
from eqco.assembly.parts import check_device
from eqco.assembly.weights import run_of, unfinished_note, unfinished_step
from eqco.cli.progress import show_stage
from eqco.cli.weights import (
    AS_IN_WEIGHTS,
    Network,
    bands_of,
    list_unreadable,
    refuse_several_processes,
)
from eqco.data.opening import DEFAULT_ROOT, kind_of, open_source, resolved_name
from eqco.data.scanning import Check
from eqco.data.stored import OnUnreadable
from eqco.encoders import choose_precision
from eqco.evaluation.finetuning import FineTuning, choose_tuning_precision
from eqco.evaluation.linear import LINEAR_PROTOCOLS, LinearProtocol
from eqco.report.evaluation import evaluation_files, print_evaluation, write_evaluation
from eqco.runtime.atomic_files import refuse_existing, refuse_unwritable
from eqco.runtime.errors import InputError


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Of the protocols linear and finetune, which train."""

    variant: Literal["moco", "simclr"] = "moco"
    """Of linear: moco (rate 30, 100 epochs) or simclr (rate 0.1, decay 1e-6, 90 epochs)."""
    epochs: int | None = None
    """By default as published, and in finetune 30, or 60 with at most 1 % of the labels."""
    batch_size: int | None = None
    """By default 256 as published, in finetune all images if they are fewer."""
    learning_rate: float | None = None
    """By default as published, for batches of 256 and a ResNet-50, and in finetune 0.05."""
    labels: float = 1.0
    """Share of each class's training images that finetune learns from: 0.01, 0.1, 1."""
    head_layers: int = 0
    """Layers of a run's projection head that finetune keeps; one in SimCLR v2."""

    def linear(self) -> LinearProtocol:
        """The paper's protocol, with what was given changed."""
        return replace(LINEAR_PROTOCOLS[self.variant], **self.given())

    def fine_tuning(self) -> FineTuning:
        """Fine-tuning, with what was given changed."""
        return FineTuning(label_share=self.labels, head_layers=self.head_layers, **self.given())

    def given(self) -> dict[str, Any]:
        """What is not left to the protocol."""
        names = ("epochs", "batch_size", "learning_rate")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


AS_PUBLISHED = TrainingOptions()


def run(
    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_WEIGHTS")],
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "",
    /,
    *,
    protocol: Literal["knn", "probe", "linear", "finetune"] = "knn",
    test: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    neighbours: int | None = None,
    temperature: float = 0.07,
    training: Annotated[TrainingOptions, tyro.conf.OmitArgPrefixes] = AS_PUBLISHED,
    network: Network = AS_IN_WEIGHTS,
    channels: int = 3,
    seed: int = 0,
    device: str = "cpu",
    workers: int = 0,
    precision: Literal["float32", "bfloat16", "auto"] = "float32",
    on_unreadable: Literal["error", "skip"] | None = None,
    root: Path = DEFAULT_ROOT,
) -> None:
    """Test an encoder on labelled images, beside raw pixels and random weights.

    Protocols:
        knn       weighted vote of the nearest training images; nothing is trained; seconds
        probe     logistic regression on the features; seconds; not the paper's protocol
        linear    the paper's: a classifier trained by SGD on random crops, 100 epochs; given again
                  after a stop, the command resumes from the last epoch
        finetune  all weights trained with --labels of the images, beside the same network from
                  its untrained weights; resumes like linear

    Args:
        weights: a run directory or one of its checkpoints; a file of weights of torchvision, timm
            or MoCo; torchvision:resnet50; random (with --backbone); or pixels.
        source: a folder of images with classes, or a data set by name (see `eqco data --help`); if
            none is given, what the run was trained on.
        protocol: how to test.
        test: the split to test on; by default test, or val where there is none.
        out: folder for the result as JSON, confusion matrix, map and gallery; each protocol has
            files of its own there. By default evaluation, of a run inside it; where that has a
            result of this protocol, evaluation-2 and so on.
        overwrite: replace them, and what was left of another linear training or fine-tuning.
        neighbours: k of knn; by default 200, or 20 with less than 5000 training images.
        temperature: τ of knn's votes.
        channels: bands of the images, of random and pixels; all other weights tell it themselves.
        seed: of random weights, the probe's held-out part and linear training.
        device: where to compute: cpu, cuda, mps.
        workers: processes that decode images on disk.
        precision: that networks compute in; auto: bfloat16 where the machine computes it natively.
            It is faster, and the second digit of features may differ. finetune keeps to float32
            where torch cannot train the network in bfloat16.
        on_unreadable: stop at an image that cannot be read (error), or look at all images
            beforehand, leave such ones out and list them in OUT (skip). By default error, and of a
            run on its own data what the run was trained with.
        root: where data sets by name are downloaded to.

    Examples:
        eqco eval runs/simo
        eqco eval runs/simo photos/ --protocol probe --out photos-probe
        eqco eval moco_v2_800ep.pth.tar imagenette --protocol linear --workers 8 --device cuda
        eqco eval runs/simo photos/ --protocol finetune --labels 0.1
        eqco eval torchvision:resnet50 cifar10 --neighbours 20 --temperature 0.1
    """
    console = Console()
    refuse_several_processes("eqco eval", "an evaluation")
    check_device(device)
    if out is None:
        out = default_out(Path(weights).expanduser(), protocol, overwrite=overwrite)
    for file in evaluation_files(out, protocol):
        refuse_existing(file, overwrite=overwrite)
        refuse_unwritable(file)
    linear, fine_tuning = training.linear(), training.fine_tuning()
    encoder = network.open(weights, in_channels=channels, seed=seed)
    began = run_environment(encoder, Path(weights).expanduser())
    source = source or own_data(encoder, began)
    for note in notes(encoder, began, source):
        console.print(note, style="yellow", markup=False, highlight=False)
    if on_unreadable is None:
        on_unreadable = own_policy(encoder, began, source)
        if on_unreadable == "skip":
            console.print(
                f"images that cannot be read are left out, as in the training of {encoder.name} "
                f"(--on-unreadable error stops at them)",
                markup=False,
                highlight=False,
            )
    if step := unfinished_step(encoder):
        encoder = replace(encoder, name=f"{encoder.name} ({step})")
    # what is damaged must be gone before features are made, which know images by their number
    check: Check = "decode" if on_unreadable == "skip" else "header"
    with bands_of(encoder):
        data = open_source(
            source,
            root=root,
            channels=encoder.in_channels,
            check=check,
            on_unreadable=on_unreadable,
        )

    where = torch.device(device)
    chosen = choose_precision(precision, where)
    if protocol == "finetune":
        chosen = choose_tuning_precision(precision, encoder.backbone, encoder.image_size, where)
    settings: dict[str, Any] = {"seed": seed, "image_size": encoder.image_size}
    settings |= {"unreadable": len(data.unreadable), "precision": chosen}
    settings |= {"linear": asdict(linear), "finetune": asdict(fine_tuning)}.get(protocol, {})
    found = compare_encoder(
        encoder,
        data,
        protocol=protocol,
        neighbours=neighbours,
        temperature=temperature,
        linear=linear,
        fine_tuning=fine_tuning,
        test=test,
        seed=seed,
        device=device,
        workers=workers,
        precision=chosen,
        checkpoint=out / f"{protocol}.pt",
        overwrite=overwrite,
        stage=partial(show_stage, console),
    )
    print_evaluation(console, found)
    with console.status("drawing the map, the confusions and the gallery"):
        written = write_evaluation(found, out, settings)
    console.print()
    for path in written:
        console.print(f"written: {path}", markup=False, highlight=False)
    unreadable = [f"{each.name}\t{each.reason}" for each in data.unreadable]
    if note := list_unreadable(out / f"{protocol}.unreadable.txt", unreadable):
        console.print(note, markup=False, highlight=False)


def default_out(weights: Path, protocol: str, *, overwrite: bool) -> Path:
    """Where a result goes that is given no place: into the run, beside the results there."""
    run = run_of(weights)
    if not run.recipe.exists():
        return Path("evaluation")
    names = chain(["evaluation"], (f"evaluation-{number}" for number in count(2)))
    places = (run.path / name for name in names)
    # the JSON is written last: a folder without it may hold a linear training to resume
    return next(each for each in places if overwrite or not (each / f"{protocol}.json").exists())


def run_environment(weights: Weights, given: Path) -> dict[str, Any]:
    """What the run of these weights began with; of other weights nothing."""
    if weights.recipe is None:
        return {}
    run = run_of(given)
    # a checkpoint may have been taken out of its run
    return run.read_environment() if run.environment.exists() else {}


def own_data(weights: Weights, began: dict[str, Any]) -> str:
    """The data that a run was trained on, where none are named."""
    name = began.get("source")
    if name is None:
        reason = "is no run directory, so that there are no images of its own"
        if began:
            reason = "was trained on a Dataset given in Python, which is not at hand here"
        raise InputError(
            f"{weights.name} {reason}. Say what to test on: eqco eval RUN_OR_WEIGHTS DATA, a "
            f"folder with classes or a data set by name, such as groceries, the embedded photos."
        )
    if kind_of(name) in ("folder", "list") and not Path(name).exists():
        raise InputError(
            f"{weights.name} was trained on {name}, which is not there any more. Say what to test "
            f"on: eqco eval RUN DATA."
        )
    return str(name)


def own_policy(weights: Weights, began: dict[str, Any], source: str) -> OnUnreadable:
    """What is done about images that cannot be read: on its own data, what a run has done."""
    own = began.get("source")
    if weights.recipe is None or own is None or resolved_name(source) != own:
        return "error"
    return weights.recipe.data.on_unreadable


def notes(weights: Weights, began: dict[str, Any], source: str) -> Iterator[str]:
    """What a reader of the table must know of a run."""
    if note := unfinished_note(weights):
        yield note
    own = began.get("source")
    if own is not None and began["unlabelled"] and resolved_name(source) == own:
        yield (
            f"trained on all images of {own} (--unlabelled): those it is tested on were among "
            f"them, without their labels"
        )
