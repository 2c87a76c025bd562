"""Figure 2: the gradient norm ‖dL/dq‖ under different K, at four moments of one training.

One MoCo v2 is trained without EqCo. After each quarter of its training, queries are scored against
K of the keys in its memory, and both losses give their gradient: at the unit query, before the
Jacobian of the normalisation, without the 1/N of the batch.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from eqco.assembly import build_components
from eqco.contrast import Contrast, Negatives, sampled_negatives
from eqco.experiments.coordinates import Coordinates, Loss
from eqco.experiments.experiment import Comparison, Experiment, RunContext, RunResult
from eqco.experiments.grid import SEEDS, by_run
from eqco.experiments.tasks import GradientTask, moco
from eqco.experiments.training_runs import TrainedRun, train_once, training_steps
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record
from eqco.training.diagnostics import diagnose

__all__ = ["FIG2"]

LOSSES: tuple[Loss, ...] = ("infonce", "eqco")


Norms = tuple[float, float]  # mean and deviation of ‖dL/dq‖ over queries
QUANTITIES = ("mean", "deviation")


def measure_gradients(task: GradientTask, seed: int, context: RunContext) -> RunResult:
    """Train the baseline, or find it trained, and measure at its saved moments."""
    run = train_once(task.training, seed, context)
    metrics: dict[str, float] = {}
    for checkpoint in saved_moments(run):
        state = read_checkpoint(checkpoint)
        for (loss, count), norms in norms_at(state, run, task, context).items():
            for quantity, value in zip(QUANTITIES, norms, strict=True):
                metrics[metric_name(state["step"] / run.steps, loss, count, quantity)] = value
    return RunResult(metrics=metrics, curves={"trained_by": run.code}, earlier=run.earlier)


def metric_name(share: float, loss: str, count: int, quantity: str) -> str:
    """The name of a measurement within a record.

    >>> metric_name(0.25, "eqco", 16, "mean")
    '0.25 eqco K=16 mean'
    """
    return f"{share:g} {loss} K={count} {quantity}"


def saved_moments(run: TrainedRun) -> list[Path]:
    """The checkpoints that the training saved for good; refused if one is missing."""
    found = sorted(run.directory.checkpoints.glob("step-*.pt"))
    settings = run.training.training
    expected = settings.epochs // settings.keep_every
    if len(found) != expected:
        raise InputError(
            f"{run.directory.checkpoints} has {len(found)} saved moments of a training that saves "
            f"{expected}. Move {run.directory.path} away to train it again."
        )
    return found


def norms_at(
    state: Mapping[str, Any], run: TrainedRun, task: GradientTask, context: RunContext
) -> dict[tuple[Loss, int], Norms]:
    """Norms by loss and K at one moment; queries of several batches, K keys drawn for each."""
    components = build_components(run.training, run.source, device=context.device)
    components.method.load_state_dict(state["method"])
    method = components.method.train()
    seen: dict[tuple[Loss, int], list[Norms]] = {}
    for number in range(task.batches):
        step = int(state["step"]) + number
        with torch.no_grad():
            (batch,) = components.loader.micro_batches(step)
            (contrast,) = method(batch, step).contrasts
        for count in task.counts:
            drawn = with_negatives(contrast, count, run.training.training.seed, step)
            for loss, alpha in zip(LOSSES, (None, task.alpha), strict=True):
                diagnostics = diagnose(
                    [drawn], temperature=components.objective.temperature, alpha=alpha
                )
                norms = (diagnostics.gradient_norm_mean, diagnostics.gradient_norm_std)
                seen.setdefault((loss, count), []).append(norms)
    return {key: pool(several) for key, several in seen.items()}


def with_negatives(contrast: Contrast, count: int, seed: int, step: int) -> Contrast:
    """The same queries, each with `count` keys of its own draw."""
    pool = contrast.negatives
    if count == pool.num_negatives:
        return contrast
    num_queries = len(contrast.queries)
    index = torch.arange(num_queries, device=pool.keys.device)
    negatives: Negatives = sampled_negatives(
        pool, count, seed=seed, step=step, index=index, num_queries=num_queries
    )
    return Contrast(contrast.queries, contrast.positives, negatives)


def pool(several: Sequence[Norms]) -> Norms:
    """Mean and deviation over the queries of batches of one size.

    >>> pool([(1.0, 0.0), (3.0, 0.0)])
    (2.0, 1.0)
    """
    mean = fmean(mean for mean, _ in several)
    square = fmean(deviation**2 + mean**2 for mean, deviation in several)
    return mean, math.sqrt(max(0.0, square - mean**2))


def table(records: Sequence[Record], quantity: str) -> list[Comparison]:
    """One row for each moment and loss, one column for each K."""
    if not records:  # the paper has the curves alone
        return []
    (several,) = by_run(records).values()
    settings = records[0].recipe["training"]["training"]
    epochs, every = settings["epochs"], settings["keep_every"]
    return [
        Comparison.of(
            Coordinates(loss=loss, after_epochs=share * epochs),
            Coordinates(num_negatives=count),
            {
                seed: record.metrics[metric_name(share, loss, count, quantity)]
                for seed, record in several.items()
            },
        )
        for share in [moment * every / epochs for moment in range(1, epochs // every + 1)]
        for loss in LOSSES
        for count in records[0].recipe["counts"]
    ]


def tasks(scale: Scale, counts: tuple[int, ...], batches: int) -> list[GradientTask]:
    """One plain training, and what to measure in it."""
    return [
        GradientTask(
            training=moco("mocov2", scale, count=scale.memory, alpha=None),
            counts=(*counts, scale.memory),
            alpha=scale.memory,
            batches=batches,
        )
    ]


FIG2 = Experiment(
    name="fig2",
    kind="figure",
    number=2,
    title="Gradient norm under different K at four moments of one training",
    profiles={
        "smoke": tasks(SMOKE, (4, 64), 1),
        "desk": tasks(DESK, (4, 16, 64, 256, 1024), 4),
        "embedded": tasks(EMBEDDED, (4, 16, 64), 4),
        "paper": tasks(PAPER, (4, 16, 64, 256, 1024, 4096, 16384), 4),
    },
    seeds=SEEDS,
    size=lambda task: training_steps(task.training),
    run=measure_gradients,
    compare=lambda records: table(records, "mean"),
    further=lambda records: (
        {"Deviation σ of ‖dL/dq‖ over queries": table(records, "deviation")} if records else {}
    ),
    training=lambda task: task.training,
)
