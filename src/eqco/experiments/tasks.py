"""Trainings that experiments ask for: from coordinates to a recipe, in this file alone."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from eqco.evaluation.linear import LINEAR_PROTOCOLS, LinearProtocol
from eqco.methods import MoCoSettings, SimCLRSettings, SiMoSettings
from eqco.methods.base import MethodSettings
from eqco.recipes import RECIPES, Recipe, recipe_to_dict, with_settings
from eqco.recipes.profiles import PUBLISHED_EPOCHS, Scale, at_scale
from eqco.recipes.rules import BASE
from eqco.runtime.records import recipe_hash

__all__ = [
    "GradientTask",
    "TrainingTask",
    "framework",
    "moco",
    "short_recipe",
    "simclr",
    "simo",
    "small_folder",
]

GRADIENT_MOMENTS = 4  # a quarter, a half, three quarters and the end
# By which linear protocol a recipe is evaluated, where that is not MoCo's: features of LARS and of
# transformers are of another size. Paper: those of CPC v2 and of SimCLR with a transformer are not
# published for these networks.
PROTOCOLS = {"simclr": "simclr", "simclrv2": "simclr", "mocov3": "mocov3", "byol": "byol"}
PROTOCOLS |= {"swav": "swav", **dict.fromkeys(("infomin", "cmc", "pirl"), "pycontrast")}
PROTOCOLS |= dict.fromkeys(("mocov3-vit", "simclr-vit"), "mocov3-vit")


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """One training, and how its encoder is evaluated: what a record of `trainings` is of.

    Args:
        data: name of the data set.
        recipe: of the training; its seed is the record's.
        neighbours: of the kNN accuracy.
        accuracy: probe: logistic regression; the paper's protocol; None: by kNN alone.
    """

    data: str
    recipe: Recipe
    neighbours: int
    accuracy: Literal["probe"] | LinearProtocol | None

    @property
    def metric(self) -> str:
        """The accuracy by its name among the metrics."""
        return "linear" if isinstance(self.accuracy, LinearProtocol) else self.accuracy or "knn"

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        linear = self.accuracy if isinstance(self.accuracy, LinearProtocol) else None
        return {
            "data": self.data,
            "training": recipe_to_dict(self.recipe),
            "neighbours": self.neighbours,
            "accuracy": self.metric,
            **({"linear": {**asdict(linear), "drops": list(linear.drops)}} if linear else {}),
        }

    def run_name(self, seed: int) -> str:
        """The folder of the training, named after all that it depends on."""
        named = recipe_hash({"data": self.data, "training": recipe_to_dict(self.recipe)})
        return f"{self.data}-{named}-{seed}"


@dataclass(frozen=True, kw_only=True)
class GradientTask:
    """One plain training, and what to ask of its moments: counts of negatives, α, batches."""

    training: TrainingTask
    counts: tuple[int, ...]
    alpha: float
    batches: int

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        return {
            "data": self.training.data,
            "training": recipe_to_dict(self.training.recipe),
            "counts": list(self.counts),
            "alpha": self.alpha,
            "batches": self.batches,
        }


def simo(
    scale: Scale,
    *,
    count: int | None,
    alpha: float | None,
    queue: int = 0,
    epochs: int = PUBLISHED_EPOCHS,
    num_queries: int | None = None,
    encoder: dict[str, Any] | None = None,
    **method: Any,
) -> TrainingTask:
    """A training of SiMo; `epochs` are the paper's, `encoder` and `method` are changed settings.

    >>> from eqco.recipes.profiles import PAPER
    >>> simo(PAPER, count=16, alpha=256).recipe.method.count
    16
    """
    published = replace(RECIPES["simo"], method=SiMoSettings(count=count, queue_size=queue))
    recipe = at_scale(with_alpha(published, alpha), scale, epochs=epochs, num_queries=num_queries)
    recipe = replace(
        recipe,
        method=replace(recipe.method, **method),
        encoder=replace(recipe.encoder, **(encoder or {})),
    )
    return evaluation_task(recipe, scale)


def moco(
    framework: Literal["mocov1", "mocov2"],
    scale: Scale,
    *,
    count: int,
    alpha: float | None,
    epochs: int = PUBLISHED_EPOCHS,
    num_queries: int | None = None,
) -> TrainingTask:
    """A training of MoCo; the baseline, with all of the memory and no margin, keeps what Fig. 2
    needs.

    >>> from eqco.recipes.profiles import PAPER
    >>> moco("mocov2", PAPER, count=65536, alpha=None).recipe.training.keep_every
    50
    """
    published = with_alpha(
        replace(RECIPES[framework], method=MoCoSettings(queue_size=count)), alpha
    )
    recipe = at_scale(published, scale, epochs=epochs, num_queries=num_queries)
    baseline = replace(RECIPES["mocov2"], method=MoCoSettings(queue_size=scale.memory))
    if published == baseline:
        keep = max(1, recipe.training.epochs // GRADIENT_MOMENTS)
        recipe = replace(recipe, training=replace(recipe.training, keep_every=keep))
    return evaluation_task(recipe, scale)


def framework(
    name: str,
    scale: Scale,
    *,
    alpha: float | None = None,
    few: int | None = None,
    epochs: int = PUBLISHED_EPOCHS,
) -> TrainingTask:
    """A training of any recipe; `few` is its K in place of what its memory and its batch have:
    drawn from its batch or its bank, or else the length of its memory.

    >>> from eqco.recipes.profiles import DESK
    >>> framework("infomin", DESK, few=64, alpha=4096).recipe.method.num_negatives(256)
    64
    """
    recipe = at_scale(with_alpha(RECIPES[name], alpha), scale, epochs=epochs)
    if few is not None:
        drawing = recipe.method.able_to_draw()
        own = asdict(drawing)
        wanted = {"count": few, "queue_size": 0} if "count" in own else {"queue_size": few}
        changes: dict[str, Any] = {name: wanted[name] for name in wanted.keys() & own}
        recipe = replace(recipe, method=replace(drawing, **changes))
    return evaluation_task(recipe, scale, PROTOCOLS.get(name, "moco"))


def simclr(scale: Scale, *, count: int, alpha: float | None) -> TrainingTask:
    """A training of SimCLR; negatives are drawn from both views."""
    published = replace(RECIPES["simclr"], method=SimCLRSettings(count=count))
    return evaluation_task(at_scale(with_alpha(published, alpha), scale), scale, "simclr")


def short_recipe(
    method: MethodSettings = BASE.method,
    *,
    num_queries: int,
    epochs: int,
    image_size: int,
    **settings: Any,
) -> Recipe:
    """What `eqco train` chooses for a small folder, or another method, at a length that allows for
    many seeds.
    """
    return with_settings(
        replace(BASE, method=method),
        image_size=image_size,
        num_queries=num_queries,
        epochs=epochs,
        warmup_epochs=epochs / 20,
        precision="bfloat16",
        compile=False,
        save_every=epochs,
        diagnose_every=50,
        **settings,
    )


def small_folder(
    recipe: Recipe,
    method: MethodSettings,
    *,
    alpha: float | None,
    accuracy: Literal["probe"] | None = None,
) -> TrainingTask:
    """A training on the embedded photos of hands, with a method and an α."""
    recipe = with_alpha(replace(recipe, method=method), alpha)
    return TrainingTask(data="signs", recipe=recipe, neighbours=20, accuracy=accuracy)


def with_alpha(recipe: Recipe, alpha: float | None) -> Recipe:
    """The recipe with an α: 256 and 256.0 are one training, and get one name."""
    exact = None if alpha is None else float(alpha)
    return replace(recipe, objective=replace(recipe.objective, alpha=exact))


def evaluation_task(recipe: Recipe, scale: Scale, protocol: str = "moco") -> TrainingTask:
    """The training on the data of a scale, and its accuracy."""
    return TrainingTask(
        data=scale.data,
        recipe=recipe,
        neighbours=scale.neighbours,
        accuracy="probe" if scale.accuracy == "probe" else LINEAR_PROTOCOLS[protocol],
    )
