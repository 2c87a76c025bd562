"""Profiles: what becomes of a published recipe on a smaller machine, from seconds to the paper.

One list, for `eqco train`, `eqco recipes` and `eqco reproduce`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from eqco.methods import MethodSettings
from eqco.recipes.schema import OptimiserSettings, Recipe
from eqco.runtime.errors import InputError

__all__ = [
    "DEMO",
    "DESK",
    "EMBEDDED",
    "FEW_IMAGES",
    "FOLDER",
    "PAPER",
    "PROFILES",
    "PUBLISHED_EPOCHS",
    "SCALES",
    "SMOKE",
    "Scale",
    "at_scale",
    "find_profile",
    "method_at",
]

PUBLISHED_EPOCHS = 200
PUBLISHED_TEMPERATURE = 0.2  # of SiMo and MoCo v2
RATE_WITHOUT_LARS = 0.12  # of SGD at small scales, where a published rate is meant for LARS
SMALL_GRID = 4  # patches along each side of a small image
SMALL_TRANSFORMER = "timm:vit_tiny_patch16_224"  # what a vision transformer becomes


@dataclass(frozen=True, kw_only=True)
class Small:
    """The light encoder on small images, and the settings that go with short trainings."""

    image_size: int
    learning_rate: float | None = None  # None: twice the published, for want of steps
    ema_decay: float = 0.99  # β = 0.999 averages over 1000 steps: too many of a short training
    ema_schedule: Literal["constant", "cosine", "rising"] = "constant"
    temperature: float = 0.1  # in place of the 0.2 of SiMo and MoCo v2


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is.

    Args:
        about: what it is for, in one line.
        data: the data set of `eqco reproduce`.
        accuracy: probe: logistic regression on frozen features; linear: the paper's protocol.
        neighbours: of the kNN accuracy.
        epochs: what 200 epochs of the paper become.
        num_queries: N, where the paper has 256.
        memory: the longest queue, where the paper has 65536: one as long as the data set would
            hold older keys of the query's own image; and the most that is drawn from a bank.
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

    def scaled_epochs(self, epochs: int) -> int:
        """What so many epochs of the paper become.

        >>> PAPER.scaled_epochs(100), DESK.scaled_epochs(100)
        (100, 6)
        """
        return max(1, round(epochs * self.epochs / PUBLISHED_EPOCHS))


PAPER = Scale(
    about="the published setting: ResNet-50, 224 pixels, 200 epochs, for GPUs and ImageNet",
    data="imagenet",
    accuracy="linear",
    neighbours=200,
    epochs=200,
    num_queries=256,
    memory=65536,
    intervals={"log_every": 100, "diagnose_every": 1000},
)
DESK = Scale(
    about="light encoder, 16 pixels, 12 epochs: a small real setting that two CPU cores manage",
    data="cifar10",
    neighbours=200,
    epochs=12,
    num_queries=256,
    memory=4096,
    intervals={"save_every": 3},
    # The paper loses most at low temperature (MoCo v1, τ = 0.07), so that is where to look.
    # Rate and τ were chosen by kNN on K = 255 without EqCo, seed 100, 4 epochs.
    small=Small(image_size=16, learning_rate=0.12),
)
FEW_IMAGES = Scale(
    about="light encoder, 16 pixels, 40 epochs of 5,000 images: a small set, seen many times",
    data="cifar10-5000",
    neighbours=200,
    epochs=40,
    num_queries=256,
    memory=1024,
    intervals={"save_every": 10, "diagnose_every": 10},
    # Chosen by kNN on K = 255 without EqCo, seed 100, on training images held out; there MoCo v2
    # with a rising β learns hardly anything, and 0.99 throughout is 5 points above 0.9.
    small=Small(image_size=16, learning_rate=0.12, ema_schedule="rising"),
)
EMBEDDED = Scale(
    about="light encoder, 32 pixels, 100 epochs of the embedded photos, where CIFAR-10 is not at "
    "hand",
    data="groceries",
    neighbours=20,
    epochs=100,
    num_queries=64,
    memory=512,
    intervals={"save_every": 25},
    small=Small(image_size=32, learning_rate=0.06),
)
FOLDER = Scale(
    about="light encoder, 32 pixels, 20 epochs: your own photos in minutes to hours on two cores",
    data="cifar10",
    neighbours=200,
    epochs=20,
    num_queries=256,
    memory=4096,
    intervals={"save_every": 5},
    small=Small(image_size=32, temperature=0.2),
)
DEMO = Scale(
    about="light encoder, 32 pixels, 200 epochs of a small set: about two minutes",
    data="groceries",
    neighbours=20,
    epochs=200,
    num_queries=128,
    memory=256,
    intervals={"save_every": 5},
    small=Small(image_size=32, temperature=0.2),
)
SMOKE = Scale(
    about="seconds on a CPU: shows that it runs, its numbers mean nothing",
    data="groceries",
    neighbours=20,
    epochs=1,
    num_queries=32,
    memory=256,
    intervals={"log_every": 5, "diagnose_every": 5},
    small=Small(image_size=16, learning_rate=0.06),
)
PROFILES = {
    **{"paper": PAPER, "desk": DESK, "folder": FOLDER},
    **{"few-images": FEW_IMAGES, "embedded": EMBEDDED, "demo": DEMO, "smoke": SMOKE},
}
# those of the figures and tables
SCALES = {
    **{"smoke": SMOKE, "desk": DESK, "few-images": FEW_IMAGES},
    **{"embedded": EMBEDDED, "paper": PAPER},
}


def find_profile(name: str) -> Scale:
    """The scale of that name."""
    if name not in PROFILES:
        raise InputError(f"there is no profile {name!r}. There are: {', '.join(PROFILES)}.")
    return PROFILES[name]


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
    length, small = scale.scaled_epochs(epochs), scale.small
    num_queries = num_queries or scale.num_queries
    method = method_at(recipe, num_queries)
    changed: dict[str, Any] = {
        "training": replace(
            recipe.training, epochs=length, num_queries=num_queries, **scale.intervals
        ),
        "optimiser": scale_optimiser(recipe.optimiser, length, scale),
    }
    if small is None:
        return replace(recipe, **changed, method=method, data=replace(recipe.data, workers=8))
    if recipe.objective.temperature == PUBLISHED_TEMPERATURE:
        changed["objective"] = replace(recipe.objective, temperature=small.temperature)
    # patches of 16 pixels: an image of twice the side has at least four of them
    transformer = recipe.encoder.backbone.startswith("timm:vit")
    light = "light-ln" if recipe.encoder.has_layer_norm else "light"
    return replace(
        recipe,
        **changed,
        method=scale_method(
            method, small.ema_decay, scale.memory, ema_schedule=small.ema_schedule, length=length
        ),
        data=replace(recipe.data, image_size=small.image_size * (2 if transformer else 1)),
        encoder=replace(
            recipe.encoder,
            backbone=SMALL_TRANSFORMER if transformer else light,
            bn_groups=min(2, recipe.encoder.bn_groups),
        ),
    )


def method_at(recipe: Recipe, num_queries: int) -> MethodSettings:
    """The recipe's method for another N: as many negatives as queries stay as many.

    >>> from eqco.recipes import RECIPES
    >>> [method_at(RECIPES[name], 64).num_negatives(64) for name in ("simo", "simclr")]
    [16, 64]
    """
    if getattr(recipe.method, "count", None) != recipe.training.num_queries:
        return recipe.method
    changes: dict[str, Any] = {"count": num_queries}
    return replace(recipe.method, **changes)


def scale_method(
    method: MethodSettings,
    ema_decay: float,
    memory: int,
    *,
    ema_schedule: str = "constant",
    length: int = PUBLISHED_EPOCHS,
) -> MethodSettings:
    """A key encoder that keeps up, a memory, prototypes and patches that fit, where the method has
    them; what begins at some epoch does so at its share of `length` epochs.

    Keys of a memory come from encoders of many steps, which must be alike: there β is constant.
    """
    given = asdict(method)
    changes: dict[str, Any] = {
        "ema_decay": ema_decay,
        "queue_size": min(method.queue_size, memory),
        "num_prototypes": min(given.get("num_prototypes", 0), memory),
        "grid": min(given.get("grid", SMALL_GRID), SMALL_GRID),
        "queue_epoch": round(given.get("queue_epoch", 0) * length / PUBLISHED_EPOCHS),
    }
    if ema_schedule != "constant" and not method.queue_size:  # else the method's own
        changes["ema_schedule"] = ema_schedule
    if method.num_banks:
        changes["count"] = min(given["count"], memory)
    return replace(method, **{name: changes[name] for name in changes.keys() & given})


def scale_optimiser(optimiser: OptimiserSettings, length: int, scale: Scale) -> OptimiserSettings:
    """Warm-up at its share of the usual training, drops at theirs of one of that length.

    A small network is trained by SGD: LARS is for large batches.
    """
    drops = {round(drop * length / PUBLISHED_EPOCHS) for drop in optimiser.drops}
    if scale.small is not None and optimiser.name != "adamw":  # which has a rate of its own
        rate = scale.small.learning_rate
        if rate is None:
            published = 2 * optimiser.base_learning_rate
            rate = RATE_WITHOUT_LARS if optimiser.name == "lars" else published
        usual = OptimiserSettings()
        optimiser = replace(
            optimiser,
            name=usual.name,
            base_learning_rate=rate,
            reference=usual.reference,
            rule=usual.rule,
        )
    return replace(
        optimiser,
        warmup_epochs=optimiser.warmup_epochs * scale.epochs / PUBLISHED_EPOCHS,
        drops=tuple(sorted(drop for drop in drops if 0 < drop < length)),
    )
