"""The training loop: top to bottom, no hooks."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from eqco.contrast import Contrast, Negatives, Objective
from eqco.contrast.checks import NonFiniteValuesError
from eqco.data import TwoViewLoader, Views
from eqco.encoders import average_running_statistics
from eqco.methods import Method, StepOutput
from eqco.runtime import processes
from eqco.runtime.checkpointing import StopRequest, stop_on_signals
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.alarms import Alarms, NonFiniteLossError, require_finite, what_is_kept
from eqco.training.diagnostics import Diagnostics, diagnose
from eqco.training.journal import Journal
from eqco.training.optimisers import load_optimiser

__all__ = ["Outcome", "Parts", "Rhythm", "StepReport", "run_training"]

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """How long, and how often what happens, in steps; 0 is never for save, keep and probe."""

    total_steps: int
    warmup_steps: int = 0
    log_every: int = 10
    diagnose_every: int = 50
    save_every: int = 0
    keep_every: int = 0
    probe_every: int = 0


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop drives.

    Args:
        method: the framework.
        distributed: the same, averaging gradients over processes; None: there is one process.
        objective: the loss over its contrasts.
        loader: two views for each step.
        optimiser: of the method's encoder.
        learning_rate: the rate at each step.
        rhythm: how long and how often.
        accumulate: parts that a batch is computed in.
        precision: of the encoder.
        channels_last: memory layout of the images.
        probe: what the encoder is worth, as named numbers; None: not asked.
    """

    method: Method
    distributed: DistributedDataParallel | None = None
    objective: Objective
    loader: TwoViewLoader
    optimiser: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    rhythm: Rhythm
    accumulate: int = 1
    precision: Precision = "float32"
    channels_last: bool = False
    probe: Callable[[nn.Module], dict[str, float]] | None = None


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What the display gets to show."""

    step: int
    total_steps: int
    loss: float
    learning_rate: float
    images_per_second: float
    seconds_left: float
    diagnostics: Diagnostics | None = None
    looked_at: int = 0
    """The step that the diagnostics are of."""
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call to `run_training` ended."""

    step: int
    stopped_by: str | None = None
    """The signal that asked to stop, or None when training is complete."""
    probe: dict[str, float] = field(default_factory=dict)


def run_training(
    parts: Parts,
    run: RunDirectory,
    recipe: dict[str, Any],
    *,
    state: dict[str, Any] | None = None,
    show: Callable[[StepReport], None] = lambda report: None,
) -> Outcome:
    """Train from the beginning, or from a checkpoint's state, to the end or to a signal.

    Everything drawn is a function of (seed, step), so that a stopped and resumed run ends at the
    same weights, to the bit, as one that was never stopped. Several processes run this together:
    all take the same branches, and the first one writes.

    Args:
        parts: what to drive.
        run: where checkpoints and metrics go.
        recipe: written into each checkpoint; resuming with another is refused.
        state: a checkpoint's content.
        show: gets a report at every line of metrics.
    """
    method, rhythm, loader = parts.method, parts.rhythm, parts.loader
    device = next(method.parameters()).device
    scaler = torch.amp.GradScaler(device.type, enabled=parts.precision == "float16")
    alarms = Alarms()
    start = restore(parts, scaler, alarms, state) if state is not None else 0
    method.train()
    if start == 0:
        # the last batch of the first epoch: when it comes, its keys have been replaced
        warm_up(parts, on_device(loader.batch(loader.steps_per_epoch - 1), parts))
    journal = Journal(run, start)
    diagnostics, worth, clock = None, {}, Clock(start, rhythm.total_steps, loader.steps.num_queries)
    step = looked_at = start
    with stop_on_signals() as wish:
        for views in loader.iterate(start, rhythm.total_steps):
            rate = parts.learning_rate(step)
            for group in parts.optimiser.param_groups:
                group["lr"] = rate
            try:
                loss, output, fresh = optimise(parts, scaler, on_device(views, parts), step)
            except NonFiniteValuesError as error:
                raise NonFiniteLossError(
                    f"stopped at step {step + 1}: {error} {what_is_kept(saved(run))}"
                ) from error
            step += 1

            messages: list[str] = []
            looked = step % rhythm.diagnose_every == 0
            if looked:
                looked_at, objective = step, parts.objective
                diagnostics = diagnose(
                    of_all_processes(output.contrasts),
                    temperature=objective.temperature,
                    alpha=objective.alpha,
                )
                messages = alarms.check(step, mean(loss), diagnostics, rhythm.warmup_steps)
            # after the look: a queue that remembers is no longer what the queries met
            method.after_step(fresh)
            if looked or step % rhythm.log_every == 0 or step == rhythm.total_steps:
                value = require_finite(step, mean(loss), saved(run))
                line: dict[str, Any] = {"loss": value, "learning_rate": rate}
                if looked and diagnostics is not None:
                    line = {**asdict(diagnostics), **line}
                if messages:
                    line["alarms"] = messages
                report = replace(
                    clock.report(step, value, rate),
                    diagnostics=diagnostics,
                    looked_at=looked_at,
                    messages=tuple(messages),
                )
                journal.write(step, line, speed=report.images_per_second)
                show(report)
            if due(step, rhythm.probe_every) and parts.probe and step < rhythm.total_steps:
                journal.write(step, {f"probe/{k}": v for k, v in asked(parts).items()})
            # all stop at one step, whichever of them was asked to
            stopping = processes.any_of(wish.signal is not None)
            keep = due(step, rhythm.keep_every)
            if keep or due(step, rhythm.save_every) or step == rhythm.total_steps or stopping:
                require_finite(step, mean(loss), saved(run))
                largest = largest_weight(method)
                require_finite(step, largest, saved(run), what="the largest weight")
                state = snapshot(parts, scaler, alarms, recipe, step)
                if processes.is_writer():
                    run.save(state, keep=keep)
            if stopping:
                break
    if step == rhythm.total_steps and parts.probe is not None:
        worth = asked(parts)
        journal.write_once(step, {f"probe/{name}": value for name, value in worth.items()})
    journal.close()
    return Outcome(step=step, stopped_by=finished(wish, step, rhythm), probe=worth)


def warm_up(parts: Parts, views: Views) -> None:
    """Fill the memory, part by part as in a step."""
    for number, part in enumerate(cut(views, parts.accumulate)):
        parts.method.warm_up_memory(part, number)


def optimise(
    parts: Parts, scaler: torch.amp.GradScaler, views: Views, step: int
) -> tuple[Tensor, StepOutput, Tensor | None]:
    """Images -> contrasts -> loss -> gradients -> parameters; the keys to remember come back."""
    method, optimiser = parts.distributed or parts.method, parts.optimiser
    optimiser.zero_grad(set_to_none=True)
    losses, fresh, output = [], [], None
    for number, part in enumerate(cut(views, parts.accumulate)):
        with averaging_gradients(parts, last=number == parts.accumulate - 1):
            with encoding_in(parts.precision, views.first.device):
                output = method(part, step * parts.accumulate + number)
            loss = parts.objective(output.contrasts) / parts.accumulate
            scaler.scale(loss).backward()
        losses.append(loss.detach())
        if output.fresh_keys is not None:
            fresh.append(output.fresh_keys)
    scaler.step(optimiser)
    scaler.update()
    assert output is not None
    return torch.stack(losses).sum(), output, torch.cat(fresh) if fresh else None


def averaging_gradients(parts: Parts, *, last: bool) -> AbstractContextManager[Any]:
    """Gradients are averaged over processes once, with the last part of a batch."""
    return nullcontext() if parts.distributed is None or last else parts.distributed.no_sync()


def encoding_in(precision: Precision, device: torch.device) -> torch.autocast:
    """Autocast for the encoder; the loss leaves it by itself."""
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "float32")


def cut(views: Views, count: int) -> list[Views]:
    """A batch in `count` equal parts, each with negatives of its own."""
    if count == 1:
        return [views]
    pieces = [tensor.chunk(count) for tensor in (views.first, views.second, views.index)]
    return [Views(*piece) for piece in zip(*pieces, strict=True)]


def on_device(views: Views, parts: Parts) -> Views:
    """The batch where the encoder is, in the wanted memory layout."""
    device = next(parts.method.parameters()).device
    layout = torch.channels_last if parts.channels_last else torch.preserve_format
    first, second = (
        view.to(device, non_blocking=True, memory_format=layout)
        for view in (views.first, views.second)
    )
    return Views(first, second, views.index.to(device, non_blocking=True))


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; 0 is never."""
    return every > 0 and step % every == 0


def asked(parts: Parts) -> dict[str, float]:
    """What the encoder is worth now; asking changes nothing."""
    assert parts.probe is not None
    average_running_statistics(parts.method)
    parts.method.eval()
    worth = parts.probe(parts.method.encoder)
    parts.method.train()
    return worth


def mean(loss: Tensor) -> float:
    """The loss of the batch over all processes."""
    return float(processes.mean_over_processes(loss))


def of_all_processes(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """The contrasts with the queries of all processes; the keys they meet are shared already."""
    if processes.world_size() == 1:
        return list(contrasts)
    gather = processes.gather
    found = []
    for contrast in contrasts:
        given = contrast.negatives
        indices, excluded, mask = (
            None if each is None else gather(each)
            for each in (given.indices, given.excluded, given.mask)
        )
        negatives = Negatives(given.keys.detach(), indices, excluded, mask)
        queries, positives = gather(contrast.queries), gather(contrast.positives)
        found.append(Contrast(queries, positives, negatives, weight=contrast.weight))
    return found


def largest_weight(method: Method) -> float:
    """The largest absolute parameter: not finite if any is not."""
    weights = [parameter.detach() for parameter in method.parameters()]
    return float(torch.stack([weight.abs().max() for weight in weights]).max())


def saved(run: RunDirectory) -> str | None:
    """The last checkpoint, if one was written."""
    return str(run.last) if run.last.exists() else None


def finished(wish: StopRequest, step: int, rhythm: Rhythm) -> str | None:
    """The signal that cut training short, if one did; another process may have got it."""
    return None if step == rhythm.total_steps else wish.signal or "SIGTERM"


def snapshot(
    parts: Parts,
    scaler: torch.amp.GradScaler,
    alarms: Alarms,
    recipe: dict[str, Any],
    step: int,
) -> dict[str, Any]:
    """All that must survive a restart; random states of all processes, one row each."""
    average_running_statistics(parts.method)
    device = next(parts.method.parameters()).device
    on_gpu = [torch.cuda.get_rng_state(device)[None]] if device.type == "cuda" else []
    return {
        "recipe": recipe,
        "step": step,
        "method": parts.method.state_dict(),
        "optimiser": parts.optimiser.state_dict(),
        "scaler": scaler.state_dict(),
        "alarms": alarms.state_dict(),
        "random": processes.gather(torch.get_rng_state()[None]),
        "random_devices": [processes.gather(rows) for rows in on_gpu],
    }


def restore(
    parts: Parts, scaler: torch.amp.GradScaler, alarms: Alarms, state: dict[str, Any]
) -> int:
    """Put a checkpoint's state back; returns the step to go on from."""
    try:
        parts.method.load_state_dict(state["method"])
    except RuntimeError as error:
        raise InputError(
            "the checkpoint is of another network than this run's; give the same encoder=…"
        ) from error
    load_optimiser(parts.optimiser, state["optimiser"])
    if state["scaler"]:
        scaler.load_state_dict(state["scaler"])
    alarms.load_state_dict(state["alarms"])
    # on another number of processes only layers that draw by themselves (dropout) draw otherwise
    if len(state["random"]) == processes.world_size():
        torch.set_rng_state(state["random"][processes.rank()].clone())
        device = next(parts.method.parameters()).device
        for rows in state["random_devices"] if device.type == "cuda" else []:
            torch.cuda.set_rng_state(rows[processes.rank()].clone(), device)
    return int(state["step"])


class Clock:
    """Images per second since the last report, and the time that is left."""

    def __init__(self, start: int, total_steps: int, num_queries: int):
        self.total_steps, self.num_queries = total_steps, num_queries
        self.begun = self.seen_at = time.perf_counter()
        self.start = self.seen = start

    def report(self, step: int, loss: float, rate: float) -> StepReport:
        """What the display shows of every step."""
        now = time.perf_counter()
        speed = (step - self.seen) * self.num_queries / max(now - self.seen_at, 1e-9)
        pace = (now - self.begun) / max(step - self.start, 1)
        self.seen, self.seen_at = step, now
        return StepReport(
            step=step,
            total_steps=self.total_steps,
            loss=loss,
            learning_rate=rate,
            images_per_second=speed,
            seconds_left=pace * (self.total_steps - step),
        )
