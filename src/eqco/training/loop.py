"""The training loop: top to bottom, no hooks."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from eqco.contrast import Contrast, Negatives, Objective
from eqco.contrast.checks import NonFiniteValuesError
from eqco.contrast.normaliser import RememberingObjective
from eqco.data import Batch, StepLoader
from eqco.encoders import Precision, autocast_to, average_running_statistics
from eqco.methods import Method, StepOutput
from eqco.runtime import processes
from eqco.runtime.checkpointing import checkpointing
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.runtime.seeds import generator_for
from eqco.training.alarms import Alarms, NonFiniteLossError, checkpoint_hint, require_finite
from eqco.training.cached_step import in_pieces
from eqco.training.diagnostics import (
    Diagnostics,
    EmbeddingDiagnostics,
    diagnose,
    diagnose_embeddings,
)
from eqco.training.journal import Journal
from eqco.training.loggers import LoggerName
from eqco.training.optimisers import load_optimiser

__all__ = ["Intervals", "Outcome", "StepReport", "TrainerComponents", "run_training", "time_steps"]


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """How long, and how often what happens, in steps; 0 is never for save, keep and probe.

    The last step is diagnosed in any case: a reader of the run asks for its end.
    """

    total_steps: int
    warmup_steps: int = 0
    log_every: int = 10
    diagnose_every: int = 50
    save_every: int = 0
    keep_every: int = 0
    probe_every: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainerComponents:
    """What the loop drives.

    `distributed` is the method averaging gradients over processes, None where there is one; the
    `objective` has the τ and α that diagnostics need; `probe` gives metrics of the encoder.
    """

    method: Method
    distributed: DistributedDataParallel | None = None
    objective: Objective | RememberingObjective
    loader: StepLoader
    optimiser: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    intervals: Intervals
    precision: Precision = "float32"
    compiled: bool = False
    pieces: int = 1
    """Micro-batches that share one loss; 1: those of the loader have a loss each."""
    probe: Callable[[nn.Module], dict[str, float]] | None = None
    loggers: tuple[LoggerName, ...] = ("tensorboard",)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What the display gets to show."""

    step: int
    total_steps: int
    loss: float
    learning_rate: float
    images_per_second: float
    seconds_left: float
    diagnostics: Diagnostics | EmbeddingDiagnostics | None = None
    diagnosed_at: int = 0
    """The step that the diagnostics are of."""
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome:
    """How a call to `run_training` ended.

    >>> Outcome(path=Path("runs/photos"), step=200, probe={"knn20_val": 0.8125})
    Outcome('runs/photos', complete after step 200, knn20_val 81.2 %)
    """

    path: Path
    """The run directory."""
    step: int
    stopped_by: str | None = None
    """The signal that asked to stop, or None when training is complete."""
    probe: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        ended = "complete" if self.stopped_by is None else f"stopped by {self.stopped_by}"
        parts = [repr(str(self.path)), f"{ended} after step {self.step}"]
        parts += [f"{name} {100 * value:.1f} %" for name, value in self.probe.items()]
        return f"Outcome({', '.join(parts)})"


def run_training(
    components: TrainerComponents,
    run: RunDirectory,
    recipe: dict[str, Any],
    *,
    state: dict[str, Any] | None = None,
    show: Callable[[StepReport], None] = lambda report: None,
) -> Outcome:
    """Train from the beginning, or from a checkpoint's state, to the end or to a signal.

    Everything drawn is a function of (seed, step), so that a stopped and resumed run ends at the
    same weights as one that was never stopped: to the bit, with the same number of threads. Several
    processes run this together: all take the same branches, and the first one writes.

    Args:
        components: what to drive.
        run: where checkpoints and metrics go.
        recipe: written into each checkpoint; resuming with another is refused.
        state: a checkpoint's content.
        show: gets a report at every line of metrics.
    """
    method, intervals, loader = components.method, components.intervals, components.loader
    objective, probe = components.objective, components.probe
    device = next(method.parameters()).device
    scaler = torch.amp.GradScaler(device.type, enabled=components.precision == "float16")
    alarms = Alarms(objective.similarity)
    start = restore(components, scaler, alarms, state) if state is not None else 0
    method.train()
    if start == 0:
        # layers that draw by themselves, such as dropout: masks of this seed, and of this process
        own = generator_for("layers", loader.seed, processes.rank())
        torch.manual_seed(own.initial_seed())
        warm_up(components)
    journal = Journal(run, start, components.loggers, recipe)
    clock = Clock(start, intervals.total_steps, loader.num_queries)
    diagnostics: Diagnostics | EmbeddingDiagnostics | None = None
    metrics: dict[str, float] = {}
    step = diagnosed_at = start

    def save(step: int) -> None:
        require_finite(step, mean(output.loss), last_checkpoint(run))
        largest = largest_weight(method)
        require_finite(step, largest, last_checkpoint(run), what="the largest weight")
        state = snapshot(components, scaler, alarms, recipe, step)
        if processes.is_writer():
            run.save(state, keep=is_due(step, intervals.keep_every))

    every = (intervals.save_every, intervals.keep_every)
    with checkpointing(save, total_steps=intervals.total_steps, every=every) as checkpoints:
        for micro_batches in loader.iterate(start, intervals.total_steps):
            rate = components.learning_rate(step)
            for group in components.optimiser.param_groups:
                group["lr"] = rate
            try:
                output = optimise(components, scaler, micro_batches, step)
            except NonFiniteValuesError as error:
                raise NonFiniteLossError(
                    f"stopped at step {step + 1}: {error} {checkpoint_hint(last_checkpoint(run))}"
                ) from error
            step += 1

            messages: list[str] = []
            last = step == intervals.total_steps
            diagnosed = last or step % intervals.diagnose_every == 0
            if diagnosed and can_be_diagnosed(output, objective):
                diagnosed_at, diagnostics = step, diagnose_step(output, objective)
                loss = mean(output.loss)
                messages = alarms.check(step, loss, diagnostics, intervals.warmup_steps)
            # after the diagnosis: a queue that has new keys is no longer what the queries saw
            method.after_step(output)
            if diagnosed or step % intervals.log_every == 0:
                value = require_finite(step, mean(output.loss), last_checkpoint(run))
                line: dict[str, Any] = {"loss": value, "learning_rate": rate}
                if diagnosed and diagnostics is not None:
                    line = {**asdict(diagnostics), **line}
                if messages:
                    line["alarms"] = messages
                report = replace(
                    clock.report(step, value, rate),
                    diagnostics=diagnostics,
                    diagnosed_at=diagnosed_at,
                    messages=tuple(messages),
                )
                journal.write(step, line, speed=report.images_per_second)
                show(report)
            if is_due(step, intervals.probe_every) and probe and step < intervals.total_steps:
                found = run_probe(method, probe)
                journal.write(step, {f"probe/{name}": value for name, value in found.items()})
            if checkpoints.after_step(step):
                break
    if step == intervals.total_steps and probe is not None:
        metrics = run_probe(method, probe)
        journal.write_once(step, {f"probe/{name}": value for name, value in metrics.items()})
    journal.close()
    return Outcome(path=run.path, step=step, stopped_by=checkpoints.stopped_by, probe=metrics)


def warm_up(components: TrainerComponents) -> None:
    """Fill a queue from the epoch's last batch: when it comes, its keys have been replaced."""
    loader = components.loader
    for number, batch in enumerate(loader.micro_batches(loader.steps_per_epoch - 1)):
        components.method.warm_up(batch, number)


def optimise(
    components: TrainerComponents,
    scaler: torch.amp.GradScaler,
    micro_batches: Sequence[Batch],
    step: int,
) -> StepOutput:
    """Views -> loss -> gradients -> parameters.

    Returns:
        The mean loss, the contrasts or embeddings of the last micro-batch, the new keys of all of
        them.
    """
    if components.pieces > 1:
        return optimise_cached(components, scaler, micro_batches[0], step)
    distributed, optimiser = components.distributed, components.optimiser
    method = distributed or components.method
    optimiser.zero_grad(set_to_none=True)
    count, losses, new_keys, new_index = len(micro_batches), [], [], []
    for number, batch in enumerate(micro_batches):
        # gradients are averaged over processes once, with the last micro-batch
        last = number == count - 1
        with nullcontext() if distributed is None or last else distributed.no_sync():
            with autocast_to(components.precision, batch.index.device):
                output: StepOutput = method(batch, step * count + number)
            loss = output.loss / count
            scaler.scale(loss).backward()
        losses.append(loss.detach())
        if output.new_keys is not None:
            new_keys.append(output.new_keys)
        if output.new_index is not None:
            new_index.append(output.new_index)
    scaler.step(optimiser)
    scaler.update()
    keys, index = (torch.cat(each) if each else None for each in (new_keys, new_index))
    return StepOutput(
        torch.stack(losses).sum(), output.contrasts, keys, index, embeddings=output.embeddings
    )


def optimise_cached(
    components: TrainerComponents, scaler: torch.amp.GradScaler, batch: Batch, step: int
) -> StepOutput:
    """The same with one loss for the whole batch, whose encoders take it in pieces."""
    method, optimiser = components.method, components.optimiser
    optimiser.zero_grad(set_to_none=True)
    device = batch.index.device
    with in_pieces(method, len(batch.index) // components.pieces) as encoders:
        with autocast_to(components.precision, device):
            output: StepOutput = method(batch, step)
        scaler.scale(output.loss).backward()
        for encoder in encoders:
            with autocast_to(components.precision, device):
                encoder.carry_back()
    scaler.step(optimiser)
    scaler.update()
    return replace(output, loss=output.loss.detach())


def time_steps(components: TrainerComponents, seconds: float) -> float:
    """Seconds that a step takes, data and all: the median of those that fit into `seconds`.

    The first step is not counted, and the components are not fit for training afterwards.
    """
    scaler = torch.amp.GradScaler(enabled=False)
    method = components.method.train()
    device = next(method.parameters()).device
    taken: list[float] = []
    start = time.perf_counter()
    for step, batch in enumerate(components.loader.iterate(0, components.intervals.total_steps)):
        method.after_step(optimise(components, scaler, batch, step))
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        now = time.perf_counter()
        taken.append(now - start)
        start = now
        if processes.any_of(sum(taken[1:]) >= seconds):
            break
    return median(taken[1:] or taken)


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; 0 is never."""
    return every > 0 and step % every == 0


def run_probe(method: Method, probe: Callable[[nn.Module], dict[str, float]]) -> dict[str, float]:
    """Metrics of the encoder as it is now; nothing is changed."""
    average_running_statistics(method)
    method.eval()
    metrics = probe(method.encoder)
    method.train()
    return metrics


def mean(loss: Tensor) -> float:
    """The loss of the batch over all processes."""
    return float(processes.mean_over_processes(loss))


def can_be_diagnosed(output: StepOutput, objective: Objective | RememberingObjective) -> bool:
    """Whether there is something to read."""
    return has_cosines(output, objective) or output.embeddings is not None


def has_cosines(output: StepOutput, objective: Objective | RememberingObjective) -> bool:
    """Whether there are contrasts of cosines, which information and gradients are read from."""
    return bool(output.contrasts) and objective.similarity == "cosine"


def diagnose_step(
    output: StepOutput, objective: Objective | RememberingObjective
) -> Diagnostics | EmbeddingDiagnostics:
    """What the contrasts of all processes say or, without cosines, the embeddings."""
    if not has_cosines(output, objective):
        assert output.embeddings is not None
        return diagnose_embeddings(processes.gather(output.embeddings))
    contrasts = gather_contrasts(output.contrasts)
    return diagnose(contrasts, temperature=objective.temperature, alpha=objective.alpha)


def gather_contrasts(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """The contrasts with the queries of all processes; their negatives are shared already."""
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
        found.append(
            Contrast(
                queries,
                positives,
                negatives,
                weight=contrast.weight,
                independent=contrast.independent,
            )
        )
    return found


def largest_weight(method: Method) -> float:
    """The largest absolute parameter: not finite if any is not."""
    weights = [parameter.detach() for parameter in method.parameters()]
    return float(torch.stack([weight.abs().max() for weight in weights]).max())


def last_checkpoint(run: RunDirectory) -> str | None:
    """The last checkpoint, if one was written."""
    return str(run.last) if run.last.exists() else None


def snapshot(
    components: TrainerComponents,
    scaler: torch.amp.GradScaler,
    alarms: Alarms,
    recipe: dict[str, Any],
    step: int,
) -> dict[str, Any]:
    """All that must survive a restart; random states of all processes, one row each."""
    average_running_statistics(components.method)
    device = next(components.method.parameters()).device
    on_gpu = [torch.cuda.get_rng_state(device)[None]] if device.type == "cuda" else []
    return {
        "recipe": recipe,
        "step": step,
        "method": components.method.state_dict(),
        "optimiser": components.optimiser.state_dict(),
        "scaler": scaler.state_dict(),
        "alarms": alarms.state_dict(),
        "random": processes.gather(torch.get_rng_state()[None]),
        "random_devices": [processes.gather(rows) for rows in on_gpu],
    }


def restore(
    components: TrainerComponents,
    scaler: torch.amp.GradScaler,
    alarms: Alarms,
    state: dict[str, Any],
) -> int:
    """Put a checkpoint's state back; returns the step to resume from."""
    try:
        components.method.load_state_dict(state["method"])
    except RuntimeError as error:
        raise InputError(
            "the checkpoint is of another network than this run's; give the same encoder=…"
        ) from error
    load_optimiser(components.optimiser, state["optimiser"])
    if state["scaler"]:
        scaler.load_state_dict(state["scaler"])
    alarms.load_state_dict(state["alarms"])
    # on another number of processes only layers that draw by themselves (dropout) draw otherwise
    if len(state["random"]) == processes.world_size():
        torch.set_rng_state(state["random"][processes.rank()].clone())
        device = next(components.method.parameters()).device
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
