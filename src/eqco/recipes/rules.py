"""What `eqco train photos/` chooses where nobody else does: one rule for each setting.

Each rule has its reason, which is printed beside what it chose. The numbers in them come from a
study over several data sets (docs/rules.md). A setting that was given is never changed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from eqco.methods import SiMoSettings
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

__all__ = ["BASE", "Choice", "Facts", "Reason", "choose"]

SMALL_SET = 20_000  # images; with fewer a batch of 64 makes more of each
MOST_EPOCHS = 800  # beyond, nothing more was gained on the smallest set
PROBES = 10  # points of the learning curve


# what does not depend on the images, the machine and the minutes
BASE = Recipe(
    method=SiMoSettings(count=None, ema_decay=0.99, ema_schedule="rising"),
    objective=ObjectiveSettings(temperature=0.1),
    data=DataSettings(image_size=32),
    encoder=EncoderSettings(backbone="light"),
    optimiser=OptimiserSettings(base_learning_rate=0.24),
    training=TrainingSettings(epochs=1, precision="auto"),
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known before anything is chosen.

    Args:
        images: to train on.
        side: the shorter side of the median image, in pixels.
        minutes: that the training may take.
    """

    images: int
    side: int
    minutes: float


@dataclass(frozen=True)
class Reason:
    """One choice for people: the settings with their values, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A recipe, and a reason for each of its lines."""

    recipe: Recipe
    reasons: tuple[Reason, ...]


def choose(
    facts: Facts, speed: Callable[[Recipe], float], settings: Mapping[str, Any] | None = None
) -> Choice:
    """The recipe for these images, this machine and so many minutes.

    Args:
        speed: images per second that a recipe trains, measured.
        settings: by name, what is given and not to be chosen.
    """
    given = dict(settings or {})
    if not facts.minutes > 0:
        raise InputError(f"--minutes {facts.minutes:g}; it must be greater than 0.")
    if facts.images < 2:
        raise InputError(f"{facts.images} image to train on; contrast needs at least 2.")
    size, size_reason = choose_size(facts)
    num_queries, batch_reason = choose_batch(facts)
    chosen = {"image_size": size, "num_queries": num_queries}
    recipe = with_settings(BASE, **{**chosen, **given})
    per_second = speed(recipe)
    epochs, length_reason = choose_epochs(facts, per_second)
    if "epochs" in given:
        epochs, length_reason = recipe.training.epochs, "as given"
    lengths = {
        "epochs": epochs,
        "warmup_epochs": epochs / 20,
        "probe_every": max(1, epochs // PROBES),
        "save_every": max(1, epochs // PROBES),
    }
    recipe = with_settings(recipe, **{**lengths, **given})
    reasons = [
        Reason(f"{recipe.data.image_size} pixels", size_reason),
        Reason(f"{recipe.encoder.backbone}", f"{per_second:,.0f} images a second here"),
        Reason(f"{recipe.training.num_queries} images a batch", batch_reason),
        Reason(f"{epochs} epochs", length_reason),
    ]
    return Choice(recipe=recipe, reasons=tuple(reasons))


def choose_size(facts: Facts) -> tuple[int, str]:
    """Pixels along each side."""
    return 32, "what a CPU trains in minutes"


def choose_batch(facts: Facts) -> tuple[int, str]:
    """N."""
    if facts.images >= SMALL_SET:
        return 256, f"{facts.images:,} images make enough steps of it"
    most = 2 ** (facts.images.bit_length() - 1)  # a power of two that fits
    return min(64, most), f"{facts.images:,} images: smaller batches take more steps"


def choose_epochs(facts: Facts, per_second: float) -> tuple[int, str]:
    """As many passes as the minutes allow."""
    epochs = int(facts.minutes * 60 * per_second / facts.images)
    if epochs >= MOST_EPOCHS:
        return MOST_EPOCHS, f"more gain nothing; {facts.minutes:g} minutes would allow {epochs}"
    return max(1, epochs), f"{facts.minutes:g} minutes at that speed"
