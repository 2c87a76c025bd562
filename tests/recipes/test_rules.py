"""What is chosen for a folder, a machine and a number of minutes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqco.recipes.rules import Facts, choose
from eqco.runtime.errors import InputError


def facts(images=3000, side=64, minutes=20.0):
    return Facts(images=images, side=side, minutes=minutes)


@given(
    images=st.integers(2, 2_000_000),
    side=st.integers(8, 4000),
    minutes=st.floats(0.01, 10_000),
    speed=st.floats(0.1, 1e6),
)
@settings(max_examples=200)
def test_every_folder_gets_a_recipe_that_fits_it(images, side, minutes, speed):
    """A recipe checks itself; a batch is never larger than the set."""
    chosen = choose(facts(images, side, minutes), lambda recipe: (speed, 0.0)).recipe
    assert chosen.training.num_queries <= images
    batch = chosen.training.num_queries
    seconds = chosen.training.epochs * (images // batch * batch) / speed
    assert seconds <= 60 * minutes * 1.0001 or chosen.training.epochs == 1


def test_more_minutes_never_train_for_fewer_epochs():
    lengths = [
        choose(facts(minutes=minutes), lambda recipe: (500.0, 0.0)).recipe.training.epochs
        for minutes in (1, 5, 20, 60)
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_what_is_given_is_kept_and_said():
    choice = choose(
        facts(), lambda recipe: (500.0, 0.0), {"epochs": 7, "num_queries": 24, "alpha": 9.0}
    )
    recipe = choice.recipe
    assert (recipe.training.epochs, recipe.training.num_queries) == (7, 24)
    assert recipe.objective.alpha == 9
    said = {reason.what: reason.why for reason in choice.reasons}
    assert said["24 images a batch"] == said["K = 46, α = 9"] == "as given"
    assert choice.length_is_given


def test_beside_given_epochs_it_is_said_what_the_minutes_decide():
    """Minutes of 20 are what `facts` has."""

    def why(known=None, **settings):
        return reasons(known or facts(), epochs=7, **settings)["7 epochs"]

    assert why() == "as given; --minutes 20 decides the image size and the network alone"
    assert why(image_size=32) == "as given; --minutes 20 decides the network alone"
    assert why(facts(side=40)) == "as given; --minutes 20 decides the network alone"
    assert why(image_size=32, backbone="light") == "as given"
    assert not choose(facts(), lambda recipe: (500.0, 0.0)).length_is_given


def test_what_first_weights_bring_is_not_called_given():
    of_init = {"backbone": "resnet18", "width": 1, "stem": "small"}
    choice = choose(facts(), lambda recipe: (500.0, 0.0), of_init, of_init=of_init)
    said = {reason.what: reason.why for reason in choice.reasons}
    assert said["resnet18 with a small stem"] == "of --init's weights"


def test_epochs_that_are_given_decide_the_size_of_image_with_the_minutes():
    """Of 3000 images in batches of 64, an epoch visits 2944; 68 of them are 200,192."""
    known, fast = facts(minutes=100), 10_000.0
    assert "32 pixels" in reasons(known, fast, epochs=67)
    assert "64 pixels" in reasons(known, fast, epochs=68)
    three = reasons(known, fast, epochs=3)["32 pixels"]
    assert three == "3 epochs see 8,832 images, and 64 pixels are chosen from 200,000"
    assert reasons(known, fast, epochs=1)["32 pixels"].startswith("1 epoch sees 2,944 images")


def test_a_pass_counts_the_images_of_whole_batches():
    """60 s of 64 images a second are 3,840 images; of 100, in batches of 64, a pass visits 64."""
    known = facts(images=100, minutes=1)
    assert choose(known, lambda recipe: (64.0, 0.0)).recipe.training.epochs == 60
    choice = choose(known, lambda recipe: (64.0, 0.0), {"num_queries": 50})
    assert choice.recipe.training.epochs == 38


def test_the_speed_that_counts_is_that_of_what_is_given():
    asked = []

    def speed(recipe):
        asked.append(recipe.encoder.backbone)
        return 100.0, 0.0

    choose(facts(), speed, {"backbone": "resnet18"})
    assert set(asked) == {"resnet18"}


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (facts(minutes=0), "--minutes 0; it must be a finite number greater than 0, such as"),
        (facts(minutes=math.inf), "--minutes inf; it must be a finite number"),
        (facts(minutes=math.nan), "--minutes nan; it must be a finite number"),
        (facts(minutes="2"), "--minutes '2'; it must be a finite number"),
        (facts(images=1), "at least 2"),
    ],
)
def test_what_cannot_be_trained_is_refused(known, message):
    with pytest.raises(InputError, match=message):
        choose(known, lambda recipe: (1.0, 0.0))


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        ("2", "training.epochs='2'; it must be of type int"),
        (2.5, "training.epochs=2.5; it must be of type int"),
        (0, "training.epochs=0; it must be at least 1"),
    ],
)
def test_what_is_no_number_of_epochs_is_refused(epochs, message):
    with pytest.raises(InputError, match=message):
        choose(facts(), lambda recipe: (1.0, 0.0), {"epochs": epochs})


def test_any_finite_number_of_minutes_has_a_length():
    """So many that as seconds they are infinite."""
    choice = choose(facts(minutes=1e308), lambda recipe: (500.0, 0.0))
    assert choice.recipe.training.epochs == 1000
    said = {reason.what: reason.why for reason in choice.reasons}
    assert said["1000 epochs"] == "the most that is ever chosen"


def test_large_images_are_taken_where_there_is_time_for_them():
    """100 images a second at 64 pixels: 20 minutes are 120,000 images, an hour 360,000. A pass over
    1000 visits 960: those of whole batches.
    """

    def speed(recipe):
        return (100.0 if recipe.data.image_size == 64 else 400.0), 0.0

    short, long = (choose(facts(1000, 200, minutes), speed).recipe for minutes in (20, 60))
    assert (short.data.image_size, short.training.epochs) == (32, 500)
    assert (long.data.image_size, long.training.epochs) == (64, 375)
    assert choose(facts(1000, 40, 60), speed).recipe.data.image_size == 32


def fast_machine(recipe):
    """Images a second: 10,000 with the light encoder, 2,000 and 500 with ResNet-18 by its stem."""
    encoder = recipe.encoder
    deep = {"imagenet": 2_000.0, "small": 500.0}[encoder.stem]
    return (10_000.0 if encoder.backbone == "light" else deep), 0.0


@pytest.mark.parametrize(
    ("images", "minutes", "given", "backbone"),
    [
        (50_000, 16, {}, "light"),  # ResNet-18 would see 1,920,000
        (50_000, 17, {}, "resnet18"),  # 2,040,000
        (2_047, 1000, {}, "light"),  # at most 1000 epochs: 1,984,000 in batches of 64
        (2_048, 1000, {}, "resnet18"),
        (50_000, 60, {"epochs": 40}, "light"),  # 1,996,800 in batches of 256
        (50_000, 60, {"epochs": 41}, "resnet18"),
        (50_000, 60, {"width": 2}, "light"),
        (50_000, 60, {"backbone": "light"}, "light"),
    ],
)
def test_a_deep_network_is_taken_where_it_sees_enough_images(images, minutes, given, backbone):
    assert (
        choose(facts(images, 32, minutes), fast_machine, given).recipe.encoder.backbone == backbone
    )


@pytest.mark.parametrize(
    ("minutes", "given", "stem"),
    [
        (66, {}, "imagenet"),  # with the small stem 1,980,000
        (67, {}, "small"),  # 2,010,000
        (67, {"stem": "imagenet"}, "imagenet"),
    ],
)
def test_the_small_stem_is_taken_where_it_sees_enough_images(minutes, given, stem):
    chosen = choose(facts(50_000, 32, minutes), fast_machine, given).recipe.encoder
    assert chosen.stem == stem
    assert chosen.backbone == ("light" if given else "resnet18"), "with a stem the network is given"


def test_a_deep_network_has_its_own_length_and_reason():
    """An hour of 2,000 images a second: 7,200,000 images, 144 epochs."""
    choice = choose(facts(50_000, 32, 60), fast_machine)
    assert choice.recipe.training.epochs == 144
    (why,) = [reason.why for reason in choice.reasons if reason.what == "resnet18"]
    assert "7,188,480 images" in why
    assert "2,000 images a second here" in why


def test_what_cannot_see_enough_images_is_not_even_timed():
    timed = []

    def speed(recipe):
        timed.append(recipe.encoder.backbone)
        return 1000.0, 0.0

    choose(facts(3000, 32, 20), speed)
    assert timed == ["light"]


def test_decoding_takes_its_share_of_the_minutes():
    """10 minutes less 1,000 images of 0.12 s each leave 480 s of 50 images: 25 epochs of 960."""
    recipe = choose(facts(1000, 32, 10), lambda recipe: (50.0, 0.12)).recipe
    assert recipe.training.epochs == 25


def test_processes_share_a_batch_equally():
    sizes = [
        choose(
            Facts(images=3000, side=32, minutes=1.0, processes=count), lambda recipe: (500.0, 0.0)
        ).recipe.training.num_queries
        for count in (1, 2, 3, 64)
    ]
    assert sizes == [64, 64, 63, 64]
    many = Facts(images=3000, side=32, minutes=1.0, processes=65)
    with pytest.raises(InputError, match="65 processes for batches of 64 images"):
        choose(many, lambda recipe: (1.0, 0.0))
    chosen = choose(many, lambda recipe: (1.0, 0.0), {"num_queries": 130}).recipe
    assert chosen.training.num_queries == 130


def test_another_optimiser_needs_a_rate_of_its_own():
    with pytest.raises(InputError, match=r"--optimiser.name adamw without a learning rate"):
        choose(facts(), lambda recipe: (500.0, 0.0), {"name": "adamw"})
    given = {"name": "adamw", "base_learning_rate": 1e-3}
    chosen = choose(facts(), lambda recipe: (500.0, 0.0), given).recipe.optimiser
    assert (chosen.name, chosen.base_learning_rate) == ("adamw", 1e-3)


def test_the_curve_takes_its_share_of_the_minutes():
    """960 images a second, 60 s: 60 passes of 960; ten points of 1920 images take 4 s of them."""
    without, with_curve = (
        choose(
            Facts(images=1000, side=32, minutes=1.0, probed=probed), lambda recipe: (960.0, 0.0)
        ).recipe.training.epochs
        for probed in (0, 1920)
    )
    assert (without, with_curve) == (60, 56)


@pytest.mark.parametrize(("minutes", "epochs", "every"), [(0.2, 6, 1), (1, 50, 5), (5, 290, 29)])
def test_a_point_of_the_curve_for_each_epoch_but_ten_at_most(minutes, epochs, every):
    """By hand: a pass takes 1 s, a point 2048·0.2/512 + 200·0.0005 = 0.9 s, decoding all 0.256 s.

    11.744 s are 6 passes with a point each, 59.744 and 299.744 s less ten points 50 and 290.
    """
    known = Facts(images=512, side=32, minutes=minutes, probed=2048, decoded=200)
    training = choose(known, lambda recipe: (512.0, 0.0005)).recipe.training
    assert (training.epochs, training.probe_every) == (epochs, every)


@given(epochs=st.integers(1, 1000))
def test_a_curve_has_ten_points_at_most(epochs):
    """The end is one, wherever the last of the others is."""
    every = choose(facts(), lambda recipe: (500.0, 0.0), {"epochs": epochs}).recipe.training
    assert (epochs - 1) // every.probe_every + 1 <= 10


@pytest.mark.parametrize("given", [{"warmup_epochs": 5.0}, {"schedule": "steps", "drops": (20,)}])
def test_what_needs_a_length_may_be_given_without_one(given):
    recipe = choose(facts(), lambda recipe: (500.0, 0.0), given).recipe
    kept = {name: getattr(recipe.optimiser, name) for name in given}
    assert kept == given
    with pytest.raises(InputError, match="epochs=3"):
        choose(facts(), lambda recipe: (500.0, 0.0), {"epochs": 3, **given})


def reasons(known, per_second=500.0, **given):
    choice = choose(known, lambda recipe: (per_second, 0.0), given)
    return {reason.what: reason.why for reason in choice.reasons}


def test_a_reason_is_of_what_was_chosen():
    assert reasons(facts(), count=16)["K = 16, plain InfoNCE"] == "as given"
    known = Facts(images=3000, side=0, minutes=1.0, network="MyNetwork")
    said = reasons(known)
    assert said["MyNetwork"].startswith("as given")
    assert said["32 pixels"] == "how large the images are is not known"


def test_the_images_there_is_time_for_are_not_rounded_up_to_a_pass():
    """0.5 minutes of 1,000 images a second, of a set of more."""
    known = Facts(images=1_281_167, side=64, minutes=0.5)
    why = reasons(known, per_second=1000.0)["32 pixels"]
    assert why == "time for 30,000 images, and 64 pixels are chosen from 200,000"


def test_minutes_that_do_not_suffice_are_named():
    """6000 images at 10 a second; then decoding alone; then the curve alone."""
    said = "--minutes {} do not suffice for one: it will take longer"
    assert reasons(facts(images=6000, minutes=0.1), per_second=10.0)["1 epoch"] == said.format(0.1)
    choice = choose(facts(images=100, minutes=0.1), lambda recipe: (1000.0, 0.2))
    assert said.format(0.1) in [reason.why for reason in choice.reasons]
    known = Facts(images=100, side=32, minutes=0.03, probed=10_000)
    assert reasons(known, per_second=1000.0)["1 epoch"] == said.format(0.03)
    assert reasons(facts(images=128, minutes=0.1), per_second=128.0)["6 epochs"] == "--minutes 0.1"
