"""Weights and annotated images in, a detector and its average precision out."""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from eqco.assembly.parts import check_device
from eqco.assembly.runs import write_lock
from eqco.assembly.weights import Weights, open_weights
from eqco.data.sources import evaluation_split
from eqco.detection.annotations import AnnotatedImages
from eqco.detection.average_precision import (
    Detections,
    Scores,
    average_precision,
    require_pycocotools,
)
from eqco.detection.fine_tuning import (
    FineTuning,
    build,
    detect,
    fine_tune,
    with_precise_statistics,
)
from eqco.detection.folders import open_annotated, splits_of
from eqco.detection.settings import DetectionSettings, detection_from_dict, detection_to_dict
from eqco.encoders import Architecture, ResNet
from eqco.runtime import processes
from eqco.runtime.checkpoints import CheckpointError
from eqco.runtime.errors import InputError
from eqco.runtime.records import code_version, hardware
from eqco.runtime.run_directory import RunDirectory, differences, read_json, write_json
from eqco.training.loop import StepReport

__all__ = ["Transfer", "resume_transfer", "transfer_detection"]


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How a fine-tuning ended."""

    stopped_by: str | None = None  # the signal, or None when it is complete
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
        test_split: None: test, or val where there is none.
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
    architecture = weights.architecture
    if architecture is None or not isinstance(weights.backbone, ResNet):
        kind = "not a network by name" if architecture is None else f"a {architecture}"
        raise InputError(
            f"{weights.name} is {kind}; a detector is built on resnet18, resnet34 or resnet50. "
            f"Train with --encoder.backbone resnet18 to be able to use the encoder here."
        )
    if weights.in_channels != 3:
        raise InputError(
            f"{weights.name} takes images with in_channels={weights.in_channels}; a detector reads "
            f"annotated images as RGB, 3 channels. Give weights that were trained on colour images."
        )
    folder = Path(data)
    splits = (train_split, test_split or evaluation_split(splits_of(folder)) or "test")
    train, test = (open_annotated(folder, s, on_bad_boxes=settings.on_bad_boxes) for s in splits)
    if train.classes != test.classes:
        raise InputError(
            f"{train.name} has the classes {', '.join(train.classes)}, but {test.name} has "
            f"{', '.join(test.classes)}; they must be the same."
        )
    recipe = {
        "detection": detection_to_dict(settings),
        "backbone": asdict(architecture),
        "weights": weights.name,
        "classes": list(train.classes),
    }
    run = RunDirectory(Path(out))
    run.refuse_started()
    with processes.process_group(device, timeout=timeout) as own, write_lock(run):
        # the detector trains its backbone; the given weights stay as they are
        parts = build(settings, copy.deepcopy(weights.backbone), train, own, workers)
        if processes.is_writer():
            environment = {
                "data": str(folder.resolve()),
                "train_split": splits[0],
                "test_split": splits[1],
                "train_images": len(train),
                "test_images": len(test),
                "boxes_left_out": train.left_out + test.left_out,
                "device": str(own),
                "processes": processes.world_size(),
                "code": code_version(),
                "hardware": hardware(),
            }
            run.start(recipe, environment)
            run.write_job(processes.job())
        return train_and_test(parts, run, recipe, test, None, show)


def resume_transfer(
    path: Path | str,
    data: Path | str | None = None,
    *,
    device: torch.device | str = "cpu",
    workers: int = 0,
    timeout: float = 600.0,
    show: Callable[[StepReport], None] = lambda report: None,
) -> Transfer:
    """Resume a fine-tuning from its last checkpoint; the end is the same as without the stop.

    `data` says where the folder is if it was moved.
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
    unsaid = differences(recipe["detection"], detection_to_dict(settings))
    if unsaid:
        raise InputError(
            f"{run.recipe} does not say {', '.join(unsaid)}: another version of eqco wrote it. "
            f"Resume the run with that version, or start a new one with another --out."
        )
    folder = Path(began["data"] if data is None else data)
    splits = (began["train_split"], began["test_split"])
    train, test = (open_annotated(folder, s, on_bad_boxes=settings.on_bad_boxes) for s in splits)
    expected = (began["train_images"], began["test_images"], recipe["classes"])
    if (len(train), len(test), list(train.classes)) != expected:
        raise InputError(
            f"{run.path} was trained on {expected[0]} images of {began['data']} and tested on "
            f"{expected[1]}; {folder} has {len(train)} and {len(test)}, or other classes. Resume "
            f"it on the same images."
        )
    with processes.process_group(device, timeout=timeout) as own, write_lock(run):
        state = run.load(recipe)
        if processes.is_writer():
            run.write_job(processes.job())
        backbone = Architecture(**recipe["backbone"]).build()
        assert isinstance(backbone, ResNet)
        parts = build(settings, backbone, train, own, workers)
        try:
            return train_and_test(parts, run, recipe, test, state, show)
        except KeyError as error:
            raise CheckpointError(f"{run.last} lacks {error}; it is of another program.") from error


def train_and_test(
    parts: FineTuning,
    run: RunDirectory,
    recipe: dict[str, Any],
    test: AnnotatedImages,
    state: dict[str, Any] | None,
    show: Callable[[StepReport], None],
) -> Transfer:
    """Train to the end, set the statistics, test, and write the result."""
    start = time.perf_counter()
    stopped_by = fine_tune(parts, run, recipe, state=state, show=show)
    if stopped_by is not None:
        return Transfer(stopped_by=stopped_by)
    found = tuple(detect(with_precise_statistics(parts), test))
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
