"""A sweep: one recipe with every combination of some settings, each for several seeds."""

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from eqco.assembly import load, resume, train
from eqco.assembly.parts import (
    build_evaluated_encoder,
    check_bfloat16,
    training_split,
    validation_splits,
)
from eqco.data import Source, open_source
from eqco.encoders import TIMM, Precision, choose_precision
from eqco.evaluation import extract_features, knn_accuracy
from eqco.evaluation.knn import usual_neighbours
from eqco.evaluation.probe import probe_accuracy
from eqco.experiments.experiment import Comparison, Experiment, RunContext, RunResult
from eqco.experiments.grid import last_tenth, round_values, thin
from eqco.experiments.training_runs import (
    add_cost,
    cost_so_far,
    progress_callback,
    refuse_stopped,
)
from eqco.recipes import Recipe, recipe_from_dict, recipe_to_dict
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, recipe_hash
from eqco.runtime.run_directory import RunDirectory, read_json

__all__ = ["SWEEP", "SweepTask", "parse_over", "sweep_experiment", "with_values"]

SWEEP = "sweep"
CURVES = ("loss", "information", "gradient_norm_mean")
# what may be swept over in place of auto
AUTO_NAMED = {
    "training.precision": "training.precision=float32,bfloat16",
    "training.compile": "training.compile=True,False",
}
# metric -> title of its column, and what it is multiplied by
COLUMNS = {
    "knn": ("kNN, %", 100.0),
    "probe": ("probe, %", 100.0),
    "information": ("f̂, nats", 1.0),
    "loss": ("loss", 1.0),
}


@dataclass(frozen=True, kw_only=True)
class SweepTask:
    """One cell: a training on data of the user's.

    Args:
        data: a folder by its full path, or a data set by name.
        unlabelled: of a folder, take all images without classes.
        channels: bands of every image; None: as the files are.
        recipe: of the training; its seed is the record's. Nothing in it is auto.
        values: the settings that make this cell, by their names.
        images: how many the data have, in all splits: with more or fewer it is another training.
    """

    data: str
    unlabelled: bool = False
    channels: int | None = None
    recipe: Recipe
    values: tuple[tuple[str, Any], ...] = ()
    images: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        return {
            "data": self.data,
            "unlabelled": self.unlabelled,
            "channels": self.channels,
            "images": self.images,
            "training": recipe_to_dict(self.recipe),
        }

    @property
    def title(self) -> str:
        """What it sets."""
        return ", ".join(f"{name}={value}" for name, value in self.values)

    def run_name(self, seed: int) -> str:
        """The folder of the training: what it sets, and a hash of all that it depends on."""
        words = [f"{name.split('.')[-1]}-{value}" for name, value in self.values]
        named = "-".join(words).replace("/", "-")[:80]
        return f"{named}-{recipe_hash(self.to_dict())}-{seed}"

    def open(self) -> Source:
        """Its images."""
        return open_source(
            self.data,
            unlabelled=self.unlabelled,
            channels=self.channels,
            on_unreadable=self.recipe.data.on_unreadable,
        )


def parse_over(given: Sequence[str]) -> dict[str, list[Any]]:
    """The settings and values of `--over GROUP.NAME=VALUE,VALUE`.

    >>> parse_over(["method.count=4,16", "objective.alpha=None,65536", "encoder.head=mlp"])
    {'method.count': [4, 16], 'objective.alpha': [None, 65536], 'encoder.head': ['mlp']}
    """
    over: dict[str, list[Any]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or "." not in name or not values.strip():
            raise InputError(
                f"--over {text}; it must be a setting and its values, such as method.count=4,16,64."
            )
        if name == "training.seed":
            raise InputError(f"--over {text}; give the seeds by --seeds.")
        listed = [each.strip() for each in values.split(",")]
        if name in AUTO_NAMED and "auto" in listed:
            raise InputError(
                f"--over {text}; auto is chosen once for all trainings of a sweep, so it is none "
                f"of its values. Name them, such as {AUTO_NAMED[name]}."
            )
        if name in over:
            raise InputError(f"--over {name} was given twice; name all its values at once.")
        over[name] = [parse_value(each) for each in listed]
    return over


def parse_value(text: str) -> Any:
    """A number, None, True, False or a word."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def with_values(settings: Mapping[str, Any], values: Mapping[str, Any]) -> Recipe:
    """The recipe of these settings with other values of some, which are named GROUP.NAME.

    >>> plain = recipe_to_dict(Recipe())
    >>> with_values(plain, {"objective.alpha": 256, "method.count": 4}).objective.alpha
    256.0
    """
    plain = dict(settings)
    for name, value in values.items():
        group, _, setting = name.partition(".")
        if group not in plain:
            raise InputError(f"--over {name}; the groups of settings are {', '.join(plain)}.")
        plain[group] = {**plain[group], setting: value}
    return recipe_from_dict(plain)


def sweep_experiment(
    data: str,
    settings: Mapping[str, Any],
    over: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0,),
    unlabelled: bool = False,
    channels: int | None = None,
    device: str = "cpu",
) -> Experiment[SweepTask]:
    """The sweep as an experiment; images are opened once, to count them.

    `settings` are those of a recipe as JSON has them. Alone they need not make one that can be
    trained: each cell is checked with the values that it sets. What is auto in them is chosen here
    for all cells, so that they compute alike wherever each is trained, and the records say how.
    """
    tasks = [
        SweepTask(
            data=data,
            unlabelled=unlabelled,
            channels=channels,
            recipe=with_values(settings, dict(zip(over, values, strict=True))),
            values=tuple(zip(over, values, strict=True)),
        )
        for values in itertools.product(*over.values())
    ]
    if len({task.recipe for task in tasks}) < len(tasks):
        raise InputError("--over names a value twice; every cell must be another training.")
    source = tasks[0].open()
    images = sum(map(len, source.splits.values()))
    recipes = without_auto([task.recipe for task in tasks], source.channels, device)
    tasks = [
        replace(task, images=images, recipe=recipe)
        for task, recipe in zip(tasks, recipes, strict=True)
    ]
    return Experiment(
        name=SWEEP,
        title=f"{', '.join(over)} on {data}",
        profiles={SWEEP: tasks},
        seeds={SWEEP: tuple(seeds)},
        size=steps_in(len(training_split(source))),
        run=train_and_validate,
        compare=lambda records: sweep_table(tasks, records),
        store="records",
    )


def without_auto(recipes: Sequence[Recipe], channels: int, device: str) -> list[Recipe]:
    """The recipes in one precision and uncompiled, where they say auto."""
    undecided = [each for each in recipes if each.training.precision == "auto"]
    precision = common_precision(undecided, channels, device) if undecided else "float32"
    named: list[Recipe] = []
    for recipe in recipes:
        training = recipe.training
        if training.precision == "auto":
            training = replace(training, precision=precision)
        if training.compile == "auto":
            training = replace(training, compile=False)
        named.append(replace(recipe, training=training))
    return named


def common_precision(recipes: Sequence[Recipe], channels: int, device: str) -> Precision:
    """What auto is for all: bfloat16 where this machine has it and every network takes it."""
    place = torch.device(device)
    precision = choose_precision("auto", place)
    if precision == "bfloat16" and place.type == "cpu":
        foreign = [each for each in recipes if each.encoder.backbone.startswith(TIMM)]
        for recipe in foreign:
            encoder = build_evaluated_encoder(recipe, in_channels=channels)
            if check_bfloat16(encoder, recipe, channels) != precision:
                return "float32"
    return precision


def steps_in(images: int) -> Callable[[SweepTask], int]:
    """How many steps a task takes on so many images."""

    def steps(task: SweepTask) -> int:
        settings = task.recipe.training
        return settings.epochs * (images // settings.num_queries)

    return steps


def train_and_validate(task: SweepTask, seed: int, context: RunContext) -> RunResult:
    """Train, or resume, and measure on validation images; test images are left for the end."""
    run = RunDirectory(context.work / task.run_name(seed))
    earlier = cost_so_far(run)
    if run.result.exists():
        context.advance(read_json(run.result)["steps"])
    else:
        recipe = replace(task.recipe, training=replace(task.recipe.training, seed=seed))
        how: dict[str, Any] = {"device": context.device, "show": progress_callback(context)}
        with add_cost(run):
            if run.last.exists():
                outcome = resume(run.path, **how)
            else:
                how |= {"unlabelled": task.unlabelled, "channels": task.channels}
                outcome = train(task.data, recipe, out=run.path, **how)
        refuse_stopped(outcome.stopped_by)
    lines = run.read_metrics()
    curves = {
        name: thin([(line["step"], line[name]) for line in lines if name in line])
        for name in CURVES
    }
    last: Mapping[str, Any] = next((e for e in reversed(lines) if "information" in e), {})
    ends = {name: last_tenth(curve) for name, curve in curves.items() if curve}
    return RunResult(
        metrics={**ends, **validation_accuracies(task, run, context.device)},
        curves={
            **{name: round_values(points) for name, points in curves.items()},
            "information_kind": last.get("information_kind"),
            "trained_by": str(read_json(run.result)["code"]),
        },
        earlier=earlier,
    )


def validation_accuracies(task: SweepTask, run: RunDirectory, device: str) -> dict[str, float]:
    """kNN and probe on validation images; nothing where there are no labels."""
    splits = validation_splits(task.open())
    if splits is None:
        return {}
    encoder = load(run.path).to(device)
    train, val = (
        extract_features(
            encoder.features,
            split,
            size=task.recipe.data.image_size,
            device=device,
            workers=task.recipe.data.workers,
            on_unreadable=task.recipe.data.on_unreadable,
        )
        for split in splits
    )
    neighbours = usual_neighbours(len(train.values))
    return {
        "knn": knn_accuracy(val, train, neighbours=neighbours),
        "probe": probe_accuracy(val, train).accuracy,
    }


def sweep_table(tasks: Sequence[SweepTask], records: Sequence[Record]) -> list[Comparison]:
    """One row for each cell, and a column for each metric that was measured."""
    cells = []
    for task in tasks:
        own = {record.seed: record for record in records if record.recipe == task.to_dict()}
        for metric, (title, unit) in COLUMNS.items():
            values = {
                seed: unit * record.metrics[metric]
                for seed, record in own.items()
                if metric in record.metrics
            }
            if values:
                cells.append(Comparison.of(task.title, title, values))
    return cells
