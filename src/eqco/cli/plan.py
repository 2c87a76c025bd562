"""`eqco plan`: what a setting means, before any of it runs."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from eqco.planning import IMAGENET, ContrastPlan, Plan, plan
from eqco.planning.footprint import format_bytes, parse_bytes
from eqco.planning.run_advice import RunAdvice, advise_on_run
from eqco.report.tables import print_table


def run(
    *,
    framework: str = "simo",
    num_queries: int | None = None,
    num_negatives: int | None = None,
    queue_size: int | None = None,
    memory: str | None = None,
    alpha: float | None = None,
    temperature: float | None = None,
    base_learning_rate: float | None = None,
    dim: int | None = None,
    dataset_size: int = IMAGENET,
    epochs: int | None = None,
    from_run: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Work out margin, learning rate, memory and steps of a setting, and what to expect of it.

    What is left out is as in the published recipe of the framework.

    Args:
        framework: a name of `eqco recipes`, such as simo or mocov2.
        num_queries: N, queries per batch over all processes; for simclr, pairs.
        num_negatives: K, the negatives of each query, in the batch and in a queue.
        queue_size: those of K in a queue beside the batch, of simo and simclrv2.
        memory: in place of K: the longest queue that fits, with its loss, such as 512MB.
        alpha: how many negatives those present stand in for; inf: the decoupled loss; K: plain
            InfoNCE.
        temperature: of the softmax.
        base_learning_rate: the rate for 256 queries.
        dim: entries of a query or key.
        dataset_size: training images; unless given, ImageNet's.
        epochs: passes over them.
        from_run: a run that eqco train wrote: says what to change in it, from its diagnostics.
        json_output: print JSON instead of tables.

    Examples:
        eqco plan --num-queries 256 --num-negatives 16 --alpha 256
        eqco plan --framework mocov2 --memory 64MB --alpha 65536
        eqco plan --framework simo --num-queries 16 --num-negatives 255 --queue-size 240
        eqco plan --framework simclr --num-queries 128 --dataset-size 50000 --epochs 100 --json
    """
    if from_run is not None:
        found = advise_on_run(from_run)
        if json_output:
            print(json.dumps(asdict(found, dict_factory=without_infinity), indent=1))
        else:
            show_advice(found, Console())
        return
    worked_out = plan(
        framework,
        num_queries=num_queries,
        num_negatives=num_negatives,
        queue_size=queue_size,
        memory=None if memory is None else parse_bytes(memory),
        alpha=alpha,
        temperature=temperature,
        base_learning_rate=base_learning_rate,
        dim=dim,
        dataset_size=dataset_size,
        epochs=epochs,
    )
    if json_output:
        # JSON has no infinity: null where the decoupled loss makes it one
        print(json.dumps(asdict(worked_out, dict_factory=without_infinity), indent=1))
    else:
        show(worked_out, Console())


def without_infinity(items: list[tuple[str, object]]) -> dict[str, object]:
    """A dictionary with None for infinity."""
    return {name: None if value == math.inf else value for name, value in items}


def show(worked_out: Plan, console: Console) -> None:
    """Numbers, warnings, and the lines for other people's code."""
    if isinstance(worked_out, ContrastPlan):
        lines = plan_lines(worked_out)
    else:
        lines = lines_without_negatives(worked_out)
    print_table(console, [f"plan for {worked_out.framework}", ""], lines)
    for warning in worked_out.warnings:
        console.print(f"\nNote: {warning}", markup=False, highlight=False)
    if not isinstance(worked_out, ContrastPlan) or not worked_out.snippets:
        return
    console.print("\nThe same in other libraries", style="bold")
    for each in worked_out.snippets:
        console.print(f"\n{each.library}: {each.remark}", markup=False, highlight=False)
        for line in each.code.splitlines():
            console.print(f"    {line}".rstrip(), markup=False, highlight=False, soft_wrap=True)


def show_advice(found: RunAdvice, console: Console) -> None:
    """What a run's diagnostics were, and what to change."""
    lines = [
        ["negatives per query K", str(found.num_negatives)],
        ["p₊ of plain InfoNCE at this K", f"{found.positive_probability:.3f}"],
        ["gradient over plain InfoNCE's", f"{found.weight_ratio:.2f}"],
        ["negatives that share the gradient", f"{found.effective_negatives:.1f}"],
        ["bias of their weights, CV²/K", f"{found.weight_bias:.3f}"],
    ]
    print_table(console, [f"steps {found.first_step} to {found.last_step}", ""], lines)
    for each in found.advice:
        console.print(f"\n{each}", markup=False, highlight=False)


def lines_without_negatives(p: Plan) -> list[list[str]]:
    """Lines of the table of a method without negatives."""
    return [
        ["queries per batch N", str(p.num_queries)],
        ["negatives per query K", "none"],
        ["learning rate at this N", f"{p.learning_rate:g}"],
        ["queue", format_bytes(p.queue_bytes) if p.queue_bytes else "none"],
        ["steps per epoch", f"{p.steps_per_epoch}"],
        ["steps in all", f"{p.total_steps}"],
    ]


def plan_lines(worked_out: ContrastPlan) -> list[list[str]]:
    """Lines of the table: what, and how much."""
    p = worked_out
    in_batch = f"{p.negatives_in_batch} of {p.negatives_offered}"
    counts = [["negatives per query K", str(p.num_negatives)]]
    if p.negatives_in_batch and p.negatives_in_queue:
        counts += [["  of them in the batch", in_batch]]
        counts += [["  of them in the queue", str(p.negatives_in_queue)]]
    elif p.negatives_in_batch:
        counts = [["negatives per query K", f"{in_batch} in the batch"]]
    kind = "a bound"
    if p.largest_overshoot == math.inf:
        kind = "an estimate"
    elif p.information_kind == "estimate":
        kind = f"an estimate, at most {p.largest_overshoot:.2g} above"
    return [
        ["queries per batch N", str(p.num_queries)],
        *counts,
        ["negatives stood in for, α", f"{p.alpha:g}"],
        ["temperature τ", f"{p.temperature:g}"],
        ["margin m = τ·log(α/K)", f"{p.margin:.4f}"],
        ["added to negative logits, log(α/K)", f"{p.margin / p.temperature:.4f}"],
        ["learning rate at this N", f"{p.learning_rate:g}"],
        ["prior of the positive 1/(1+α)", f"{p.positive_prior:.3g}"],
        ["the most that f̂ can be, log(1+α)", f"{p.ceiling:.3f}"],
        ["f̂ is", kind],
        ["queue", format_bytes(p.queue_bytes) if p.queue_bytes else "none"],
        ["banks, D floats for each image", format_bytes(p.bank_bytes) if p.bank_bytes else "none"],
        ["all (N, K) logits would take", format_bytes(p.logits_bytes)],
        ["our loss takes at most", format_bytes(p.loss_bytes)],
        ["steps per epoch", f"{p.steps_per_epoch}"],
        ["steps in all", f"{p.total_steps}"],
    ]
