"""What the diagnostics of a run say about its setting: what to change, and why."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from eqco.contrast.advice import advice
from eqco.contrast.diagnostics import SATURATION
from eqco.recipes import ObjectiveSettings, recipe_from_dict
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory

__all__ = ["RunAdvice", "advise_on_run"]

# The share of the diagnosed steps, at the end of the run, that the means are over.
LATE = 0.2


@dataclass(frozen=True, kw_only=True)
class RunAdvice:
    """Means over the last fifth of the diagnosed steps, and what follows from them."""

    first_step: int
    last_step: int
    num_negatives: int
    margin: float
    positive_probability: float
    weight_ratio: float
    effective_negatives: float
    weight_bias: float
    advice: tuple[str, ...]


def advise_on_run(path: Path) -> RunAdvice:
    """Read the metrics of a run."""
    run = RunDirectory(path)
    if not run.metrics.exists():
        raise InputError(
            f"--from {path}: no run with metrics is there. Give the folder that eqco train wrote."
        )
    lines = [line for line in run.read_metrics() if all(name in line for name in SATURATION)]
    if not lines and run.recipe.exists():
        recipe = recipe_from_dict(run.read_recipe())
        if recipe.num_negatives is None:
            raise InputError(
                f"--from {path}: {recipe.method.name} has no negatives, so that there is nothing "
                f"to say about K and alpha."
            )
        if recipe.method.similarity != "cosine":
            raise InputError(
                f"--from {path}: {recipe.method.name} was trained with --method.similarity "
                f"{recipe.method.similarity}, and saturation is read from cosines alone. Train "
                f"with --method.similarity cosine --objective.temperature "
                f"{ObjectiveSettings().temperature:g}."
            )
    if not lines:
        raise InputError(
            f"--from {path}: none of its steps was diagnosed for saturation. Train with "
            f"--training.diagnose-every of fewer steps than the run has."
        )
    late = lines[-max(1, round(LATE * len(lines))) :]
    means: dict[str, Any] = {name: fmean(line[name] for line in late) for name in SATURATION}
    means |= {"num_negatives": late[-1]["num_negatives"], "margin": late[-1]["margin"]}
    return RunAdvice(
        first_step=late[0]["step"], last_step=late[-1]["step"], advice=advice(**means), **means
    )
