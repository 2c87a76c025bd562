"""Recipes: the published numbers, what is refused, and the way to JSON and back."""

import contextlib
import json
import math
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqco.assembly.parts import scaled_rate
from eqco.cli.train import parse as parse_training
from eqco.methods import (
    METHODS,
    BYOLSettings,
    CMCSettings,
    CPCSettings,
    InfoMinSettings,
    MoCoSettings,
    MoCoV3Settings,
    PIRLSettings,
    SimCLRSettings,
    SimCLRv2Settings,
    SiMoSettings,
    SwAVSettings,
)
from eqco.recipes import (
    PROFILES,
    RECIPES,
    DataSettings,
    EncoderSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
    named_recipe,
    read_recipe,
    recipe_from_dict,
    recipe_to_dict,
    with_settings,
)
from eqco.recipes.text import LEFT_OUT
from eqco.runtime.errors import InputError


@pytest.mark.parametrize(("place", "value"), LEFT_OUT.items())
def test_a_setting_that_a_recipe_leaves_out_is_what_it_was_trained_with(place, value):
    """Else a changed default would give old records another meaning, and their hash to new ones."""
    section, name = place
    assert getattr(getattr(recipe_from_dict({}), section), name) == value
    assert name not in recipe_to_dict(Recipe())[section]


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.unwritten])
def test_a_setting_that_a_method_leaves_out_is_what_it_was_trained_with(name):
    """The same of settings that one method alone has."""
    method = recipe_from_dict({"method": {"name": name}}).method
    written = recipe_to_dict(Recipe(method=method))["method"]
    for setting, value in method.unwritten.items():
        assert getattr(method, setting) == value
        assert setting not in written


def test_a_count_of_patches_is_written_down_where_one_is_drawn():
    drawing = CPCSettings(other_images_only=True, count=16)
    written = recipe_to_dict(replace(RECIPES["cpcv2"], method=drawing))
    assert written["method"]["count"] == 16
    assert recipe_from_dict(written).method == drawing
    assert with_settings(RECIPES["cpcv2"], other_images_only=True, count=16).method == drawing


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
            recipe.method.shuffle_bn,
            recipe.encoder.head,
            recipe.data.pipeline,
        )
        for name, recipe in RECIPES.items()
    }
    assert rows == {
        "simo": (0.03, 0.9, 1e-4, "cosine", 10, 0.2, False, "normalised", "mocov2"),
        "mocov1": (0.03, 0.9, 1e-4, "steps", 0, 0.07, True, "linear", "mocov1"),
        "mocov2": (0.03, 0.9, 1e-4, "cosine", 0, 0.2, True, "mlp", "mocov2"),
        "simclr": (0.3, 0.9, 1e-6, "cosine", 10, 0.1, False, "normalised", "simclr"),
        "infomin": (0.03, 0.9, 1e-4, "cosine", 0, 0.15, True, "mlp", "infomin"),
        "cmc": (0.06, 0.9, 1e-4, "steps", 0, 0.07, False, "linear", "cmc"),
        "pirl": (0.03, 0.9, 1e-4, "cosine", 0, 0.07, False, "linear", "pirl"),
        "cpcv2": (0.03, 0.9, 1e-4, "cosine", 10, 0.2, False, "linear", "mocov2"),
        "simclrv2": (0.075, 0.9, 1e-4, "cosine", 10, 0.1, False, "simclrv2", "simclr"),
        "mocov3": (0.3, 0.9, 1e-6, "cosine", 10, 1.0, False, "mocov3", "mocov3"),
        "byol": (0.3, 0.9, 1e-6, "cosine", 10, 0.2, False, "byol", "byol"),
        "swav": (0.6, 0.9, 1e-6, "cosine", 0, 0.1, False, "swav", "simclr"),
        "simclr-vit": (1.5e-4, 0.9, 0.1, "cosine", 40, 0.2, False, "normalised", "simclr"),
        "mocov3-vit": (1.5e-4, 0.9, 0.1, "cosine", 40, 0.2, False, "mocov3", "mocov3"),
    }
    assert RECIPES["mocov1"].optimiser.drops == (120, 160)
    for name, recipe in RECIPES.items():
        assert (recipe.training.num_queries, recipe.training.epochs) == (256, 200)
        patches, transformer = name == "cpcv2", name.endswith("-vit")
        dim = 64 if patches else 256 if name in ("mocov3", "mocov3-vit", "byol") else 128
        network = "timm:vit_small_patch16_224" if transformer else "resnet50"
        network += "-ln" * patches
        assert recipe.encoder.fixed_patches == transformer
        assert (recipe.encoder.backbone, recipe.encoder.embedding_dim) == (network, dim)
        assert recipe.data.image_size == (260 if patches else 224)
        published_lars = ("simclrv2", "mocov3", "byol", "swav")
        usual = "adamw" if transformer else "sgd"
        assert recipe.optimiser.name == ("lars" if name in published_lars else usual)
    assert RECIPES["simo"].method == SiMoSettings(count=16, ema_decay=0.999)
    assert RECIPES["mocov2"].method == MoCoSettings(queue_size=65536, ema_decay=0.999)
    assert RECIPES["mocov1"].method == RECIPES["mocov2"].method
    # Figure 3b's largest K, where the margin is zero
    assert RECIPES["simclr"].method == SimCLRSettings(count=256, both_views=True)
    assert RECIPES["infomin"].method == InfoMinSettings(queue_size=65536, jigsaw_weight=0.5)
    assert RECIPES["cmc"].method == CMCSettings(count=16384, bank_decay=0.5, colours="lab")
    assert RECIPES["pirl"].method == PIRLSettings(count=32000, bank_decay=0.5, jigsaw_weight=0.5)
    # 120, 160 and 200 of 240 epochs
    assert RECIPES["cmc"].optimiser.drops == (100, 133, 167)
    assert RECIPES["simclrv2"].method == SimCLRv2Settings(queue_size=65536, ema_decay=0.999)
    cosine = {"ema_decay": 0.99, "ema_schedule": "cosine"}
    assert RECIPES["mocov3"].method == MoCoV3Settings(**cosine)
    assert RECIPES["byol"].method == BYOLSettings(**cosine)
    assert RECIPES["swav"].method == SwAVSettings(
        num_prototypes=3000,
        small_views=6,
        queue_size=3840,
        queue_epoch=15,
        frozen_epochs=1,
        epsilon=0.05,
        sinkhorn_rounds=3,
    )
    alphas = {name: recipe.objective.alpha for name, recipe in RECIPES.items()}
    eqco = {"simo": 256, "simclr": 256, "simclr-vit": 4096}
    assert alphas == {**dict.fromkeys(RECIPES), **eqco}


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
    typed = ["--method.count", "None", "--objective.alpha", "None"]
    options = parse_training(["--training.num-queries", "16", *typed])
    assert (options.method.count, options.objective.alpha) == (None, None)


@pytest.mark.parametrize("kind", METHODS.values(), ids=list(METHODS))
def test_a_methods_settings_survive_json_under_its_name(kind):
    recipe = Recipe(method=kind())
    plain = recipe_to_dict(recipe)
    assert plain["method"]["name"] == kind.name
    assert recipe_from_dict(json.loads(json.dumps(plain))) == recipe


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_help_of_a_recipe_shows_its_methods_options_alone(recipe, capsys):
    with pytest.raises(SystemExit):
        parse_training(["--recipe", recipe, "--help"])
    options = capsys.readouterr().out.split("--unlabelled", 1)[1]  # below the examples
    shown = set(re.findall(r"--method\.(?:no-)?([\w-]+)", options))
    own = {entry.name.replace("_", "-") for entry in fields(named_recipe(recipe).method)}
    assert shown == own


def test_infinity_survives_json():
    recipe = Recipe(objective=ObjectiveSettings(alpha=math.inf))
    text = json.dumps(recipe_to_dict(recipe), allow_nan=False)
    assert recipe_from_dict(json.loads(text)) == recipe


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Recipe(method=SiMoSettings(count=256)),
            "method.count=256, but a batch of 256 images offers 255 .*"
            "use all 255 by --method.count None",
        ),
        (
            lambda: Recipe(
                method=SiMoSettings(count=16), training=TrainingSettings(accumulation_steps=16)
            ),
            "16 images offers 15",
        ),
        (lambda: Recipe(training=TrainingSettings(num_queries=1)), "offers no negatives"),
        (lambda: Recipe(training=TrainingSettings(accumulation_steps=3)), "3 micro-batches of one"),
        (lambda: Recipe(training=TrainingSettings(epochs=0)), "training.epochs=0"),
        (lambda: Recipe(objective=ObjectiveSettings(temperature=0)), "objective.temperature=0"),
        (
            lambda: Recipe(objective=ObjectiveSettings(alpha=-1)),
            "objective.alpha=-1.*--objective.alpha None",
        ),
        (lambda: Recipe(objective=ObjectiveSettings(alpha=math.nan)), "objective.alpha=nan"),
        (
            lambda: Recipe(
                method=CMCSettings(loss="nce"), objective=ObjectiveSettings(alpha=65536.0)
            ),
            "objective.alpha=65536.0 with the loss of cmc .* --method.loss softmax",
        ),
        (
            lambda: Recipe(
                method=PIRLSettings(loss="nce"), objective=ObjectiveSettings(normaliser="instance")
            ),
            "objective.normaliser=instance with the loss of pirl",
        ),
        (
            lambda: Recipe(method=PIRLSettings(), data=DataSettings(image_size=11)),
            "image_size=11, whose jigsaw patches would have 3 pixels .*; they need 4. .*-size 12",
        ),
        (
            lambda: Recipe(optimiser=OptimiserSettings(base_learning_rate=-1)),
            "base_learning_rate=-1",
        ),
        (lambda: Recipe(optimiser=OptimiserSettings(weight_decay=-1)), "weight_decay=-1"),
        (lambda: Recipe(method=SiMoSettings(ema_decay=1.5)), "method.ema_decay=1.5"),
        (lambda: Recipe(data=DataSettings(image_size=0)), "data.image_size=0"),
        (
            lambda: Recipe(method=BYOLSettings(), objective=ObjectiveSettings(alpha=256)),
            "objective.alpha=256, but byol has no negatives.*--objective.alpha None",
        ),
        (
            lambda: Recipe(
                method=SwAVSettings(), objective=ObjectiveSettings(normaliser="instance")
            ),
            "objective.normaliser=instance, but swav has no negatives",
        ),
        (lambda: Recipe(encoder=EncoderSettings(bn_groups=2)), "bn_groups=2 without shuffling BN"),
        (
            lambda: Recipe(method=SimCLRSettings(), encoder=EncoderSettings(bn_groups=2)),
            "bn_groups=2 without shuffling BN",
        ),
        (
            lambda: Recipe(method=MoCoSettings(), encoder=EncoderSettings(bn_groups=3)),
            "cut into encoder.bn_groups=3",
        ),
        (
            lambda: Recipe(
                method=MoCoSettings(),
                training=TrainingSettings(num_queries=64, accumulation_steps=64),
            ),
            "num_queries=64 in training.accumulation_steps=64 .*leaves 1 image to each",
        ),
        (lambda: named_recipe("simmo"), "there is no recipe 'simmo'"),
        (lambda: named_recipe("simo", "big"), "there is no profile 'big'"),
        (lambda: recipe_from_dict({"objektive": {}}), "Did you mean 'objective'"),
        (
            lambda: recipe_from_dict({"objective": {"apha": 1}}),
            "in objective. Did you mean 'alpha'",
        ),
        (lambda: recipe_from_dict({"zzz": 1}), "There are: training"),
        (lambda: recipe_from_dict({"objective": 3}), "must be a group of settings"),
        (lambda: recipe_from_dict([]), "a recipe must be a group"),
        (lambda: recipe_from_dict({"objective": {"alpha": "many"}}), "objective.alpha='many'"),
        (lambda: recipe_from_dict({"method": "dino"}), "method.name='dino'; .* simo, moco, simclr"),
        (lambda: recipe_from_dict({"method": {"name": "dino"}}), "method.name='dino'"),
        (lambda: recipe_from_dict({"method": {"count": 3}}), "method.name=None"),
        (
            lambda: recipe_from_dict({"method": {"name": "moco", "queue": 3}}),
            "no setting 'queue' in method. Did you mean 'queue_size'",
        ),
        (lambda: recipe_from_dict({"training": {"epochs": 1.5}}), "of type int"),
        (lambda: recipe_from_dict({"training": {"epochs": True}}), "of type int"),
        (lambda: recipe_from_dict({"optimiser": {"drops": 3}}), "it must be a list"),
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
            st.sampled_from(
                ["method", "name", "count", "data", "training", "epochs", "objective", "alpha", "x"]
            ),
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
        recipe.method = MoCoSettings()
