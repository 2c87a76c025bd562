"""One list of profiles: what becomes of the published recipes at each scale."""

from dataclasses import replace

import pytest

from eqco.recipes import RECIPES, named_recipe
from eqco.recipes.profiles import DESK, PAPER, PROFILES, at_scale


@pytest.mark.parametrize(
    ("profile", "num_queries", "epochs", "queue", "simclr_negatives"),
    [("desk", 256, 12, 4096, 256), ("folder", 256, 20, 4096, 256), ("demo", 128, 200, 256, 128)],
)
def test_a_profile_scales_batch_epochs_queue_and_negatives(
    profile, num_queries, epochs, queue, simclr_negatives
):
    """The longest queue is the scale's; SimCLR keeps as many negatives as queries, SiMo its 16."""
    recipes = {name: named_recipe(name, profile) for name in RECIPES}
    assert {each.training.num_queries for each in recipes.values()} == {num_queries}
    assert {each.training.epochs for each in recipes.values()} == {epochs}
    counts = {name: each.method.num_negatives(num_queries) for name, each in recipes.items()}
    expected = {"simo": 16, "mocov1": queue, "mocov2": queue, "simclr": simclr_negatives}
    expected |= {"simclrv2": 2 * num_queries - 2 + queue, "mocov3": num_queries - 1}
    expected |= {"cpcv2": 16 * num_queries - 1}
    expected |= dict.fromkeys(("infomin", "cmc", "pirl"), queue)
    expected |= {"simclr-vit": simclr_negatives, "mocov3-vit": num_queries - 1}
    expected |= {"byol": None, "swav": None}
    assert counts == expected


@pytest.mark.parametrize("profile", [name for name, scale in PROFILES.items() if scale.small])
def test_small_scales_train_by_sgd_with_prototypes_that_the_queue_fills(profile):
    for name in RECIPES:
        recipe = named_recipe(name, profile)
        if name.endswith("-vit"):  # by AdamW, at its own rate
            continue
        found = recipe.optimiser.name, recipe.optimiser.rule, recipe.optimiser.reference
        assert found == ("sgd", "linear", 256), name
        assert 0.05 <= recipe.optimiser.base_learning_rate <= 0.6, name
    swav, scale = named_recipe("swav", profile).method, PROFILES[profile]
    assert swav.num_prototypes == min(3000, scale.memory)
    assert swav.queue_epoch == round(15 * scale.epochs / 200)


@pytest.mark.parametrize("name", RECIPES)
def test_the_published_scale_changes_nothing_but_how_often_it_logs_and_how_data_is_read(name):
    recipe, published = at_scale(RECIPES[name], PAPER), RECIPES[name]
    intervals = {"log_every": 100, "diagnose_every": 1000}
    assert recipe == replace(
        published,
        training=replace(published.training, **intervals),
        data=replace(published.data, workers=8),
    )


def test_drops_and_warm_up_keep_their_shares_of_a_shorter_training():
    """120 and 160 of 200 epochs become 7 and 10 of 12; the warm-up of 10 becomes 0.6."""
    assert at_scale(RECIPES["mocov1"], DESK).optimiser.drops == (7, 10)
    assert at_scale(RECIPES["simo"], DESK).optimiser.warmup_epochs == pytest.approx(0.6)


def test_a_larger_batch_keeps_the_base_rate_that_the_rule_scales():
    recipe = at_scale(RECIPES["mocov2"], DESK, num_queries=1024)
    assert recipe.training.num_queries == 1024
    assert recipe.optimiser.base_learning_rate == DESK.small.learning_rate


def test_a_vision_transformer_stays_one_with_its_own_rate():
    """Twice the pixels: patches of 16 need them. AdamW's rate is not SGD's."""
    recipe = at_scale(RECIPES["simclr-vit"], DESK)
    assert recipe.encoder.backbone == "timm:vit_tiny_patch16_224"
    assert recipe.data.image_size == 2 * DESK.small.image_size
    assert recipe.optimiser.base_learning_rate == 1.5e-4


def test_every_profile_says_what_it_is_for():
    assert all(scale.about and scale.data for scale in PROFILES.values())


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if "ema_decay" in vars(RECIPES[name].method)]
)
def test_keys_of_a_memory_come_from_an_encoder_that_is_slow_from_the_start(name):
    """On the small set β rises from 0 where keys are the batch's own, and nowhere else."""
    method = named_recipe(name, "few-images").method
    assert method.ema_schedule == ("constant" if method.queue_size else "rising")
