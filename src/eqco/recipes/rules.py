"""What `eqco train photos/` chooses where nobody else does: one rule for each setting.

Each rule has its reason, which is printed beside what it chose. What the numbers in them rest on
stands in docs/rules.md. A setting that was given is never changed.
"""

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from eqco.methods import SimCLRSettings
from eqco.recipes.schema import (
    DataSettings,
    EncoderSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
)
from eqco.recipes.text import with_settings
from eqco.runtime.errors import InputError

__all__ = [
    "BASE",
    "LARGEST",
    "MOST_EPOCHS",
    "Choice",
    "Facts",
    "Reason",
    "before_length",
    "choose",
    "choose_batch",
]

SIZES = (64, 32)  # pixels, the better one first
ENOUGH_IMAGES = 200_000  # seen at 64 pixels; with fewer, more passes over 32 pixels are worth more
DEEP = "resnet18"
STEMS = ("small", "imagenet")  # of it, the slower first, which SimCLR's authors have for 32 pixels
ENOUGH_FOR_DEEP = 2_000_000  # images it sees; with fewer, the light encoder's many more are better
SMALL_SET = 20_000  # images; with fewer, batches of 64 make more steps of them
MOST_EPOCHS = 1000
CURVE = 10  # points of the learning curve, at most
LENGTHS = ("epochs", "warmup_epochs", "drops")  # what only fits a recipe whose length is known
# a point of it takes an image a share of the time that training on it does: one view instead of
# two, forward only, but in float32; 0.13 to 0.17 were measured with the light encoder, rounded up
PROBE_SHARE = 0.2

# what does not depend on the images, the machine and the minutes
BASE = Recipe(
    method=SimCLRSettings(count=None),
    objective=ObjectiveSettings(temperature=0.1),
    data=DataSettings(image_size=32),
    encoder=EncoderSettings(backbone="light"),
    optimiser=OptimiserSettings(base_learning_rate=0.24),
    training=TrainingSettings(epochs=1, precision="auto", compile="auto"),
)
LARGEST = replace(BASE, data=replace(BASE.data, image_size=max(SIZES)))  # that is ever chosen


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known before anything is chosen.

    Args:
        images: to train on.
        side: the shorter side of the median image, in pixels.
        minutes: that the training may take.
        processes: that train together.
        probed: images that a point of the learning curve is of; 0: there are no labels for one.
        decoded: those of them that each point decodes anew.
        network: the name of a module of the user's that is trained in place of ours.
    """

    images: int
    side: int
    minutes: float
    processes: int = 1
    probed: int = 0
    decoded: int = 0
    network: str | None = None


@dataclass(frozen=True)
class Reason:
    """One choice for people: the setting with its value, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A recipe, and a reason for each of its lines."""

    recipe: Recipe
    reasons: tuple[Reason, ...]
    length_is_given: bool = False
    """Whether the epochs are not of the rules, so that other minutes would not change them."""


# recipe -> images per second that it trains, and seconds that decoding one image takes, once
Speed = Callable[[Recipe], tuple[float, float]]


def choose(
    facts: Facts,
    speed: Speed,
    settings: Mapping[str, Any] | None = None,
    *,
    of_init: Container[str] = (),
) -> Choice:
    """The recipe for these images, this machine and so many minutes.

    Args:
        speed: measures a recipe.
        settings: by name, what is given and not to be chosen.
        of_init: names of those that first weights bring along, which nobody has typed.
    """
    refuse_minutes(facts.minutes)
    if facts.images < 2:
        raise InputError(f"{facts.images} image to train on; contrast needs at least 2.")
    given = dict(settings or {})
    if "epochs" in given:
        with_settings(BASE, epochs=given["epochs"])  # which refuses what is no number of epochs
    optimiser = given.get("name", BASE.optimiser.name)
    if optimiser != BASE.optimiser.name and "base_learning_rate" not in given:
        raise InputError(
            f"--optimiser.name {optimiser} without a learning rate, and the rules know that of "
            f"{BASE.optimiser.name} alone. Give --optimiser.base-learning-rate too, such as 1.5e-4 "
            f"for adamw."
        )
    num_queries = given["num_queries"] if "num_queries" in given else choose_batch(facts)
    tried: dict[int, tuple[Recipe, float, float]] = {}
    for size in possible_sizes(facts, given):
        recipe = before_length({"num_queries": num_queries, "image_size": size, **given})
        per_second, decoding = speed(recipe)
        tried[size] = recipe, per_second, affordable_passes(facts, recipe, per_second, decoding)
        if images_seen(recipe, facts, tried[size][2], given) >= ENOUGH_IMAGES:
            break
    recipe, per_second, passes = tried[size]
    passes_tried = {size: each[2] for size, each in tried.items()}
    if deep_pays(facts, recipe, passes, given):  # it will not be faster than the light encoder
        for stem in STEMS:
            deep = with_settings(recipe, backbone=DEEP, stem=stem)
            slower, _ = speed(deep)  # the sample is decoded by now: it says nothing of decoding
            fewer = affordable_passes(facts, deep, slower, decoding)
            if deep_pays(facts, deep, fewer, given):
                recipe, per_second, passes = deep, slower, fewer
                break
    epochs = given.get("epochs", whole_epochs(passes))
    often = -(-epochs // CURVE)
    lengths = {
        "epochs": epochs,
        "warmup_epochs": epochs / 20,
        "probe_every": often,
        "save_every": often,
    }
    recipe = with_settings(recipe, **{**lengths, **given})
    reasons = []
    for names, what, why in explain(facts, recipe, per_second, passes_tried, given):
        kept = given.keys() & set(names.split())
        if kept:
            why = "of --init's weights" if all(name in of_init for name in kept) else "as given"
        if kept == {"epochs"} and (decided := left_to_minutes(facts, given)):
            why += f"; --minutes {facts.minutes:g} decides {decided}"
        reasons.append(Reason(what, why))
    return Choice(recipe=recipe, reasons=tuple(reasons), length_is_given="epochs" in given)


def refuse_minutes(minutes: Any) -> None:
    """Refuse what is no length of a training."""
    is_number = isinstance(minutes, Real)
    if is_number and minutes > 0 and math.isfinite(minutes):
        return
    shown = f"{minutes:g}" if is_number else repr(minutes)
    raise InputError(
        f"--minutes {shown}; it must be a finite number greater than 0, such as --minutes 20."
    )


def before_length(settings: Mapping[str, Any]) -> Recipe:
    """The recipe as far as it is known before its length is: what is timed."""
    return with_settings(BASE, **{n: value for n, value in settings.items() if n not in LENGTHS})


def possible_sizes(facts: Facts, given: Mapping[str, Any]) -> tuple[int, ...]:
    """Pixels to try, the better one first: none that the images do not have, but for the least."""
    if "image_size" in given:
        return (given["image_size"],)
    return tuple(size for size in SIZES if facts.side >= size or size == SIZES[-1])


def network_is_given(facts: Facts, given: Mapping[str, Any]) -> bool:
    """Whether the network is not ours to choose."""
    return bool(facts.network or given.keys() & {"backbone", "width", "stem"})


def deep_pays(facts: Facts, recipe: Recipe, passes: float, given: Mapping[str, Any]) -> bool:
    """Whether the network is ours to choose, and would see enough images in so many passes."""
    seen = images_seen(recipe, facts, passes, given)
    return not network_is_given(facts, given) and seen >= ENOUGH_FOR_DEEP


def left_to_minutes(facts: Facts, given: Mapping[str, Any]) -> str:
    """What the minutes decide beside epochs that are given; empty where that is given too."""
    left = []
    if len(possible_sizes(facts, given)) > 1:
        left.append("the image size")
    if not network_is_given(facts, given):
        left.append("the network")
    return " and ".join(left) + " alone" * bool(left)


def images_visited(recipe: Recipe, facts: Facts) -> int:
    """Images that a pass visits: those of whole batches."""
    num_queries = recipe.training.num_queries
    return facts.images // num_queries * num_queries


def images_seen(recipe: Recipe, facts: Facts, passes: float, given: Mapping[str, Any]) -> float:
    """Images that a training visits which may have so many passes, or the epochs given."""
    epochs: float = min(passes, given.get("epochs", MOST_EPOCHS))
    return epochs * images_visited(recipe, facts)


def choose_batch(facts: Facts) -> int:
    """N: a small set makes more steps in small batches; never more than there are images.

    Processes share a batch equally.
    """
    size = 256 if facts.images >= SMALL_SET else min(64, 1 << (facts.images.bit_length() - 1))
    shared = size - size % facts.processes
    if not shared:
        raise InputError(
            f"{facts.processes} processes for batches of {size} images. Use at most {size}, or "
            f"give --training.num-queries, a multiple of {facts.processes}."
        )
    return shared


def affordable_passes(facts: Facts, recipe: Recipe, per_second: float, decoding: float) -> float:
    """Passes over the images that the minutes allow beside decoding and the curve, which has a
    point for each pass, but no more than it may have; below 1, and below 0, where they do not
    suffice.
    """
    seconds = 60 * facts.minutes - decoding * facts.images
    # a batch that is larger than the set is refused later, in its own words
    one_pass = (images_visited(recipe, facts) or facts.images) / per_second
    point = facts.probed * PROBE_SHARE / per_second + facts.decoded * decoding
    return max((seconds - CURVE * point) / one_pass, min(seconds / (one_pass + point), CURVE))


def whole_epochs(passes: float) -> int:
    """At least one, and no more than help.

    >>> whole_epochs(-2.5), whole_epochs(7.9), whole_epochs(5e6)
    (1, 7, 1000)
    """
    return int(min(MOST_EPOCHS, max(1, passes)))


def explain(
    facts: Facts,
    recipe: Recipe,
    per_second: float,
    passes: Mapping[int, float],
    given: Mapping[str, Any],
) -> list[tuple[str, str, str]]:
    """For each choice the settings it is of, its value for people, and why; `passes` that the
    minutes allow, by the sizes tried.
    """
    size, count = recipe.data.image_size, recipe.training.epochs
    if len(passes) > 1 and size == SIZES[-1]:
        seen = max(0, round(images_seen(recipe, facts, passes[SIZES[0]], given)))
        most = given.get("epochs", MOST_EPOCHS)
        subject = "1 epoch sees" if most == 1 else f"{most} epochs see"
        what = subject if passes[SIZES[0]] > most else "time for"
        why_size = (
            f"{what} {seen:,} images, and {SIZES[0]} pixels are chosen from {ENOUGH_IMAGES:,}"
        )
    elif not facts.side:
        why_size = "how large the images are is not known"
    elif facts.side < SIZES[0]:
        why_size = f"the images have {facts.side}"
    else:
        why_size = "there is time for enough epochs at this size"
    small = facts.images < SMALL_SET
    why_batch = f"{facts.images:,} images: {'more steps' if small else 'enough steps'} this way"
    why_length = f"--minutes {facts.minutes:g}"
    if count == MOST_EPOCHS:
        why_length = "the most that is ever chosen"
    elif passes[size] < 1:
        why_length += " do not suffice for one: it will take longer"
    why_network = "as given" if facts.network else "learns most in minutes"
    if recipe.encoder.backbone == DEEP:
        seen = count * images_visited(recipe, facts)
        why_network = f"time for {seen:,} images, and it is chosen from {ENOUGH_FOR_DEEP:,}"
    why_network += f"; {per_second:,.0f} images a second here"
    return [
        ("image_size", f"{size} pixels", why_size),
        ("backbone width stem", facts.network or describe_network(recipe), why_network),
        ("num_queries", f"{recipe.training.num_queries} images a batch", why_batch),
        ("epochs", f"{count} epoch{'s' * (count != 1)}", why_length),
        (
            "method",
            recipe.method.name,
            "both views are queries and keys; a slow copy of constant β costs accuracy in minutes",
        ),
        (
            "temperature",
            f"τ = {recipe.objective.temperature:g}",
            "ahead of 0.2 on one set, level with it on another",
        ),
        (
            "alpha count",
            describe_loss(recipe),
            "all of the batch; α pays where negatives are fewer",
        ),
        ("base_learning_rate", describe_rate(recipe), "for 256 images, in proportion to the batch"),
    ]


def describe_network(recipe: Recipe) -> str:
    """The backbone, with its stem where that is not the usual one."""
    small = recipe.encoder.stem == "small"
    return recipe.encoder.backbone + " with a small stem" * small


def describe_loss(recipe: Recipe) -> str:
    """K and α in words."""
    alpha = recipe.objective.alpha
    loss = "plain InfoNCE" if alpha is None else f"α = {alpha:g}"
    return f"K = {recipe.num_negatives}, {loss}"


def describe_rate(recipe: Recipe) -> str:
    """The rate before it is scaled."""
    return f"learning rate {recipe.optimiser.base_learning_rate:g}"
