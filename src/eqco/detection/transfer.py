"""Weights and annotated images in, a detector and its average precision out."""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from eqco.assembly.parts import averaging, check_device
from eqco.assembly.runs import held
from eqco.assembly.weights import Weights, open_weights
from eqco.data.pipelines import Pipeline
from eqco.detection import (
    AnnotatedImages,
    Detections,
    FineTuning,
    Scores,
    TrainingBatches,
    average_precision,
    detect,
    faster_rcnn,
    fine_tune,
    open_annotated,
    require_pycocotools,
    split_to_test,
    with_precise_statistics,
)
from eqco.detection.settings import DetectionSettings, detection_from_dict, detection_to_dict
from eqco.encoders import Architecture, ResNet, sync_batch_norm
from eqco.runtime import processes
from eqco.runtime.checkpoints import CheckpointError
from eqco.runtime.errors import InputError
from eqco.runtime.records import code_version, hardware
from eqco.runtime.run_directory import RunDirectory, read_json, write_json
from eqco.theory import scaled_learning_rate
from eqco.training.loop import StepReport
from eqco.training.optimisers import sgd
from eqco.training.schedules import learning_rate_factor

__all__ = ["Transfer", "resume_transfer", "transfer_detection"]

REFERENCE = 16  # images in a step that the base learning rate is told for


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How a fine-tuning ended."""

    stopped_by: str | None = None
    """The signal that asked to stop, or None when it is complete."""
    scores: Scores | None = None
    found: tuple[Detections, ...] = ()
    tested: AnnotatedImages | None = None


def transfer_detection(
    weights: Weights | Path | str,
    data: Path | str,
    settings: DetectionSettings,
    *,
    out: Path | str,
    backbone: str = "resnet50",
    train_split: str = "train",
    test_split: str | None = None,
    device: torch.device | str = "cpu",
    workers: int = 0,
    timeout: float = 600.0,
    show: Callable[[StepReport], None] = lambda report: None,
) -> Transfer:
    """Fine-tune a detector from these weights, and test it.

    Under torchrun all its processes train together, as one process would with the same settings,
    but for the boxes that are sampled.

    Args:
        weights: what `open_weights` takes, or gave.
        data: a folder in COCO's or Pascal VOC's form.
        settings: how to train.
        out: the run directory, which must not hold a run.
        backbone: of the weights `random`.
        train_split: to train on.
        test_split: to test on; None: test, or val where there is none.
        device: where to train; under torchrun `cuda` is each process's own.
        workers: processes that read images ahead.
        timeout: seconds that a process waits for the others before it names the missing ones.
        show: gets a report at every line of metrics.
    """
    require_pycocotools()
    check_device(device)
    if not isinstance(weights, Weights):
        named = backbone if str(weights) == "random" else None
        weights = open_weights(weights, backbone=named, seed=settings.seed)
    if weights.architecture is None:
        raise InputError(
            f"{weights.name} is not a network by name; a detector is built on resnet18, resnet34 "
            f"or resnet50."
        )
    if not isinstance(weights.backbone, ResNet):
        raise InputError(
            f"{weights.name} is a {weights.architecture}; a detector is built on resnet18, "
            f"resnet34 or resnet50. Train with --encoder.backbone resnet18 to be able to use the "
            f"encoder here."
        )
    folder = Path(data)
    chosen = split_to_test(folder) if test_split is None else test_split
    train = open_annotated(folder, train_split, on_bad_boxes=settings.on_bad_boxes)
    test = open_annotated(folder, chosen, on_bad_boxes=settings.on_bad_boxes)
    check_classes(train, test)
    recipe = {
        "detection": detection_to_dict(settings),
        "backbone": asdict(weights.architecture),
        "weights": weights.name,
        "classes": list(train.classes),
    }
    run = RunDirectory(Path(out))
    with processes.joined(device, timeout=timeout) as own, held(run):
        # the detector trains its backbone; the given weights stay as they are
        parts = build(settings, copy.deepcopy(weights.backbone), train, own, workers)
        if processes.is_writer():
            run.start(recipe, environment(folder, train_split, chosen, train, test, str(own)))
            run.write_job(processes.job())
        return finish(parts, run, recipe, settings, test, None, show)


def resume_transfer(
    path: Path | str,
    data: Path | str | None = None,
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
    timeout: float = 600.0,
    show: Callable[[StepReport], None] = lambda report: None,
) -> Transfer:
    """Go on with a fine-tuning from its last checkpoint; the end is the same as without the stop.

    Args:
        path: the run directory.
        data: the folder; None: where it was.
        device: where to train; under torchrun `cuda` is each process's own.
        workers: processes that read images ahead.
        timeout: seconds that a process waits for the others before it names the missing ones.
        show: gets a report at every line of metrics.
    """
    require_pycocotools()
    check_device(device)
    run = RunDirectory(Path(path))
    recipe, began = run.read_recipe(), read_json(run.environment)
    if "detection" not in recipe:
        raise InputError(
            f"{path} is not a fine-tuning of a detector. To fine-tune one from its weights, give "
            f"it without --resume."
        )
    settings = detection_from_dict(recipe["detection"])
    folder = Path(began["data"] if data is None else data)
    splits = (began["train_split"], began["test_split"])
    train, test = (open_annotated(folder, s, on_bad_boxes=settings.on_bad_boxes) for s in splits)
    met = (len(train), len(test), list(train.classes))
    if met != (began["train_images"], began["test_images"], recipe["classes"]):
        raise InputError(
            f"{run.path} was trained on {began['train_images']} images of {began['data']} and "
            f"tested on {began['test_images']}; {folder} has {met[0]} and {met[1]}, or other "
            f"classes. Resume it on the same images."
        )
    with processes.joined(device, timeout=timeout) as own, held(run):
        state = run.load(recipe)
        if processes.is_writer():
            run.write_job(processes.job())
        network = Architecture(**recipe["backbone"]).build()
        parts = build(settings, network, train, own, workers)
        try:
            return finish(parts, run, recipe, settings, test, state, show)
        except KeyError as error:
            raise CheckpointError(f"{run.last} lacks {error}; it is of another program.") from error


def check_classes(train: AnnotatedImages, test: AnnotatedImages) -> None:
    """Refuse to test on other classes than those trained on."""
    if train.classes != test.classes:
        raise InputError(
            f"{train.name} has the classes {', '.join(train.classes)}, but {test.name} has "
            f"{', '.join(test.classes)}; they must be the same."
        )


def build(
    settings: DetectionSettings,
    backbone: nn.Module,
    train: AnnotatedImages,
    device: torch.device,
    workers: int,
) -> FineTuning:
    """Everything that the loop drives."""
    batches = TrainingBatches(
        train, num_images=settings.num_images, seed=settings.seed, workers=workers
    )
    detector = faster_rcnn(
        backbone,
        len(train.classes),
        sides=settings.sides,
        longest_side=settings.longest_side,
        channels=settings.channels,
        smallest_anchor=settings.smallest_anchor,
        sampling_ratio=settings.sampling_ratio,
        proposals=settings.proposals,
        sampled_boxes=settings.sampled_boxes,
        mean=Pipeline.mean,
        std=Pipeline.std,
        seed=settings.seed,
    ).to(device)
    several = processes.world_size() > 1
    if several:
        detector = sync_batch_norm(detector, device)
    steps_per_epoch = batches.steps_per_epoch
    rate_at(settings, steps_per_epoch, 0)  # refuses a warm-up longer than the training
    return FineTuning(
        detector=detector,
        distributed=averaging(detector, device) if several else None,
        batches=batches,
        optimiser=build_optimiser(
            detector, settings, rate_at(settings, steps_per_epoch, settings.warmup_steps)
        ),
        learning_rate=partial(rate_at, settings, steps_per_epoch),
        total_steps=settings.epochs * steps_per_epoch,
        save_every=settings.save_every * steps_per_epoch,
        seed=settings.seed,
    )


def build_optimiser(
    detector: nn.Module, settings: DetectionSettings, learning_rate: float
) -> torch.optim.SGD:
    """SGD over all parameters; those of batch norm are a group with a weight decay of their own."""
    norms = [layer for layer in detector.modules() if isinstance(layer, _BatchNorm)]
    of_norms = [parameter for layer in norms for parameter in layer.parameters()]
    known = set(of_norms)
    optimiser = sgd(
        [parameter for parameter in detector.parameters() if parameter not in known],
        learning_rate,
        sgd_momentum=settings.sgd_momentum,
        weight_decay=settings.weight_decay,
    )
    optimiser.add_param_group({"params": of_norms, "weight_decay": settings.norm_weight_decay})
    return optimiser


def rate_at(settings: DetectionSettings, steps_per_epoch: int, step: int) -> float:
    """The learning rate at a step: 0.02 for 16 images, in proportion for others.

    >>> settings = DetectionSettings(num_images=8)
    >>> [round(rate_at(settings, 1000, step), 6) for step in (1000, 7000, 11000)]
    [0.01, 0.001, 0.0001]
    """
    peak = scaled_learning_rate(
        settings.base_learning_rate, settings.num_images, REFERENCE, rule="linear"
    )
    return peak * learning_rate_factor(
        step,
        schedule="steps",
        total_steps=settings.epochs * steps_per_epoch,
        warmup_steps=settings.warmup_steps,
        drops=tuple(drop * steps_per_epoch for drop in settings.drops),
    )


def finish(
    parts: FineTuning,
    run: RunDirectory,
    recipe: dict[str, Any],
    settings: DetectionSettings,
    test: AnnotatedImages,
    state: dict[str, Any] | None,
    show: Callable[[StepReport], None],
) -> Transfer:
    """Train to the end, set the statistics, test, and write the result."""
    start = time.perf_counter()
    stopped_by = fine_tune(parts, run, recipe, state=state, show=show)
    if stopped_by is not None:
        return Transfer(stopped_by=stopped_by)
    detector = with_precise_statistics(parts, settings.precise_images)
    found = tuple(detect(detector, test))
    scores = average_precision(found, test)
    if processes.is_writer():
        write_json(
            run.result,
            {
                "steps": parts.total_steps,
                **asdict(scores),
                "seconds_of_this_call": round(time.perf_counter() - start, 2),
                "code": code_version(),
                "hardware": hardware(),
            },
        )
    return Transfer(scores=scores, found=found, tested=test)


def environment(
    folder: Path,
    train_split: str,
    test_split: str,
    train: AnnotatedImages,
    test: AnnotatedImages,
    device: str,
) -> dict[str, Any]:
    """What the run met: data, machine, versions."""
    return {
        "data": str(folder.resolve()),
        "train_split": train_split,
        "test_split": test_split,
        "train_images": len(train),
        "test_images": len(test),
        "boxes_left_out": train.left_out + test.left_out,
        "device": device,
        "processes": processes.world_size(),
        "code": code_version(),
        "hardware": hardware(),
    }
