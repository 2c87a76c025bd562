"""Table 9: object detection fine-tuned from random, supervised and contrastive weights.

One pre-training is shared by the seeds of the fine-tuning: the spread is that of the fine-tuning
alone. `desk` compares a ResNet-18 with random weights and one that SiMo trained on twenty classes
of Tiny-ImageNet, on 205 images of blood cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eqco.detection import (
    METRICS,
    require_pycocotools,
    resume_transfer,
    transfer_detection,
    write_squares,
)
from eqco.detection.settings import (
    DESK,
    DetectionSettings,
    detection_to_dict,
)
from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import (
    Comparison,
    Experiment,
    MissingDataError,
    RunContext,
    RunResult,
    seed_by_seed,
)
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import moco, simo
from eqco.experiments.training_runs import (
    add_cost,
    cost_so_far,
    progress_callback,
    refuse_stopped,
    train_or_resume,
)
from eqco.recipes import RECIPES, Recipe, profiles, recipe_to_dict
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, recipe_hash
from eqco.runtime.run_directory import RunDirectory, read_json

__all__ = ["TAB9", "gain"]

# Training images, where they are known before the data is opened.
IMAGES = {"squares": 8, "bccd": 205, "coco": 118_287}
RANDOM = "random init"
CLASS_AP50 = "AP50, "  # before the class, in the name of a metric


@dataclass(frozen=True)
class Pretraining:
    """A training that the runs of a table share: its folder, data and recipe."""

    run: str
    data: str
    recipe: Recipe


@dataclass(frozen=True)
class DetectionTask:
    """One fine-tuning: the row of the table, annotated data, settings, where it starts from."""

    initial: str
    data: str
    backbone: str
    detection: DetectionSettings
    pretraining: Pretraining | None = None

    @property
    def steps(self) -> int:
        """Steps of the fine-tuning."""
        return self.detection.epochs * (IMAGES[self.data] // self.detection.num_images)

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        detection = detection_to_dict(self.detection)
        del detection["seed"]  # the record's own
        plain = {**vars(self), "detection": detection}
        if self.pretraining is None:
            del plain["pretraining"]
        else:
            recipe = recipe_to_dict(self.pretraining.recipe)
            plain["pretraining"] = {**vars(self.pretraining), "recipe": recipe}
        return plain


def run(task: DetectionTask, seed: int, context: RunContext) -> RunResult:
    """Fine-tune and test one detector, resuming where an earlier call was stopped."""
    files = RunDirectory(context.work / f"tab9-{recipe_hash(task.to_dict())}-{seed}")
    earlier = cost_so_far(files)
    if files.result.exists():
        context.advance(task.steps)
    else:
        fine_tune(task, seed, files, context)
    result = read_json(files.result)
    classes = {
        f"{metric}, {name}": value
        for name, values in result["classes"].items()
        for metric, value in values.items()
    }
    return RunResult(
        metrics={**result["overall"], **classes},
        curves={"loss": [(line["step"], line["loss"]) for line in files.read_metrics()]},
        earlier=earlier,
    )


def fine_tune(task: DetectionTask, seed: int, run: RunDirectory, context: RunContext) -> None:
    """Train and test the detector of one run, from the beginning or from its last checkpoint."""
    require_pycocotools()  # before hours of pre-training
    show = progress_callback(context)
    folder = data_folder(task.data, context)
    weights = initial_weights(task, context)
    settings = replace(task.detection, seed=seed)
    with add_cost(run):
        if context.launch is not None:
            detector = {"detection": detection_to_dict(settings), "weights": weights}
            context.launch({**detector, "backbone": task.backbone}, str(folder), run.path)
            context.advance(task.steps)
            return
        if run.last.exists():
            outcome = resume_transfer(run.path, folder, device=context.device, show=show)
        else:
            outcome = transfer_detection(
                weights,
                folder,
                settings,
                out=run.path,
                backbone=task.backbone,
                device=context.device,
                show=show,
            )
    refuse_stopped(outcome.stopped_by)


def data_folder(name: str, context: RunContext) -> Path:
    """Where the annotated images are; the synthetic ones are drawn."""
    if name == "squares":
        return write_squares(context.work / "squares", images={"train": 8, "test": 4}, side=64)
    if name not in context.folders:
        raise MissingDataError(
            f"tab9 needs the data set {name}; give its folder with --{name} FOLDER."
        )
    return context.folders[name]


def initial_weights(task: DetectionTask, context: RunContext) -> str:
    """What a run starts from; contrastive weights are trained first if need be."""
    if task.pretraining is not None:
        return str(pretrain(task.pretraining, context))
    return "random" if task.initial == RANDOM else f"torchvision:{task.backbone}"


def pretrain(pretraining: Pretraining, context: RunContext) -> Path:
    """Do what is missing of a pre-training; its run directory."""
    run = RunDirectory(context.work / pretraining.run)
    if run.recipe.exists() and run.read_recipe() != recipe_to_dict(pretraining.recipe):
        raise InputError(
            f"{run.path} holds a training by another recipe than tab9's; move it away, or choose "
            f"another --work."
        )
    if not run.result.exists():
        # its steps are no part of the fine-tuning's progress
        silent = replace(context, advance=lambda count: None)
        train_or_resume(pretraining.recipe, pretraining.data, run, silent)
    return run.path


def compare(records: Sequence[Record]) -> list[Comparison]:
    """AP and its parts in percent, one row for each kind of weights; AP50 of each class beside.

    The paper's numbers are of COCO and say nothing about other data.
    """
    if not records:
        return []
    columns = {metric: Coordinates(metric=metric) for metric in METRICS}
    columns |= {
        key: Coordinates(metric="AP50", category=key.removeprefix(CLASS_AP50))
        for key in records[0].metrics
        if key.startswith(CLASS_AP50)
    }
    numbers = PUBLISHED["tab9"].numbers if records[0].profile == "paper" else {}
    cells = []
    for row in dict.fromkeys(task.initial for task in PAPER):
        runs = [record for record in records if record.recipe["initial"] == row]
        runs.sort(key=lambda record: record.seed)
        for key, column in columns.items():
            if runs and all(key in record.metrics for record in runs):
                values = {record.seed: 100 * record.metrics[key] for record in runs}
                at = Coordinates(weights=row)
                cells.append(Comparison.of(at, column, values, published=numbers.get((row, key))))
    return cells


def gain(cells: Sequence[Comparison]) -> list[Comparison]:
    """What each kind of weights adds to random ones, seed by seed, in points."""
    base = {cell.column: cell for cell in cells if cell.row == Coordinates(weights=RANDOM)}
    return [
        Comparison.of(cell.row, cell.column, {seed: a - b for seed, (a, b) in pairs.items()})
        for cell in cells
        if cell is not base.get(cell.column, cell)
        and (pairs := seed_by_seed([cell, base[cell.column]]))
    ]


def published_on_coco(records: Sequence[Record]) -> dict[str, list[Comparison]]:
    """The paper's table, where ours is of other data."""
    if records and records[0].profile == "paper":
        return {}
    return {
        "Published, on COCO": [
            Comparison.of(
                Coordinates(weights=weights), Coordinates(metric=metric), {}, published=number
            )
            for (weights, metric), number in PUBLISHED["tab9"].numbers.items()
        ]
    }


def small_simo(*, size: int, num_queries: int, epochs: int, **changes: Any) -> Recipe:
    """SiMo's recipe for a desk with a ResNet-18 that has the stem of a detector's."""
    recipe = profiles.at_scale(RECIPES["simo"], profiles.FOLDER)
    return replace(
        recipe,
        encoder=replace(recipe.encoder, backbone="resnet18", stem="imagenet"),
        data=replace(recipe.data, image_size=size),
        training=replace(recipe.training, num_queries=num_queries, epochs=epochs, **changes),
    )


COCO = DetectionSettings(on_bad_boxes="skip")  # a few boxes of COCO's own are empty
TINY = replace(DESK, epochs=2, drops=(1,), warmup_steps=1, sides=(64,), channels=16)
TINY = replace(TINY, proposals=20, sampled_boxes=8, precise_images=8)
SMOKE_PRETRAINING = Pretraining(
    "tab9-smoke-pretraining-0", "groceries", small_simo(size=32, num_queries=128, epochs=1)
)
DESK_PRETRAINING = Pretraining(
    "tab9-pretraining-0",
    "tiny-imagenet-20",
    small_simo(size=64, num_queries=128, epochs=20, save_every=2),
)
# as in Table 2, which finds them trained, or trains them for this one
PAPER_PRETRAININGS = {
    "MoCo v2": moco("mocov2", profiles.PAPER, count=65536, alpha=None),
    "SiMo": simo(profiles.PAPER, count=16, alpha=256),
}
PAPER = [
    DetectionTask(RANDOM, "coco", "resnet50", COCO),
    DetectionTask("supervised", "coco", "resnet50", COCO),
    *(
        DetectionTask(
            title,
            "coco",
            "resnet50",
            COCO,
            Pretraining(task.run_name(0), "imagenet", task.recipe),
        )
        for title, task in PAPER_PRETRAININGS.items()
    ),
]

TAB9 = Experiment(
    name="tab9",
    kind="table",
    number=9,
    title="Object detection from random and from pre-trained weights",
    profiles={
        "smoke": [
            DetectionTask(RANDOM, "squares", "resnet18", TINY),
            DetectionTask("SiMo", "squares", "resnet18", TINY, SMOKE_PRETRAINING),
        ],
        "desk": [
            DetectionTask(RANDOM, "bccd", "resnet18", DESK),
            DetectionTask("SiMo", "bccd", "resnet18", DESK, DESK_PRETRAINING),
        ],
        "paper": PAPER,
    },
    seeds={"smoke": (0,), "desk": (0, 1), "paper": (0,)},
    size=lambda task: task.steps,
    run=run,
    compare=compare,
    conclude=lambda records: {
        f"Gain over {RANDOM}, in points": gain(compare(records)),
        **published_on_coco(records),
    },
)
