"""`plan` works out a setting by the rules of the paper, and warns of the limits it states."""

import math
import random
from dataclasses import FrozenInstanceError

import pytest
from guide_method import guide_settings

from eqco.assembly.parts import scaled_rate
from eqco.cli.train import parse
from eqco.planning.counts import count_keys
from eqco.planning.plan import ContrastPlan, own_key_share, plan
from eqco.recipes import RECIPES
from eqco.runtime.errors import InputError


def warnings_of(words, *arguments, **settings):
    return any(words in warning for warning in plan(*arguments, **settings).warnings)


def test_simo_with_16_negatives_by_hand():
    p = plan("simo", num_queries=512, num_negatives=16, alpha=4096)
    assert p.margin == pytest.approx(0.2 * math.log(256))
    assert p.learning_rate == pytest.approx(0.06)  # Table 1: .03 · 512/256
    assert p.positive_prior == 1 / 4097
    assert p.ceiling == pytest.approx(math.log(4097))
    assert p.largest_overshoot == pytest.approx(math.log(4097 / 17))
    assert (p.queue_bytes, p.logits_bytes) == (0, 512 * 16 * 4)
    assert (p.steps_per_epoch, p.total_steps) == (2502, 500_400)  # 1281167 // 512, · 200
    assert p.negatives_offered == 511


@pytest.mark.parametrize("framework", RECIPES)
def test_what_is_not_given_is_the_recipes(framework):
    p, recipe = plan(framework), RECIPES[framework]
    assert p.learning_rate == pytest.approx(scaled_rate(recipe))
    assert (p.dim, p.epochs) == (recipe.encoder.embedding_dim, 200)
    if recipe.method.num_negatives(256) is None:
        assert "has no negatives: there is no K, alpha, margin or f̂" in p.warnings[0]
        assert not isinstance(p, ContrastPlan)
        return
    assert p.temperature == recipe.objective.temperature
    assert p.num_negatives == recipe.method.num_negatives(256)
    assert p.alpha == (recipe.objective.alpha or p.num_negatives)


def test_alpha_of_negatives_that_depend_on_the_query_is_no_rule():
    """CPC v2: 36 patches of each of 256 images, but for the positive."""
    p = plan("cpcv2", alpha=65536)
    assert p.num_negatives == 256 * 36 - 1
    assert "own image" in p.warnings[0]
    assert "--method.other-images-only" in p.warnings[0]
    # four directions; offsets 3, 4, 5 leave 3, 2, 1 rows of 6 patches
    assert p.logits_bytes == 256 * 4 * (18 + 12 + 6) * p.num_negatives * 4
    assert p.snippets == ()
    assert not any("own image" in said for said in plan("simo", alpha=65536).warnings)


@pytest.mark.parametrize("alpha", [None, 35.0, 64.0, math.inf])
def test_one_image_has_negatives_where_they_are_patches_of_its_own(alpha):
    """CPC v2 at N = 1: 36 patches are the keys, and f̂ is an estimate whatever α is."""
    p = plan("cpcv2", num_queries=1, alpha=alpha)
    assert (p.num_negatives, p.negatives_offered) == (35, 35)
    assert (p.information_kind, p.largest_overshoot) == ("estimate", math.inf)
    assert "is an estimate, not a bound, for any alpha" in p.warnings[0]
    assert not warnings_of("nats", "cpcv2", num_queries=1, alpha=alpha)
    assert not warnings_of("batch norm", "cpcv2", num_queries=1)  # it has layer norm
    assert plan("cpcv2", num_negatives=256 * 36 - 1) == plan("cpcv2")


def test_few_negatives_of_patches_are_drawn_from_other_images():
    """CPC v2 as published draws none, so that the plan says of what settings it is."""
    p = plan("cpcv2", num_negatives=16, alpha=4096)
    assert (p.num_negatives, p.negatives_in_batch, p.negatives_offered) == (16, 16, 255 * 36)
    assert p.margin == pytest.approx(0.2 * math.log(4096 / 16))
    assert p.largest_overshoot == pytest.approx(math.log(4097 / 17))
    assert p.warnings[0].endswith("with --method.other-images-only --method.count 16.")
    assert not any("own image" in said for said in p.warnings)
    plain = plan("cpcv2", num_negatives=16)
    assert (plain.margin, plain.information_kind) == (0, "bound")
    assert any("published K = 9215" in said for said in plain.warnings)


def test_all_patches_of_other_images_are_not_drawn():
    p = plan("cpcv2", num_negatives=255 * 36)
    assert p.warnings[0].endswith("eqco train with --method.other-images-only.")


def test_a_method_that_draws_nothing_has_all_the_keys_there_are():
    settings = guide_settings()()
    with pytest.raises(
        InputError,
        match=r"--num-negatives=16, but one-way scores each query against all 63 keys .*"
        r"Leave --num-negatives out",
    ):
        count_keys(settings, 64, num_negatives=16, queue_size=None, dataset_size=1000)


def test_a_memory_beside_the_batch_is_counted_and_held():
    p = plan("simclrv2")
    assert (p.num_negatives, p.negatives_offered) == (510 + 65536, 510)
    assert (p.negatives_in_batch, p.negatives_in_queue) == (510, 65536)
    assert p.queue_bytes == 65536 * 128 * 4
    assert p.logits_bytes == 2 * 256 * (510 + 65536) * 4
    assert p.learning_rate == pytest.approx(0.075 * 16)  # √256
    assert plan("swav").queue_bytes == 3840 * 2 * 128 * 4  # features of two crops
    assert plan("mocov3").logits_bytes == 2 * 256 * 255 * 4  # two directions


@pytest.mark.parametrize(
    ("framework", "given", "batch", "queue"),
    [
        # K alone is of the batch as far as that goes
        ("simclrv2", {"num_negatives": 16}, 16, 0),
        ("simclrv2", {"num_negatives": 510}, 510, 0),
        ("simclrv2", {"num_negatives": 70_000}, 510, 69_490),
        ("simclrv2", {"queue_size": 100}, 510, 100),
        ("simclrv2", {"num_negatives": 16 + 65536, "queue_size": 65536}, 16, 65536),
        ("simo", {"queue_size": 100}, 16, 100),
        ("simo", {"num_negatives": 355, "queue_size": 100}, 255, 100),
        ("mocov2", {"num_negatives": 100}, 0, 100),
        ("cmc", {"num_negatives": 100}, 0, 0),
    ],
)
def test_k_is_split_between_batch_and_queue(framework, given, batch, queue):
    p = plan(framework, **given)
    assert (p.negatives_in_batch, p.negatives_in_queue) == (batch, queue)
    assert p.queue_bytes == queue * 128 * 4
    assert p.num_negatives == given.get("num_negatives", batch + queue)


def test_few_negatives_of_the_batch_alone_take_no_room_for_a_queue():
    few, all_of_them = plan("simclrv2", num_negatives=16), plan("simclrv2")
    assert few.loss_bytes == plan("simclr", num_negatives=16).loss_bytes
    assert few.loss_bytes < all_of_them.loss_bytes / 10
    assert few.snippets
    assert not all_of_them.snippets


def test_a_queue_has_any_length_and_a_batch_what_it_offers():
    assert plan("mocov2", num_queries=2, num_negatives=10**6).negatives_offered is None
    assert plan("mocov2", num_queries=1, num_negatives=7).num_negatives == 7
    assert plan("simo", num_queries=256, num_negatives=255).num_negatives == 255
    assert plan("simclr", num_queries=256, num_negatives=510).num_negatives == 510
    assert plan("simclr", num_queries=64).num_negatives == 64  # K = N, as published
    p = plan("mocov2", num_negatives=65536)
    assert (p.queue_bytes, p.logits_bytes) == (65536 * 128 * 4, 256 * 65536 * 4)
    assert p.loss_bytes < p.logits_bytes / 10


def test_a_memory_budget_chooses_the_longest_queue():
    p = plan("mocov2", memory=64_000_000, alpha=65536)
    assert p.num_negatives == 117_320
    for framework in ("mocov2", "infomin"):  # of two contrasts
        p = plan(framework, memory=64_000_000)
        assert 63_990_000 < p.queue_bytes + p.loss_bytes <= 64_000_000


def test_a_memory_bank_has_a_row_for_each_image_and_offers_the_others():
    p = plan("cmc", num_negatives=1024, alpha=16384)
    assert (p.queue_bytes, p.bank_bytes) == (0, 2 * 1_281_167 * 128 * 4)
    assert p.margin == pytest.approx(0.07 * math.log(16))
    assert plan("pirl", dataset_size=50_000).bank_bytes == 50_000 * 128 * 4
    assert plan("mocov2").bank_bytes == 0
    # both kinds of queries
    assert p.logits_bytes == 2 * 256 * 1024 * 4
    # a query's own row is never drawn, so that no older key of its image is among them
    assert not warnings_of("of their own image", "pirl", dataset_size=33_000)
    assert warnings_of("of their own image", "infomin", dataset_size=66_000)


def test_the_decoupled_loss_has_no_finite_margin_or_ceiling():
    p = plan("simo", alpha=math.inf)
    assert (p.margin, p.ceiling, p.largest_overshoot) == (math.inf,) * 3
    assert (p.positive_prior, p.information_kind) == (0, "estimate")
    assert "decoupled" in p.warnings[0]


def test_alpha_equal_to_k_is_plain_and_a_bound():
    p = plan("simo", num_negatives=64, alpha=64)
    assert (p.margin, p.information_kind, p.warnings) == (0, "bound", ())


def test_alpha_far_above_k_is_an_estimate_with_its_overshoot():
    settings = {"num_negatives": 16, "alpha": 65536}
    assert warnings_of("log((1+alpha)/(1+K)) = 8.26 nats", "simo", **settings)
    assert warnings_of("alpha is 4,096.0 times K", "simo", **settings)
    assert not warnings_of("nats", "simo", num_negatives=250, alpha=256)


def test_16_negatives_are_too_few_for_a_queue_but_not_for_simo():
    assert warnings_of("accuracy fall at K ≤ 16", "mocov2", num_negatives=16, alpha=65536)
    assert not warnings_of("accuracy fall", "mocov2", num_negatives=17, alpha=65536)
    assert not warnings_of("accuracy fall", "simo", num_negatives=16)


def test_from_256_negatives_on_imitating_more_gains_little():
    assert warnings_of("little to gain", "mocov2", num_negatives=256, alpha=65536)
    assert not warnings_of("little to gain", "mocov2", num_negatives=255, alpha=65536)
    assert not warnings_of("little to gain", "mocov2")
    # the paper's MoCo v1 gains 6 points at K = 256
    assert not warnings_of("little to gain", "mocov1", num_negatives=256, alpha=65536)


def test_plain_moco_with_fewer_negatives_is_pointed_to_alpha():
    assert warnings_of("give --alpha 65536", "mocov2", num_negatives=1024)
    assert not warnings_of("give --alpha", "mocov2", num_negatives=1024, alpha=1024)


def test_few_images_for_batch_norm():
    assert warnings_of("few for batch norm", "simo", num_queries=15, num_negatives=8)
    assert not warnings_of("few for batch norm", "simo", num_queries=16, num_negatives=8)


def test_a_small_batch_is_pointed_to_alpha_and_a_short_queue():
    """In a command that exists, and that gives as many negatives as a batch of 256 has."""
    said = plan("simo", num_queries=16, num_negatives=15).warnings[-1]
    options = parse(["photos", "--training.num-queries", "16", *said.split("… ")[1][:-1].split()])
    assert options.method.num_negatives(16) == 255
    assert options.objective.alpha == 4096
    assert not warnings_of("small batch", "simo", num_queries=256)
    assert not warnings_of("small batch", "simclr", num_queries=16)


def test_a_queue_as_long_as_the_data_set_holds_the_querys_own_image():
    assert warnings_of(
        "for 50% of the queries", "mocov2", num_negatives=50_000, dataset_size=50_000
    )
    assert not warnings_of("own image", "mocov2", num_negatives=4096, dataset_size=50_000)
    # a queue beside the batch as well, whatever the batch offers
    for framework in ("simclrv2", "infomin"):
        assert warnings_of(
            "A queue of 65536 keys beside 10000 images: for 100%", framework, dataset_size=10_000
        )
    assert not warnings_of("own image", "simclrv2", num_negatives=510, dataset_size=10_000)
    assert not warnings_of("own image", "simclr", num_queries=1000, dataset_size=1000)


@pytest.mark.parametrize("length", [60, 150, 300, 390, 450])
def test_the_share_of_own_keys_is_that_of_a_list(length):
    draw, images, history = random.Random(0), list(range(300)), []
    for _ in range(30):
        draw.shuffle(images)
        history += images
    found = [history[t] in history[t - length : t] for t in range(600, len(history))]
    assert own_key_share(length, 300) == pytest.approx(sum(found) / len(found), abs=0.02)


def test_a_plan_is_a_value():
    assert plan("simo") == plan("simo")
    with pytest.raises(FrozenInstanceError):
        plan("simo").margin = 0.0


@pytest.mark.parametrize("num_queries", [64, 256])
def test_a_queue_is_planned_for_as_many_images_as_it_is_trained_with(num_queries):
    """The queue of 3840 and one batch more; of an epoch only whole batches count."""
    least = 3840 + num_queries
    assert plan("swav", num_queries=num_queries, dataset_size=least).queue_bytes
    with pytest.raises(InputError, match=r"eqco train refuses: method\.queue_size=3840"):
        plan("swav", num_queries=num_queries, dataset_size=least - 1)
    assert plan("byol", num_queries=num_queries, dataset_size=num_queries).steps_per_epoch == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"framework": "dino"}, "there is no recipe 'dino'"),
        ({"framework": "byol", "alpha": 256.0}, r"--alpha=256\.0, but byol has no negatives"),
        ({"framework": "swav", "num_negatives": 5}, "--num-negatives=5, but swav has no"),
        (
            {"framework": "cpcv2", "num_negatives": 9181},
            "--num-negatives=9181, but a batch of --num-queries=256 offers 9180 negatives",
        ),
        (
            {"framework": "simclrv2", "num_negatives": 16, "queue_size": 65536},
            "offers 510 .* beside it has 65536. Choose 65537 to 66046, .* change --queue-size",
        ),
        ({"framework": "simclrv2", "memory": 10**9}, "simclrv2 has those of its batch beside it"),
        ({"framework": "simclrv2", "queue_size": -1}, "--queue-size=-1; it must be at least 0"),
        ({"framework": "mocov2", "queue_size": 9}, "are all in its queue: give --num-negatives"),
        ({"framework": "pirl", "queue_size": 9}, "pirl does not have. Leave it out"),
        ({"framework": "swav", "queue_size": 9}, "--queue-size=9, but swav has no negatives"),
        ({"framework": "byol", "num_queries": 1}, "byol has batch norm, which needs 2 images"),
        ({"framework": "swav", "num_queries": 1}, "swav has batch norm, which needs 2 images"),
        (
            {"framework": "swav", "num_queries": 64, "dataset_size": 3000},
            "--dataset-size=3000 with --num-queries=64 is too small for swav as published.*"
            "queue-size 2880 and --method.num-prototypes 2944 or less",
        ),
        ({"framework": "byol", "temperature": 1.0}, r"--temperature=1\.0, but .* byol has none"),
        (
            {"num_negatives": 256},
            "--num-negatives=256, but a batch of --num-queries=256 offers 255 negatives",
        ),
        ({"framework": "simclr", "num_negatives": 511}, "offers 510 negatives per query"),
        ({"num_negatives": 0}, "--num-negatives=0; a query needs at least 1"),
        ({"num_queries": 1}, "--num-queries=1 offers no negatives"),
        ({"num_queries": 0}, "--num-queries=0; it must be at least 1"),
        ({"num_queries": 100, "dataset_size": 50}, "Lower --num-queries"),
        ({"alpha": 0.0}, r"--alpha=0\.0; it says how many negatives.*greater than 0, or inf"),
        ({"alpha": math.nan}, "--alpha=nan"),
        ({"temperature": -1.0}, r"--temperature=-1\.0"),
        ({"base_learning_rate": 0.0}, r"--base-learning-rate=0\.0"),
        ({"epochs": 0}, "--epochs=0"),
        ({"dim": 0}, "--dim=0"),
        ({"memory": 10**9}, "simo has none: its batch offers 255 negatives"),
        ({"framework": "mocov2", "memory": 10**9, "num_negatives": 5}, "were both given"),
        ({"framework": "mocov2", "memory": 10}, "--memory 10 B is too little"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        plan(**settings)
