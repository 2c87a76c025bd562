"""Profiles: what becomes of a published recipe on a smaller machine, from seconds to the paper."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from eqco.recipes.schema import OptimiserSettings, Recipe

__all__ = [
    "DEMO",
    "DESK",
    "EMBEDDED",
    "LIGHT",
    "PAPER",
    "PROFILES",
    "SCALES",
    "SMOKE",
    "Scale",
    "at_scale",
]

PUBLISHED_EPOCHS = 200
PUBLISHED_TEMPERATURE = 0.2  # of SiMo and MoCo v2


@dataclass(frozen=True, kw_only=True)
class Small:
    """The light encoder on small images, and the settings that go with short trainings."""

    image_size: int
    learning_rate: float | None = None  # None: twice the published, since the steps are few
    ema_decay: float = 0.99  # β = 0.999 averages over 1000 steps: too many of a short training
    temperature: float | None = None  # in place of the 0.2 of SiMo and MoCo v2


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is.

    Args:
        about: what it is for, in one line.
        data: the data set.
        accuracy: probe: logistic regression on frozen features; linear: the paper's protocol.
        neighbours: of the kNN accuracy.
        epochs: what 200 epochs of the paper become.
        num_queries: N, where the paper has 256.
        memory: the largest memory of MoCo, where the paper has 65536.
        intervals: steps or epochs between log lines, diagnostics and checkpoints.
        small: what networks and images become; None: as published.
    """

    about: str
    data: str
    accuracy: Literal["probe", "linear"] = "probe"
    neighbours: int
    epochs: int
    num_queries: int
    memory: int
    intervals: Mapping[str, Any] = field(default_factory=dict)
    small: Small | None = None

    def shortened(self, epochs: int) -> int:
        """What so many epochs of the paper become.

        >>> PAPER.shortened(100), DESK.shortened(100)
        (100, 6)
        """
        return max(1, round(epochs * self.epochs / PUBLISHED_EPOCHS))


SMOKE = Scale(
    about="seconds on a CPU: shows that it runs, its numbers mean nothing",
    data="groceries",
    neighbours=20,
    epochs=1,
    num_queries=32,
    memory=256,
    intervals={"log_every": 5, "diagnose_every": 5},
    small=Small(image_size=16, learning_rate=0.06, temperature=0.1),
)
DESK = Scale(
    about="a small real setting that two CPU cores manage",
    data="cifar10",
    neighbours=200,
    epochs=12,
    num_queries=256,
    memory=4096,
    intervals={"save_every": 3},
    # The paper loses most at low temperature (MoCo v1, τ = 0.07), so that is where to look.
    # Rate and τ were chosen by kNN on K = 255 without EqCo, seed 100, 4 epochs.
    small=Small(image_size=16, learning_rate=0.12, temperature=0.1),
)
EMBEDDED = Scale(
    about="the embedded photos, where CIFAR-10 is not at hand",
    data="groceries",
    neighbours=20,
    epochs=100,
    num_queries=64,
    memory=512,
    intervals={"save_every": 25},
    small=Small(image_size=32, learning_rate=0.06, temperature=0.1),
)
PAPER = Scale(
    about="the published setting",
    data="imagenet",
    accuracy="linear",
    neighbours=200,
    epochs=200,
    num_queries=256,
    memory=65536,
    intervals={"log_every": 100, "diagnose_every": 1000},
)
DEMO = Scale(
    about="light encoder, 32 pixels, 200 epochs of a small set: about two minutes",
    data="groceries",
    neighbours=20,
    epochs=200,
    num_queries=128,
    # a memory as large as the data set would hold older keys of the query's own image
    memory=256,
    intervals={"save_every": 5},
    small=Small(image_size=32),
)
LIGHT = Scale(
    about="light encoder, 32 pixels, 20 epochs: minutes to hours on two cores",
    data="cifar10",
    neighbours=200,
    epochs=20,
    num_queries=256,
    memory=4096,
    intervals={"save_every": 5},
    small=Small(image_size=32),
)
# those of the figures and tables
SCALES = {"smoke": SMOKE, "desk": DESK, "embedded": EMBEDDED, "paper": PAPER}
PROFILES = {**SCALES, "demo": DEMO, "light": LIGHT}


def at_scale(
    recipe: Recipe,
    scale: Scale,
    *,
    epochs: int = PUBLISHED_EPOCHS,
    num_queries: int | None = None,
) -> Recipe:
    """A published recipe at a scale; `epochs` are the paper's.

    >>> at_scale(Recipe(), DESK).training.epochs, at_scale(Recipe(), DESK).encoder.backbone
    (12, 'light')
    """
    length, small = scale.shortened(epochs), scale.small
    changed: dict[str, Any] = {
        "training": replace(
            recipe.training,
            epochs=length,
            num_queries=num_queries or scale.num_queries,
            **scale.intervals,
        ),
        "optimiser": shortened_optimiser(recipe.optimiser, length, scale),
    }
    if small is None:
        return replace(recipe, **changed, data=replace(recipe.data, workers=8))
    if small.temperature and recipe.objective.temperature == PUBLISHED_TEMPERATURE:
        changed["objective"] = replace(recipe.objective, temperature=small.temperature)
    return replace(
        recipe,
        **changed,
        data=replace(recipe.data, image_size=small.image_size),
        encoder=replace(
            recipe.encoder, backbone="light", bn_groups=min(2, recipe.encoder.bn_groups)
        ),
        ema_decay=small.ema_decay,
    )


def shortened_optimiser(
    optimiser: OptimiserSettings, length: int, scale: Scale
) -> OptimiserSettings:
    """Warm-up at its share of the usual training, drops at theirs of one of that length."""
    drops = {round(drop * length / PUBLISHED_EPOCHS) for drop in optimiser.drops}
    changed = replace(
        optimiser,
        warmup_epochs=optimiser.warmup_epochs * scale.epochs / PUBLISHED_EPOCHS,
        drops=tuple(sorted(drop for drop in drops if 0 < drop < length)),
    )
    if scale.small is not None:
        rate = scale.small.learning_rate or 2 * optimiser.base_learning_rate
        changed = replace(changed, base_learning_rate=rate)
    return changed
