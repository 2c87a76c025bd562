"""What a profile runs on: the data, and what it changes in the published recipes."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eqco.evaluation.linear import LINEAR_PROTOCOLS
from eqco.experiments.experiment import Recipe
from eqco.recipes import RECIPES, recipe_to_dict
from eqco.recipes import Recipe as TrainingRecipe
from eqco.recipes.schema import OptimiserSettings

__all__ = ["DESK", "EMBEDDED", "PAPER", "SCALES", "SMOKE", "Scale", "moco", "simclr", "simo"]

PUBLISHED_EPOCHS = 200
GRADIENT_MOMENTS = 4  # Fig. 2 looks at a quarter, a half, three quarters and the end


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is.

    Args:
        data: the data set.
        accuracy: probe: logistic regression on frozen features; linear: the paper's protocol.
        neighbours: of the kNN accuracy.
        epochs: what 200 epochs of the paper become.
        num_queries: N, where the paper has 256.
        memory: the largest memory of MoCo, where the paper has 65536.
        training: settings of the run, beside N and epochs.
        small: what networks and images become; None: as published.
    """

    data: str
    accuracy: Literal["probe", "linear"]
    neighbours: int
    epochs: int
    num_queries: int
    memory: int
    training: dict[str, Any]
    small: "Small | None" = None

    def shortened(self, epochs: int) -> int:
        """What so many epochs of the paper become.

        >>> PAPER.shortened(100), DESK.shortened(100)
        (100, 6)
        """
        return max(1, round(epochs * self.epochs / PUBLISHED_EPOCHS))


@dataclass(frozen=True, kw_only=True)
class Small:
    """The light encoder on small images, and the settings that go with short trainings."""

    image_size: int
    learning_rate: float
    ema_decay: float = 0.99  # β = 0.999 averages over 1000 steps: too many of a short training
    temperature: float | None = None  # of SiMo and MoCo v2; None: as published


PAPER = Scale(
    data="imagenet",
    accuracy="linear",
    neighbours=200,
    epochs=200,
    num_queries=256,
    memory=65536,
    training={"log_every": 100, "diagnose_every": 1000},
)
DESK = Scale(
    data="cifar10",
    accuracy="probe",
    neighbours=200,
    epochs=12,
    num_queries=256,
    memory=4096,
    training={"save_every": 3},
    # The paper loses most at low temperature (MoCo v1, τ = 0.07), so that is where to look.
    # Rate and τ were chosen by kNN on K = 255 without EqCo, seed 100, 4 epochs.
    small=Small(image_size=16, learning_rate=0.12, temperature=0.1),
)
EMBEDDED = Scale(
    data="groceries",
    accuracy="probe",
    neighbours=20,
    epochs=100,
    num_queries=64,
    memory=512,
    training={"save_every": 25},
    small=Small(image_size=32, learning_rate=0.06, temperature=0.1),
)
SMOKE = Scale(
    data="groceries",
    accuracy="probe",
    neighbours=20,
    epochs=1,
    num_queries=32,
    memory=256,
    training={"log_every": 5, "diagnose_every": 5},
    small=Small(image_size=16, learning_rate=0.06, temperature=0.1),
)
SCALES = {"smoke": SMOKE, "desk": DESK, "embedded": EMBEDDED, "paper": PAPER}


def simo(
    scale: Scale,
    *,
    count: int | None,
    alpha: float | None,
    queue: int = 0,
    epochs: int = PUBLISHED_EPOCHS,
    num_queries: int | None = None,
    **changes: Any,
) -> Recipe:
    """A run of SiMo; `epochs` are the paper's, `changes` are of the whole recipe.

    >>> simo(PAPER, count=16, alpha=256)["training"]["negatives"]["count"]
    16
    """
    recipe = RECIPES["simo"]
    recipe = replace(
        recipe,
        negatives=replace(recipe.negatives, count=count, queue=queue),
        objective=replace(recipe.objective, alpha=alpha),
    )
    return scaled(recipe, "simo", scale, epochs, num_queries, changes)


def moco(
    framework: Literal["mocov1", "mocov2"],
    scale: Scale,
    *,
    count: int,
    alpha: float | None,
    epochs: int = PUBLISHED_EPOCHS,
    num_queries: int | None = None,
) -> Recipe:
    """A run of MoCo; the baseline, with all of the memory and no margin, keeps what Fig. 2 needs.

    >>> moco("mocov2", PAPER, count=65536, alpha=None)["training"]["training"]["keep_every"]
    50
    """
    recipe = RECIPES[framework]
    recipe = replace(
        recipe,
        negatives=replace(recipe.negatives, count=count),
        objective=replace(recipe.objective, alpha=alpha),
    )
    if framework == "mocov2" and count == scale.memory and alpha is None:
        keep = max(1, scale.shortened(epochs) // GRADIENT_MOMENTS)
        recipe = replace(recipe, training=replace(recipe.training, keep_every=keep))
    return scaled(recipe, framework, scale, epochs, num_queries, {})


def simclr(scale: Scale, *, count: int, alpha: float | None) -> Recipe:
    """A run of SimCLR; negatives are drawn from both views."""
    recipe = RECIPES["simclr"]
    recipe = replace(
        recipe,
        negatives=replace(recipe.negatives, count=count),
        objective=replace(recipe.objective, alpha=alpha),
    )
    return scaled(recipe, "simclr", scale, PUBLISHED_EPOCHS, None, {})


def scaled(
    recipe: TrainingRecipe,
    framework: str,
    scale: Scale,
    epochs: int,
    num_queries: int | None,
    changes: dict[str, Any],
) -> Recipe:
    """A published recipe at another scale, as an experiment's recipe."""
    alpha = recipe.objective.alpha
    if alpha is not None:  # 256 and 256.0 are one training, and get one name
        recipe = replace(recipe, objective=replace(recipe.objective, alpha=float(alpha)))
    length = scale.shortened(epochs)
    given: dict[str, Any] = {
        "training": replace(
            recipe.training,
            epochs=length,
            num_queries=num_queries or scale.num_queries,
            **scale.training,
        ),
        "optimiser": shortened_optimiser(recipe.optimiser, length, scale),
        "data": replace(recipe.data, workers=8),
    }
    small = scale.small
    if small is not None:
        groups = min(2, recipe.encoder.bn_groups)
        given |= {
            "data": replace(recipe.data, image_size=small.image_size),
            "encoder": replace(recipe.encoder, backbone="light", bn_groups=groups),
            "ema_decay": small.ema_decay,
        }
        if framework in ("simo", "mocov2") and small.temperature is not None:
            given["objective"] = replace(recipe.objective, temperature=small.temperature)
    training = replace(recipe, **(given | changes))
    run = {
        "data": scale.data,
        "framework": framework,
        "accuracy": scale.accuracy,
        "neighbours": scale.neighbours,
        "training": recipe_to_dict(training),
    }
    if scale.accuracy == "linear":
        protocol = asdict(LINEAR_PROTOCOLS["simclr" if framework == "simclr" else "moco"])
        run["linear"] = {**protocol, "drops": list(protocol["drops"])}
    return run


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
        changed = replace(changed, base_learning_rate=scale.small.learning_rate)
    return changed
