"""The detector's training loop and its test: top to bottom, no hooks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eqco.evaluation.detection.annotations import AnnotatedImages
from eqco.evaluation.detection.average_precision import Detections
from eqco.evaluation.detection.batches import Batch, TrainingBatches, read_image
from eqco.evaluation.detection.precise_bn import set_precise_statistics
from eqco.runtime.run_directory import RunDirectory
from eqco.runtime.seeds import generator_for
from eqco.runtime.signals import stop_on_signals
from eqco.training.alarms import require_finite
from eqco.training.journal import Journal
from eqco.training.loop import Clock, StepReport

__all__ = ["FineTuning", "detect", "fine_tune", "with_precise_statistics"]


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What the loop drives.

    Args:
        detector: images and targets -> losses by name.
        batches: of the training images.
        optimiser: of all its parameters.
        learning_rate: the rate at each step.
        total_steps: of the whole training.
        save_every: steps between checkpoints.
        log_every: steps between lines of metrics.
        seed: of the boxes that are sampled and of the images' sizes.
    """

    detector: nn.Module
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
        optimiser.load_state_dict(state["optimiser"])
        step = int(state["step"])
    detector.train()
    journal = Journal(run, step)
    clock = Clock(step, total, parts.batches.num_images)
    with stop_on_signals() as wish:
        for batch in parts.batches.iterate(step, total):
            rate = parts.learning_rate(step)
            for group in optimiser.param_groups:
                group["lr"] = rate
            losses = losses_at(detector, batch.to(device), parts.seed, step)
            loss = torch.stack(list(losses.values())).sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            loss = loss.detach()
            step += 1
            if step % parts.log_every == 0 or step == total:
                value = require_finite(step, float(loss), saved(run))
                line = {name: float(each.detach()) for name, each in losses.items()}
                report = clock.report(step, value, rate, None, [])
                line = {"loss": value, **line, "learning_rate": rate}
                journal.write(step, line, speed=report.images_per_second)
                show(report)
            if step % parts.save_every == 0 or step == total or wish.signal:
                require_finite(step, float(loss), saved(run))
                run.save(snapshot(parts, recipe, step), keep=False)
            if wish.signal:
                break
    journal.close()
    return wish.signal if step < total else None


def losses_at(detector: nn.Module, batch: Batch, seed: int, step: int) -> dict[str, Tensor]:
    """The losses of one step; torchvision draws boxes and sizes from the global generator."""
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


def saved(run: RunDirectory) -> str | None:
    """The last checkpoint, if one was written."""
    return str(run.last) if run.last.exists() else None


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
def detect(detector: nn.Module, images: AnnotatedImages) -> Iterator[Detections]:
    """What a detector in eval mode finds in each image, in order."""
    device = next(detector.parameters()).device
    for number in range(len(images)):
        (found,) = detector([read_image(images, number).to(device)])
        yield Detections(*(found[name].cpu() for name in ("boxes", "labels", "scores")))
