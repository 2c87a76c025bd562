"""`eqco recipes`: what can be trained, setting by setting."""

import json
from collections import defaultdict
from dataclasses import asdict
from typing import Annotated

import tyro
from rich.console import Console

from eqco.recipes import PROFILES, RECIPES, Recipe, named_recipe, recipe_to_dict
from eqco.recipes.profiles import find_profile
from eqco.report.tables import print_table
from eqco.theory import scaled_learning_rate

SIDE_BY_SIDE = 4  # recipes in one table
WIDTH = 80  # columns that the table takes at most; a narrower terminal folds its lines itself


def run(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = "",
    *,
    profile: str = "paper",
) -> None:
    """List the recipes of a profile, or show one as the JSON that `eqco train --recipe` takes.

    Args:
        name: of the recipe to show; none lists them all.
        profile: paper, as published, or its scale: desk, folder, few-images, embedded, demo or
            smoke.

    Examples:
        eqco recipes
        eqco recipes simo --profile desk > my_recipe.json
    """
    find_profile(profile)
    if name:
        print(json.dumps(recipe_to_dict(named_recipe(name, profile)), indent=1))
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    groups: dict[str, dict[str, Recipe]] = defaultdict(dict)
    for title in RECIPES:
        recipe = named_recipe(title, profile)
        groups[source_of_negatives(recipe)][title] = recipe
    for group, recipes in groups.items():
        columns = [list(settings(recipe).values()) for recipe in recipes.values()]
        names = settings(next(iter(recipes.values())))
        console.print(group, style="bold", markup=False, highlight=False)
        print_table(console, ["", *recipes], list(zip(names, *columns, strict=True)))
        console.print()
    for title, each in PROFILES.items():
        console.print(f"profile {title}: {each.about}", markup=False, soft_wrap=True)


def source_of_negatives(recipe: Recipe) -> str:
    """The group that a recipe is listed in."""
    method, num_queries = recipe.method, recipe.training.num_queries
    if method.num_negatives(num_queries) is None:
        return "Without negatives"
    if method.num_batch_negatives(num_queries) is None:
        return "Negatives from a memory"
    if method.queue_beside_batch:
        return "Negatives from the batch and a memory"
    return "Negatives from the batch"


def settings(recipe: Recipe) -> dict[str, str]:
    """What the list shows of a recipe; without negatives there is no K and no α."""
    count = recipe.method.num_negatives(recipe.training.num_queries)
    alpha, optimiser = recipe.objective.alpha, recipe.optimiser
    rate = scaled_learning_rate(
        optimiser.base_learning_rate, 256, optimiser.reference, rule=optimiser.rule
    )
    contrast = {"K": f"{count}", "α": "plain" if alpha is None else f"{alpha:g}"}
    return {
        "N": f"{recipe.training.num_queries}",
        **({} if count is None else contrast),
        "τ": f"{recipe.objective.temperature:g}" if recipe.method.has_temperature else "–",
        "optimiser": optimiser.name,
        "lr (N = 256)": f"{rate:g}",
        "β": f"{asdict(recipe.method).get('ema_decay', '–')}",
        "head": recipe.encoder.head,
        "norm": norm(recipe),
        "augmentation": recipe.data.pipeline,
    }


def norm(recipe: Recipe) -> str:
    """Batch norm, over which images; or layer norm, over each by itself."""
    if recipe.encoder.has_layer_norm:
        return "layer"
    return "shuffling BN" if recipe.method.shuffle_bn else "sync BN"
