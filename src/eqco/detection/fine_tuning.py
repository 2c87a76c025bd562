"""The detector's training loop and its test: top to bottom, no hooks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eqco.detection.annotations import AnnotatedImages
from eqco.detection.average_precision import Detections
from eqco.detection.batches import Batch, TrainingBatches, read_image
from eqco.detection.precise_bn import set_precise_statistics
from eqco.runtime import processes
from eqco.runtime.run_directory import RunDirectory
from eqco.runtime.seeds import generator_for
from eqco.runtime.signals import stop_on_signals
from eqco.training.alarms import require_finite
from eqco.training.journal import Journal
from eqco.training.loop import Clock, StepReport, mean, saved
from eqco.training.optimisers import load_optimiser

__all__ = ["FineTuning", "detect", "fine_tune", "with_precise_statistics"]


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What the loop drives.

    Args:
        detector: images and targets -> losses by name.
        distributed: the same, averaging gradients over processes; None: there is one process.
        batches: of the training images.
        optimiser: of all its parameters.
        learning_rate: the rate at each step.
        total_steps: of the whole training.
        save_every: steps between checkpoints.
        log_every: steps between lines of metrics.
        seed: of the boxes that are sampled and of the images' sizes.
    """

    detector: nn.Module
    distributed: nn.Module | None = None
    batches: TrainingBatches
    optimiser: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    total_steps: int
    save_every: int
    log_every: int = 10
    seed: int = 0


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

    Args:
        parts: what to drive.
        run: where checkpoints and metrics go.
        recipe: written into each checkpoint; resuming with another is refused.
        state: a checkpoint's content.
        show: gets a report at every line of metrics.

    Returns:
        The signal that stopped it, or None when training is complete.
    """
    detector, optimiser, total = parts.detector, parts.optimiser, parts.total_steps
    device = next(detector.parameters()).device
    step = 0
    if state is not None:
        detector.load_state_dict(state["detector"])
        load_optimiser(optimiser, state["optimiser"])
        step = int(state["step"])
    detector.train()
    journal = Journal(run, step)
    clock = Clock(step, total, parts.batches.num_images)
    with stop_on_signals() as wish:
        for batch in parts.batches.iterate(step, total):
            rate = parts.learning_rate(step)
            for group in optimiser.param_groups:
                group["lr"] = rate
            network = parts.distributed or detector
            losses = losses_at(network, batch.to(device), parts.seed, step)
            loss = torch.stack(list(losses.values())).sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            step += 1
            if step % parts.log_every == 0 or step == total:
                value = require_finite(step, mean(loss), saved(run))
                line = {name: mean(each) for name, each in losses.items()}
                report = clock.report(step, value, rate)
                line = {"loss": value, **line, "learning_rate": rate}
                journal.write(step, line, speed=report.images_per_second)
                show(report)
            # all stop at one step, whichever of them was asked to
            stopping = processes.any_of(wish.signal is not None)
            if step % parts.save_every == 0 or step == total or stopping:
                require_finite(step, mean(loss), saved(run))
                if processes.is_writer():
                    run.save(snapshot(parts, recipe, step), keep=False)
            if stopping:
                break
    journal.close()
    return None if step == total else wish.signal or "SIGTERM"


def losses_at(detector: nn.Module, batch: Batch, seed: int, step: int) -> dict[str, Tensor]:
    """The losses of one step; torchvision draws boxes and sizes from the global generator.

    All processes draw from the same numbers, so that their images are resized alike and none waits
    for another.
    """
    devices = [batch.images[0].device] if batch.images[0].is_cuda else []
    with torch.random.fork_rng(devices=devices):
        drawn = generator_for("detection samples", seed, step)
        torch.manual_seed(drawn.initial_seed())
        losses: dict[str, Tensor] = detector(batch.images, batch.targets)
    return losses


def snapshot(parts: FineTuning, recipe: dict[str, Any], step: int) -> dict[str, Any]:
    """All that must survive a restart."""
    return {
        "recipe": recipe,
        "step": step,
        "detector": parts.detector.state_dict(),
        "optimiser": parts.optimiser.state_dict(),
    }


def with_precise_statistics(parts: FineTuning, num_images: int) -> nn.Module:
    """The detector in eval mode, its batch norms set by the first training batches.

    Args:
        parts: of the finished training.
        num_images: to look at, rounded to whole batches, an epoch at most.
    """
    count = min(max(1, num_images // parts.batches.num_images), parts.batches.steps_per_epoch)
    device = next(parts.detector.parameters()).device
    numbered = enumerate(parts.batches.iterate(0, count))
    set_precise_statistics(
        parts.detector,
        numbered,
        lambda item: losses_at(parts.detector, item[1].to(device), parts.seed, item[0]),
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
        told = torch.full_like(scores, number)
        rows.append(torch.column_stack([told, boxes, labels, scores]).double())
    table = processes.gather_uneven(torch.cat(rows))
    return [
        Detections(own[:, 1:5], own[:, 5].long(), own[:, 6])
        for own in (table[table[:, 0] == number] for number in range(len(images)))
    ]
