"""`eqco recipes` lists the recipes of the profile that is asked for."""

import pytest

from eqco.cli.main import main
from eqco.recipes import PROFILES, RECIPES, named_recipe


def listed(capsys, *arguments):
    """The lines of the list that name one thing of each recipe, by recipe."""
    assert main(["recipes", *arguments]) == 0
    found, names = {name: {} for name in RECIPES}, []
    for line in capsys.readouterr().out.splitlines():
        first, *words = line.replace("lr (N = 256)", "lr").replace(" BN", "-BN").split() or [""]
        if first in RECIPES:
            names = [first, *words]
        elif names and len(words) == len(names):
            for name, word in zip(names, words, strict=True):
                found[name][first] = word
        else:
            names = []
    return found


@pytest.mark.parametrize("profile", PROFILES)
def test_the_list_shows_the_settings_of_the_profile(profile, capsys):
    for name, shown in listed(capsys, "--profile", profile).items():
        recipe = named_recipe(name, profile)
        count = recipe.num_negatives
        assert shown["N"] == str(recipe.training.num_queries)
        assert shown.get("K") == (None if count is None else str(count))
        assert shown["optimiser"] == recipe.optimiser.name
        if recipe.method.has_temperature:
            assert float(shown["τ"]) == pytest.approx(recipe.objective.temperature)


def test_the_list_tells_layer_norm_from_batch_norm(capsys):
    norms = {name: shown["norm"] for name, shown in listed(capsys).items()}
    assert (norms["cpcv2"], norms["simo"], norms["mocov2"]) == ("layer", "sync-BN", "shuffling-BN")
    assert [name for name, norm in norms.items() if norm == "layer"] == ["cpcv2"]


def test_the_help_names_every_profile(capsys):
    with pytest.raises(SystemExit):
        main(["recipes", "--help"])
    said = capsys.readouterr().out
    assert [name for name in PROFILES if name not in said] == []
