"""Recipes: frozen values with all defaults and checks, the named ones, and their JSON form."""

from eqco.recipes.named import RECIPES, named_recipe
from eqco.recipes.profiles import PROFILES
from eqco.recipes.schema import (
    DataSettings,
    EncoderSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
)
from eqco.recipes.text import read_recipe, recipe_from_dict, recipe_to_dict, with_settings

__all__ = [
    "PROFILES",
    "RECIPES",
    "DataSettings",
    "EncoderSettings",
    "ObjectiveSettings",
    "OptimiserSettings",
    "Recipe",
    "TrainingSettings",
    "named_recipe",
    "read_recipe",
    "recipe_from_dict",
    "recipe_to_dict",
    "with_settings",
]
