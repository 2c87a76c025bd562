"""Recipes as JSON and back: nothing lost, unknown names answered with the nearest one."""

import dataclasses
import difflib
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union

from eqco.methods import METHODS, MethodSettings
from eqco.recipes.schema import Recipe
from eqco.runtime.errors import InputError

__all__ = ["read_recipe", "recipe_from_dict", "recipe_to_dict", "with_settings"]


# Written down only where they have another value than this, so that records made before there
# were such settings keep their hash. A default may change; what stands here may not. Those of one
# method are its `unwritten`.
LEFT_OUT: dict[tuple[str, str], Any] = {
    ("training", "accumulation"): "independent",
    ("objective", "normaliser"): "batch",
    ("objective", "normaliser_decay"): 0.9,
    ("objective", "second_temperature"): None,
    ("encoder", "fixed_patches"): False,
    ("training", "logger"): ("tensorboard",),
}


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain dicts, lists, numbers and strings, as JSON knows them; infinity is "inf".

    >>> recipe_to_dict(Recipe())["objective"]
    {'temperature': 0.2, 'alpha': None}
    """
    plain: dict[str, Any] = plain_value(dataclasses.asdict(recipe))
    for (section, name), usual in LEFT_OUT.items():
        if getattr(getattr(recipe, section), name) == usual:
            del plain[section][name]
    for name, usual in recipe.method.unwritten.items():
        if getattr(recipe.method, name) == usual:
            del plain["method"][name]
    return plain | {"method": {"name": recipe.method.name, **plain["method"]}}


def plain_value(value: Any) -> Any:
    """One value as JSON knows it."""
    if isinstance(value, dict):
        return {name: plain_value(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value


def recipe_from_dict(values: Any) -> Recipe:
    """A recipe from what `recipe_to_dict` gave, or from a part of it: the rest is default.

    >>> recipe_from_dict({"objective": {"alpha": 256}}).objective.alpha
    256.0
    """
    if isinstance(values, dict) and "detection" in values:
        raise InputError(
            "this is the recipe of a detector (eqco transfer detection), not of eqco train."
        )
    recipe: Recipe = convert(values, Recipe, "")
    return recipe


def with_settings(recipe: Recipe, **settings: Any) -> Recipe:
    """The recipe with other values for some settings, by their names; no two groups share one.

    >>> changed = with_settings(Recipe(), epochs=30, temperature=0.1)
    >>> changed.training.epochs, changed.objective.temperature
    (30, 0.1)
    """
    plain, known = recipe_to_dict(recipe), dataclasses.asdict(recipe)
    groups = {name: group for group, values in known.items() for name in values}
    for name, value in settings.items():
        if name not in groups:
            near = difflib.get_close_matches(name, groups, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(groups)}."
            raise InputError(
                f"there is no setting {name!r} in a recipe of {recipe.method.name}. {hint}"
            )
        plain[groups[name]][name] = plain_value(value)
    return recipe_from_dict(plain)


def read_recipe(path: Path) -> Recipe:
    """A recipe from a JSON file."""
    try:
        values = json.loads(path.read_text())
    # ValueError: no JSON, no UTF-8, a number without end
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a recipe: {error}. A recipe is a JSON file.") from error
    return recipe_from_dict(values)


def convert(value: Any, kind: Any, name: str) -> Any:
    """`value` as the type `kind`, or a refusal in the words of the setting `name`."""
    if kind is MethodSettings:
        return convert_method(value, name)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return convert_settings(value, kind, name)
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if isinstance(value, str | bool) and value in choices:
            return value
        raise InputError(f"{name}={value!r}; there are {', '.join(map(repr, choices))}.")
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return convert(value, next(c for c in choices if c is not type(None)), name)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{name}={value!r}; it must be a list.")
        return tuple(convert(entry, choices[0], name) for entry in value)
    if kind is float and (value == "inf" or type(value) in (int, float)):
        try:
            return float(value)
        except OverflowError as error:
            raise InputError(
                f"{name} is a number of {len(str(value))} digits; too large."
            ) from error
    if type(value) is kind:
        return value
    raise InputError(f"{name}={value!r}; it must be of type {kind.__name__}.")


def convert_method(values: Any, name: str) -> Any:
    """The settings of the method that the entry "name" names."""
    given = values.get("name") if isinstance(values, dict) else values
    if not isinstance(values, dict) or not isinstance(given, str) or given not in METHODS:
        raise InputError(
            f"{name}.name={given!r}; {name} is a group of settings whose name is one of "
            f"{', '.join(METHODS)}."
        )
    rest = {key: value for key, value in values.items() if key != "name"}
    return convert_settings(rest, METHODS[given], name)


def convert_settings(values: Any, kind: type, name: str) -> Any:
    """One group of settings; an unknown name is an error that names the nearest."""
    if not isinstance(values, dict):
        raise InputError(f"{name or 'a recipe'} must be a group of settings, not {values!r}.")
    known = typing.get_type_hints(kind)
    hints = {entry.name: known[entry.name] for entry in dataclasses.fields(kind)}
    for key in values:
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(hints)}."
            where = f" in {name}" if name else ""
            raise InputError(f"there is no setting {key!r}{where}. {hint}")
    prefix = f"{name}." if name else ""
    return kind(**{key: convert(value, hints[key], prefix + key) for key, value in values.items()})
