"""Figure 2: the gradient norm ‖dL/dq‖ under different K, at four moments of one training.

One MoCo v2 is trained without EqCo. After each quarter of its training, queries meet K of the keys
in its memory, and both losses are asked for their gradient: at the unit query, before the Jacobian
of the normalisation, without the 1/N of the batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eqco.assembly import build_components
from eqco.contrast import Contrast, Negatives, sampled_negatives
from eqco.experiments.experiment import Comparison, Experiment, Outcome, Recipe, Site
from eqco.experiments.grid import by_run
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, moco
from eqco.experiments.training_runs import TrainedRun, train_once, training_steps
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record
from eqco.training.diagnostics import diagnose

__all__ = ["FIG2"]

LOSSES = {"infonce": "InfoNCE", "eqco": "EqCo"}


@dataclass(frozen=True, kw_only=True)
class Norms:
    """‖dL/dq‖ over queries."""

    mean: float
    deviation: float


def look(recipe: Recipe, seed: int, site: Site) -> Outcome:
    """Train the baseline, or find it trained, and look at its kept moments."""
    run = train_once(recipe, seed, site)
    metrics: dict[str, float] = {}
    curves: dict[str, Any] = {"trained_by": run.code}
    for checkpoint in kept_moments(run):
        state = read_checkpoint(checkpoint)
        share = state["step"] / run.steps
        found = norms_at(state, run, recipe, site)
        for (loss, count), norms in found.items():
            metrics[f"{share:g} {loss} K={count} mean"] = norms.mean
            metrics[f"{share:g} {loss} K={count} deviation"] = norms.deviation
            rows = curves.setdefault(f"{share:g} {loss}", [])
            rows.append([count, norms.mean, norms.deviation])
    return Outcome(metrics=metrics, curves=curves, earlier=run.earlier)


def kept_moments(run: TrainedRun) -> list[Path]:
    """The checkpoints that the training kept for good; refused if one is gone."""
    kept = sorted(run.directory.checkpoints.glob("step-*.pt"))
    settings = run.training.training
    expected = settings.epochs // settings.keep_every
    if len(kept) != expected:
        raise InputError(
            f"{run.directory.checkpoints} has {len(kept)} kept moments of a training that keeps "
            f"{expected}. Move {run.directory.path} away to train it again."
        )
    return kept


def norms_at(
    state: Mapping[str, Any], run: TrainedRun, recipe: Recipe, site: Site
) -> dict[tuple[str, int], Norms]:
    """Norms by loss and K at one moment; queries of several batches, K keys drawn for each."""
    components = build_components(run.training, run.source, device=site.device)
    components.method.load_state_dict(state["method"])
    method = components.method.train()
    seen: dict[tuple[str, int], list[Norms]] = {}
    for number in range(recipe["batches"]):
        step = int(state["step"]) + number
        with torch.no_grad():
            (batch,) = components.loader.micro_batches(step)
            (contrast,) = method(batch, step).contrasts
        for count in recipe["counts"]:
            drawn = drawn_from(contrast, count, run.training.training.seed, step)
            for loss, alpha in (("infonce", None), ("eqco", recipe["alpha"])):
                diagnostics = diagnose(
                    [drawn], temperature=components.objective.temperature, alpha=alpha
                )
                norms = Norms(
                    mean=diagnostics.gradient_norm_mean, deviation=diagnostics.gradient_norm_std
                )
                seen.setdefault((loss, count), []).append(norms)
    return {key: pooled(several) for key, several in seen.items()}


def drawn_from(contrast: Contrast, count: int, seed: int, step: int) -> Contrast:
    """The same queries, each meeting `count` keys of its own draw."""
    pool = contrast.negatives
    if count == pool.num_negatives:
        return contrast
    num_queries = len(contrast.queries)
    index = torch.arange(num_queries, device=pool.keys.device)
    negatives: Negatives = sampled_negatives(
        pool, count, seed=seed, step=step, index=index, num_queries=num_queries
    )
    return Contrast(contrast.queries, contrast.positives, negatives)


def pooled(several: Sequence[Norms]) -> Norms:
    """Mean and deviation over the queries of batches of one size.

    >>> pooled([Norms(mean=1.0, deviation=0.0), Norms(mean=3.0, deviation=0.0)])
    Norms(mean=2.0, deviation=1.0)
    """
    mean = sum(norms.mean for norms in several) / len(several)
    square = sum(norms.deviation**2 + norms.mean**2 for norms in several) / len(several)
    return Norms(mean=mean, deviation=math.sqrt(max(0.0, square - mean**2)))


def table(records: Sequence[Record], quantity: str) -> list[Comparison]:
    """One line for each moment and loss, one column for each K."""
    (several,) = by_run(records).values()
    recipe = records[0].recipe
    shares = sorted({name.split()[0] for name in records[0].metrics}, key=float)
    epochs = recipe["training"]["training"]["epochs"]
    return [
        Comparison(
            row=f"{title}, after {float(share) * epochs:g} epochs",
            column=f"K={count}",
            values=tuple(
                record.metrics[f"{share} {loss} K={count} {quantity}"]
                for record in several.values()
            ),
            seeds=tuple(several),
        )
        for share in shares
        for loss, title in LOSSES.items()
        for count in recipe["counts"]
    ]


def looks(scale: Scale, counts: list[int], batches: int) -> list[Recipe]:
    """One plain training, and what to look at in it."""
    recipe = moco("mocov2", scale, count=scale.memory, alpha=None)
    recipe = {name: recipe[name] for name in ("data", "framework", "training")}
    extra = {"counts": [*counts, scale.memory], "alpha": scale.memory, "batches": batches}
    return [{**recipe, **extra}]


FIG2 = Experiment(
    name="fig2",
    title="Figure 2: gradient norm under different K at four moments of one training",
    profiles={
        "smoke": looks(SMOKE, [4, 64], 1),
        "desk": looks(DESK, [4, 16, 64, 256, 1024], 4),
        "embedded": looks(EMBEDDED, [4, 16, 64], 4),
        "paper": looks(PAPER, [4, 16, 64, 256, 1024, 4096, 16384], 4),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
    size=training_steps,
    run=look,
    compare=lambda records: table(records, "mean"),
    further=lambda records: {"Deviation σ of ‖dL/dq‖ over queries": table(records, "deviation")},
)
