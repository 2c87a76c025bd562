"""The detector's training loop and its test: top to bottom, no hooks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from eqco.assembly.parts import build_distributed
from eqco.detection.annotations import AnnotatedImages
from eqco.detection.average_precision import Detections
from eqco.detection.batches import Batch, TrainingBatches, read_image
from eqco.detection.model import faster_rcnn
from eqco.detection.precise_bn import set_precise_statistics
from eqco.detection.settings import DetectionSettings, learning_rate_at
from eqco.encoders import ResNet, sync_batch_norm
from eqco.runtime import processes
from eqco.runtime.checkpointing import checkpointing
from eqco.runtime.run_directory import RunDirectory
from eqco.runtime.seeds import generator_for
from eqco.training.alarms import require_finite
from eqco.training.journal import Journal
from eqco.training.loop import Clock, StepReport, last_checkpoint, mean
from eqco.training.optimisers import load_optimiser, sgd

__all__ = ["FineTuning", "build", "detect", "fine_tune", "with_precise_statistics"]

LOG_EVERY = 10  # steps between lines of metrics


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """A detector, and what trains it."""

    settings: DetectionSettings
    detector: nn.Module  # images and targets -> losses by name
    distributed: nn.Module  # the same; over several processes it averages gradients
    batches: TrainingBatches
    optimiser: torch.optim.Optimizer

    @property
    def total_steps(self) -> int:
        """Of the whole training."""
        return self.settings.epochs * self.batches.steps_per_epoch

    def rate(self, step: int) -> float:
        """The learning rate at a step."""
        return learning_rate_at(self.settings, self.batches.steps_per_epoch, step)


def build(
    settings: DetectionSettings,
    backbone: ResNet,
    train: AnnotatedImages,
    device: torch.device,
    workers: int,
) -> FineTuning:
    """A detector on this backbone, ready to be trained on these images."""
    batches = TrainingBatches(
        train, num_images=settings.num_images, seed=settings.seed, workers=workers
    )
    detector: nn.Module = faster_rcnn(backbone, len(train.classes), settings).to(device)
    several = processes.world_size() > 1
    if several:
        detector = sync_batch_norm(detector, device)
    # refuses a warm-up longer than the training
    learning_rate_at(settings, batches.steps_per_epoch, 0)
    return FineTuning(
        settings=settings,
        detector=detector,
        distributed=build_distributed(detector, device) if several else detector,
        batches=batches,
        optimiser=build_optimiser(detector, settings),
    )


def build_optimiser(detector: nn.Module, settings: DetectionSettings) -> torch.optim.SGD:
    """SGD over all parameters; those of batch norm are a group with a weight decay of their own."""
    norms = [layer for layer in detector.modules() if isinstance(layer, _BatchNorm)]
    of_norms = [parameter for layer in norms for parameter in layer.parameters()]
    known = set(of_norms)
    optimiser = sgd(
        [parameter for parameter in detector.parameters() if parameter not in known],
        settings.base_learning_rate,  # the loop sets that of each step
        sgd_momentum=settings.sgd_momentum,
        weight_decay=settings.weight_decay,
    )
    optimiser.add_param_group({"params": of_norms, "weight_decay": settings.norm_weight_decay})
    return optimiser


def fine_tune(
    parts: FineTuning,
    run: RunDirectory,
    recipe: dict[str, Any],
    *,
    state: dict[str, Any] | None = None,
    show: Callable[[StepReport], None] = lambda report: None,
) -> str | None:
    """Train from the beginning, or from a checkpoint's state, to the end or to a signal.

    Everything drawn is a function of (seed, step): stopped and resumed, the weights end the same.
    Several processes run this together: all take the same branches, and the first one writes.
    `recipe` goes into each checkpoint, and `show` gets a report at every line of metrics. Returns
    the signal that stopped it, or None when training is complete.
    """
    detector, optimiser, total = parts.detector, parts.optimiser, parts.total_steps
    step, loss = 0, torch.zeros(())
    if state is not None:
        detector.load_state_dict(state["detector"])
        load_optimiser(optimiser, state["optimiser"])
        step = int(state["step"])
    detector.train()
    journal = Journal(run, step)
    clock = Clock(step, total, parts.batches.num_images)

    def save(step: int) -> None:
        require_finite(step, mean(loss), last_checkpoint(run))
        if processes.is_writer():
            states = {"detector": detector.state_dict(), "optimiser": optimiser.state_dict()}
            run.save({"recipe": recipe, "step": step, **states}, keep=False)

    every = parts.settings.save_every * parts.batches.steps_per_epoch
    with checkpointing(save, total_steps=total, every=(every,)) as checkpoints:
        for batch in parts.batches.iterate(step, total):
            rate = parts.rate(step)
            for group in optimiser.param_groups:
                group["lr"] = rate
            losses = losses_at(parts.distributed, batch, parts.settings.seed, step)
            loss = torch.stack(list(losses.values())).sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            step += 1
            if step % LOG_EVERY == 0 or step == total:
                value = require_finite(step, mean(loss), last_checkpoint(run))
                line = {name: mean(each) for name, each in losses.items()}
                report = clock.report(step, value, rate)
                line = {"loss": value, **line, "learning_rate": rate}
                journal.write(step, line, speed=report.images_per_second)
                show(report)
            if checkpoints.after_step(step):
                break
    journal.close()
    return checkpoints.stopped_by


def losses_at(detector: nn.Module, batch: Batch, seed: int, step: int) -> dict[str, Tensor]:
    """The losses of one step; torchvision draws boxes and sizes from the global generator.

    All processes draw from the same numbers, so that their images are resized alike and none waits
    for another.
    """
    device = next(detector.parameters()).device
    images = [image.to(device) for image, _ in batch]
    targets = [{name: value.to(device) for name, value in each.items()} for _, each in batch]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(generator_for("detection samples", seed, step).initial_seed())
        losses: dict[str, Tensor] = detector(images, targets)
    return losses


def with_precise_statistics(parts: FineTuning) -> nn.Module:
    """The detector in eval mode, its batch norms set by the first training batches."""
    batches, settings = parts.batches, parts.settings
    # whole batches, an epoch at most
    count = min(max(1, settings.precise_images // batches.num_images), batches.steps_per_epoch)
    set_precise_statistics(
        parts.detector,
        enumerate(batches.iterate(0, count)),
        lambda item: losses_at(parts.detector, item[1], settings.seed, item[0]),
    )
    return parts.detector.eval()


@torch.no_grad()
def detect(detector: nn.Module, images: AnnotatedImages) -> list[Detections]:
    """What a detector in eval mode finds in each image; the processes share the images."""
    device = next(detector.parameters()).device
    rows = [torch.empty(0, 7, dtype=torch.float64)]
    for number in range(processes.rank(), len(images), processes.world_size()):
        (found,) = detector([read_image(images, number).to(device)])
        boxes, labels, scores = (found[name].cpu() for name in ("boxes", "labels", "scores"))
        owner = torch.full_like(scores, number)
        rows.append(torch.column_stack([owner, boxes, labels, scores]).double())
    table = processes.gather_uneven(torch.cat(rows))
    return [
        Detections(own[:, 1:5], own[:, 5].long(), own[:, 6])
        for own in (table[table[:, 0] == number] for number in range(len(images)))
    ]
