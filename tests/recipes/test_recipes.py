"""Recipes: the published numbers, what is refused, and the way to JSON and back."""

import contextlib
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqco.assembly.parts import scaled_rate
from eqco.cli.train import parse as parse_training
from eqco.recipes import (
    PROFILES,
    RECIPES,
    DataSettings,
    EncoderSettings,
    NegativesSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
    named_recipe,
    read_recipe,
    recipe_from_dict,
    recipe_to_dict,
)
from eqco.runtime.errors import InputError


def test_the_published_settings():
    """The table of recipes in the paper's notes, line by line."""
    rows = {
        name: (
            recipe.optimiser.base_learning_rate,
            recipe.optimiser.sgd_momentum,
            recipe.optimiser.weight_decay,
            recipe.optimiser.schedule,
            recipe.optimiser.warmup_epochs,
            recipe.objective.temperature,
            recipe.encoder.batch_norm,
            recipe.encoder.head,
            recipe.data.pipeline,
        )
        for name, recipe in RECIPES.items()
    }
    assert rows == {
        "simo": (0.03, 0.9, 1e-4, "cosine", 10, 0.2, "sync", "normalised", "mocov2"),
        "mocov1": (0.03, 0.9, 1e-4, "steps", 0, 0.07, "shuffling", "linear", "mocov1"),
        "mocov2": (0.03, 0.9, 1e-4, "cosine", 0, 0.2, "shuffling", "mlp", "mocov2"),
        "simclr": (0.3, 0.9, 1e-6, "cosine", 10, 0.1, "sync", "normalised", "simclr"),
    }
    assert RECIPES["mocov1"].optimiser.drops == (120, 160)
    for recipe in RECIPES.values():
        assert (recipe.training.num_queries, recipe.training.epochs) == (256, 200)
        assert (recipe.encoder.backbone, recipe.encoder.embedding_dim) == ("resnet50", 128)
    numbers = {name: (r.negatives.count, r.objective.alpha) for name, r in RECIPES.items()}
    assert numbers == {
        "simo": (16, 256),
        "mocov1": (65536, None),
        "mocov2": (65536, None),
        "simclr": (256, 256),  # Figure 3b's largest K, where the margin is zero
    }
    assert RECIPES["simo"].ema_decay == RECIPES["mocov1"].ema_decay == 0.999


def test_the_square_root_rule_has_a_base_of_its_own():
    """SimCLR with LARS at N = 4096: 4.8, and never 1.2 from the base of the linear rule."""
    simclr = replace(RECIPES["simclr"], training=TrainingSettings(num_queries=4096))
    lars = replace(simclr.optimiser, name="lars", rule="square-root")
    with pytest.raises(InputError, match=r"=0\.3 for .*=256 .*0\.075·√N is --optimiser\.refer"):
        replace(simclr, optimiser=lars)
    lars = replace(lars, base_learning_rate=0.075, reference=1)
    assert scaled_rate(replace(simclr, optimiser=lars)) == pytest.approx(4.8)
    assert scaled_rate(simclr) == pytest.approx(4.8)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", RECIPES)
def test_json_and_back_is_the_same_recipe(name, profile, tmp_path):
    recipe = named_recipe(name, profile)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe_to_dict(recipe)))
    assert read_recipe(path) == recipe


def test_the_command_line_takes_the_none_that_refusals_name():
    typed = ["--negatives.count", "None", "--objective.alpha", "None"]
    options = parse_training(["--training.num-queries", "16", *typed])
    assert (options.negatives.count, options.objective.alpha) == (None, None)


def test_infinity_survives_json():
    recipe = Recipe(objective=ObjectiveSettings(alpha=math.inf))
    text = json.dumps(recipe_to_dict(recipe), allow_nan=False)
    assert recipe_from_dict(json.loads(text)) == recipe


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Recipe(negatives=NegativesSettings(count=256)),
            "negatives.count=256, but a batch of num_queries=256 offers 255 .*"
            "use all 255 by --negatives.count None",
        ),
        (
            lambda: Recipe(method="simclr", negatives=NegativesSettings(count=511)),
            "offers 510 negatives",
        ),
        (
            lambda: Recipe(
                negatives=NegativesSettings(count=16), training=TrainingSettings(accumulate=16)
            ),
            "num_queries=16 offers 15",
        ),
        (lambda: Recipe(negatives=NegativesSettings(count=0)), "negatives.count=0"),
        (
            lambda: Recipe(method="moco"),
            "negatives.count=None; MoCo needs .*--negatives.count 4096",
        ),
        (
            lambda: Recipe(method="moco", negatives=NegativesSettings(count=8, queue=8)),
            "negatives.queue=8 with MoCo",
        ),
        (
            lambda: Recipe(method="simclr", negatives=NegativesSettings(queue=8)),
            "SimCLR has no memory",
        ),
        (lambda: Recipe(training=TrainingSettings(num_queries=1)), "offers no negatives"),
        (lambda: Recipe(training=TrainingSettings(accumulate=3)), "3 equal parts"),
        (lambda: Recipe(training=TrainingSettings(epochs=0)), "training.epochs=0"),
        (lambda: Recipe(objective=ObjectiveSettings(temperature=0)), "objective.temperature=0"),
        (
            lambda: Recipe(objective=ObjectiveSettings(alpha=-1)),
            "objective.alpha=-1.*--objective.alpha None",
        ),
        (lambda: Recipe(objective=ObjectiveSettings(alpha=math.nan)), "objective.alpha=nan"),
        (
            lambda: Recipe(optimiser=OptimiserSettings(base_learning_rate=-1)),
            "base_learning_rate=-1",
        ),
        (lambda: Recipe(optimiser=OptimiserSettings(weight_decay=-1)), "weight_decay=-1"),
        (lambda: Recipe(ema_decay=1.5), "ema_decay=1.5"),
        (lambda: Recipe(data=DataSettings(image_size=0)), "data.image_size=0"),
        (lambda: Recipe(encoder=EncoderSettings(bn_groups=2)), "batch_norm=sync"),
        (
            lambda: Recipe(encoder=EncoderSettings(batch_norm="shuffling", bn_groups=3)),
            "bn_groups=3",
        ),
        (
            lambda: Recipe(method="simclr", encoder=EncoderSettings(batch_norm="shuffling")),
            "needs a key encoder",
        ),
        (lambda: named_recipe("simmo"), "there is no recipe 'simmo'"),
        (lambda: named_recipe("simo", "big"), "there is no profile 'big'"),
        (lambda: recipe_from_dict({"objektive": {}}), "Did you mean 'objective'"),
        (
            lambda: recipe_from_dict({"objective": {"apha": 1}}),
            "in objective. Did you mean 'alpha'",
        ),
        (lambda: recipe_from_dict({"zzz": 1}), "There are: method"),
        (lambda: recipe_from_dict({"objective": 3}), "must be a group of settings"),
        (lambda: recipe_from_dict([]), "a recipe must be a group"),
        (lambda: recipe_from_dict({"objective": {"alpha": "many"}}), "objective.alpha='many'"),
        (lambda: recipe_from_dict({"method": "byol"}), "method='byol'; there are 'simo'"),
        (lambda: recipe_from_dict({"training": {"epochs": 1.5}}), "of type int"),
        (lambda: recipe_from_dict({"training": {"epochs": True}}), "of type int"),
        (lambda: recipe_from_dict({"optimiser": {"drops": 3}}), "a list of numbers"),
    ],
)
def test_what_cannot_be_is_refused_in_the_words_of_the_flag(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_file_that_is_no_recipe_is_named(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"broken.json is not a recipe"):
        read_recipe(path)
    with pytest.raises(InputError, match=r"missing.json is not a recipe"):
        read_recipe(tmp_path / "missing.json")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["method", "data", "training", "epochs", "objective", "alpha", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(values=plain)
def test_no_json_is_answered_with_anything_but_a_recipe_or_a_refusal(values):
    with contextlib.suppress(InputError):
        assert isinstance(recipe_from_dict(values), Recipe)


def test_a_recipe_is_a_value():
    recipe = named_recipe("simo")
    other = replace(recipe, objective=replace(recipe.objective, alpha=65536))
    assert other != recipe
    assert hash(recipe) == hash(named_recipe("simo"))
    with pytest.raises(AttributeError):
        recipe.method = "moco"
