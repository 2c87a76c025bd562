"""`eqco recipes`: what can be trained, setting by setting."""

import json
from dataclasses import asdict
from typing import Annotated

import tyro
from rich.console import Console

from eqco.recipes import PROFILES, RECIPES, named_recipe, recipe_to_dict
from eqco.recipes.profiles import find_profile
from eqco.report.tables import print_table

WIDTH = 80  # columns that the table takes at most; a narrower terminal folds its lines itself


def run(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = "",
    *,
    profile: str = "paper",
) -> None:
    """List the published recipes, or show one as the JSON that `eqco train --recipe` takes.

    Args:
        name: simo, mocov1, mocov2 or simclr; none lists them.
        profile: paper, desk, folder, embedded, demo or smoke.

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
    names = ["K", "α", "τ", "lr (N = 256)", "β", "head", "batch norm", "augmentation"]
    columns = [
        [
            f"{recipe.method.num_negatives(recipe.training.num_queries)}",
            "plain" if recipe.objective.alpha is None else f"{recipe.objective.alpha:g}",
            f"{recipe.objective.temperature:g}",
            f"{recipe.optimiser.base_learning_rate:g}",
            f"{asdict(recipe.method).get('ema_decay', '–')}",
            recipe.encoder.head,
            "shuffling" if recipe.method.shuffle_bn else "sync",
            recipe.data.pipeline,
        ]
        for recipe in RECIPES.values()
    ]
    print_table(console, ["", *RECIPES], list(zip(names, *columns, strict=True)))
    console.print()
    for title, each in PROFILES.items():
        console.print(f"profile {title}: {each.about}", markup=False, soft_wrap=True)
