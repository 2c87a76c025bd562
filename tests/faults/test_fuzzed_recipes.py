"""Whatever a recipe file holds: a recipe that can be written and read again, or a refusal."""

import json
import math
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqco.recipes import PROFILES, RECIPES, Recipe, named_recipe
from eqco.recipes.text import read_recipe, recipe_from_dict, recipe_to_dict
from eqco.runtime.errors import InputError

TRIED = 1200

numbers = st.one_of(
    st.integers(),
    st.integers(-3, 300),
    st.floats(),
    st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**30, 10**400, -0.0, 1e-320, 1e308]),
)
words = st.text(max_size=20) | st.sampled_from(["inf", "nan", "None", "light", "simo", "sgd"])
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


def setting_names(kind, prefix=()):
    """The path of every setting and group of settings."""
    for entry in fields(kind):
        yield (*prefix, entry.name)
        made = getattr(Recipe(), entry.name) if not prefix else None
        if is_dataclass(made):
            yield from setting_names(type(made), (entry.name,))


PATHS = sorted(setting_names(Recipe))
valid = st.builds(
    lambda name, profile: recipe_to_dict(named_recipe(name, profile)),
    st.sampled_from(sorted(RECIPES)),
    st.sampled_from(sorted(PROFILES)),
)
changes = st.lists(st.tuples(st.sampled_from(PATHS), values), max_size=4)


def round_trips_or_is_refused(content):
    """Whether it was taken."""
    try:
        recipe = recipe_from_dict(content)
    except InputError:
        return False
    written = json.dumps(recipe_to_dict(recipe), allow_nan=False)
    assert recipe_from_dict(json.loads(written)) == recipe
    return True


def test_any_json_is_a_recipe_that_round_trips_or_is_refused(record_property):
    taken = []

    @settings(max_examples=TRIED)
    @given(values)
    def check(content):
        taken.append(round_trips_or_is_refused(content))

    check()
    record_property("count: recipes tried", len(taken))


def test_a_changed_recipe_round_trips_or_is_refused(record_property):
    taken = []

    @settings(max_examples=TRIED)
    @given(valid, changes)
    def check(content, changed):
        for (*groups, name), value in changed:
            place = content
            for group in groups:
                place = place.get(group) if isinstance(place, dict) else None
            if isinstance(place, dict):
                place[name] = value
        taken.append(round_trips_or_is_refused(content))

    check()
    assert 0 < sum(taken) < len(taken), "both happen"
    record_property("count: recipes tried", len(taken))


def test_any_file_is_a_recipe_or_is_refused(tmp_path, record_property):
    path, taken = tmp_path / "recipe.json", []
    whole_or_cut = st.just(-1) | st.integers(0)

    @settings(max_examples=TRIED // 2)
    @given(st.binary(max_size=60) | st.builds(json.dumps, valid).map(str.encode), whole_or_cut)
    def check(content, cut):
        path.write_bytes(content[: cut % (len(content) + 1)])
        try:
            recipe = read_recipe(path)
        except InputError:
            taken.append(False)
        else:
            taken.append(True)
            assert round_trips_or_is_refused(recipe_to_dict(recipe))

    check()
    assert 0 < sum(taken) < len(taken), "both happen"
    record_property("count: recipes tried", len(taken))


@pytest.mark.parametrize(
    "content",
    [
        '{"training": {"epochs": ' + "9" * 5000 + "}}",
        '{"objective": {"alpha": ' + "9" * 5000 + "}}",
        '{"objective": {"alpha": NaN}}',
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        '{"encoder": ' + "[" * 900 + "]" * 900 + "}",
        "\ufeff{}",
        "",
        "null",
    ],
    ids=lambda content: content[:24],
)
def test_extreme_files_are_refused(content, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(content)
    with pytest.raises(InputError):
        read_recipe(path)


def test_a_number_too_large_for_a_float_is_read_as_infinity(tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text('{"objective": {"alpha": 1e999}}')
    assert read_recipe(path).objective.alpha == math.inf
