"""One list of profiles: what becomes of the published recipes at each scale."""

from dataclasses import replace

import pytest

from eqco.recipes import RECIPES, named_recipe
from eqco.recipes.profiles import DESK, PAPER, PROFILES, at_scale


def test_k_equal_to_n_stays_so_and_a_queue_never_exceeds_the_memory():
    """SimCLR is published with K = N = 256; MoCo's queue of 65536 is too long for small data."""
    for scale in PROFILES.values():
        simclr = at_scale(RECIPES["simclr"], scale)
        assert simclr.method.count == simclr.training.num_queries == scale.num_queries
        assert at_scale(RECIPES["mocov2"], scale).method.queue_size == scale.memory
        assert at_scale(RECIPES["simo"], scale).method.count == 16


def test_a_folder_is_trained_at_32_pixels_for_20_epochs_at_the_published_temperature():
    recipe = named_recipe("simo", "folder")
    assert (recipe.data.image_size, recipe.training.epochs) == (32, 20)
    assert recipe.objective.temperature == RECIPES["simo"].objective.temperature


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


def test_every_profile_says_what_it_is_for():
    assert all(scale.about and scale.data for scale in PROFILES.values())
