"""From a folder and a machine to what the rules need to know, and to a recipe."""

from collections.abc import Mapping
from statistics import median_low
from typing import Any

import torch
from torch import nn

from eqco.assembly.parts import build_components, training_split
from eqco.data import Source
from eqco.recipes import Recipe, with_settings
from eqco.recipes.rules import Choice, Facts, choose
from eqco.runtime import processes
from eqco.training.loop import time_steps

__all__ = ["DEFAULT_MINUTES", "choose_recipe"]

DEFAULT_MINUTES = 20.0
SECONDS = 1.5  # that a network is timed for, after its first step


def choose_recipe(
    source: Source,
    *,
    minutes: float = DEFAULT_MINUTES,
    settings: Mapping[str, Any] | None = None,
    backbone: nn.Module | None = None,
    device: torch.device | str = "cpu",
) -> Choice:
    """The recipe that the rules choose for the images of a source on this machine.

    Several processes measure together and choose the same.
    """
    images, side = len(training_split(source)), typical_side(source)

    def speed(recipe: Recipe) -> float:
        # a queue, which needs some epochs, costs next to nothing
        plain = with_settings(recipe, epochs=1, warmup_epochs=0)
        components = build_components(plain, source, backbone=backbone, device=device)
        own = torch.tensor(time_steps(components, SECONDS), dtype=torch.float64)
        seconds = float(processes.mean_over_processes(own))
        return recipe.training.num_queries / seconds

    return choose(Facts(images=images, side=side, minutes=minutes), speed, settings)


def typical_side(source: Source) -> int:
    """The shorter side of the median image."""
    if not source.sizes:
        size = training_split(source).size
        return 0 if size is None else min(size)
    sides = sorted((min(size), count) for size, count in source.sizes.items())
    return median_low([side for side, count in sides for _ in range(count)])
