"""`eqco recipes`: what can be trained, setting by setting."""

import json
from typing import Annotated

import tyro
from rich.console import Console

from eqco.recipes import PROFILES, RECIPES, named_recipe, recipe_to_dict
from eqco.report.tables import print_table
from eqco.runtime.errors import InputError

WIDTH = 80  # columns that the table takes at most; a narrower terminal folds its lines itself


def run(name: Annotated[str, tyro.conf.Positional] = "", *, profile: str = "paper") -> None:
    """List the published recipes, or show one as the JSON that `eqco train --recipe` takes.

    Args:
        name: simo, mocov1, mocov2 or simclr; none lists them.
        profile: paper, desk or demo.

    Examples:
        eqco recipes
        eqco recipes simo --profile desk > my_recipe.json
    """
    if profile not in PROFILES:
        raise InputError(f"there is no profile {profile!r}. There are: {', '.join(PROFILES)}.")
    if name:
        print(json.dumps(recipe_to_dict(named_recipe(name, profile)), indent=1))
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    names = ["K", "α", "τ", "lr (N = 256)", "β", "head", "batch norm", "augmentation"]
    columns = []
    for recipe in RECIPES.values():
        count = recipe.negatives.count
        offered = f"all {2 * recipe.training.num_queries - 2}"
        columns.append(
            [
                offered if count is None else str(count),
                "plain" if recipe.objective.alpha is None else f"{recipe.objective.alpha:g}",
                f"{recipe.objective.temperature:g}",
                f"{recipe.optimiser.base_learning_rate:g}",
                "–" if recipe.method == "simclr" else f"{recipe.ema_decay:g}",
                recipe.encoder.head,
                recipe.encoder.batch_norm,
                recipe.data.pipeline,
            ]
        )
    print_table(console, ["", *RECIPES], list(zip(names, *columns, strict=True)))
    console.print()
    for title, what in PROFILES.items():
        console.print(f"profile {title}: {what}", markup=False, soft_wrap=True)
