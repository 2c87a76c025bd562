"""What a profile runs on: the data, and what it changes in the published recipes."""

from dataclasses import asdict, replace
from typing import Any, Literal

from eqco.evaluation.linear import LINEAR_PROTOCOLS
from eqco.experiments.experiment import Recipe
from eqco.methods import MoCoSettings, SimCLRSettings, SiMoSettings
from eqco.recipes import RECIPES, recipe_to_dict
from eqco.recipes import Recipe as TrainingRecipe
from eqco.recipes.profiles import (
    DESK,
    EMBEDDED,
    PAPER,
    PUBLISHED_EPOCHS,
    SMOKE,
    Scale,
    at_scale,
)
from eqco.recipes.schema import EncoderSettings

__all__ = ["DESK", "EMBEDDED", "PAPER", "SMOKE", "Scale", "moco", "simclr", "simo"]

GRADIENT_MOMENTS = 4  # Fig. 2 looks at a quarter, a half, three quarters and the end


def simo(
    scale: Scale,
    *,
    count: int | None,
    alpha: float | None,
    queue: int = 0,
    epochs: int = PUBLISHED_EPOCHS,
    num_queries: int | None = None,
    encoder: EncoderSettings | None = None,
    **method: Any,
) -> Recipe:
    """A run of SiMo; `epochs` are the paper's, `encoder` and `method` replace the scale's.

    >>> simo(PAPER, count=16, alpha=256)["training"]["method"]["count"]
    16
    """
    recipe = RECIPES["simo"]
    recipe = replace(
        recipe,
        method=SiMoSettings(count=count, queue_size=queue),
        objective=replace(recipe.objective, alpha=alpha),
    )
    return scaled(recipe, "simo", scale, epochs, num_queries, encoder, **method)


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
        method=MoCoSettings(queue_size=count),
        objective=replace(recipe.objective, alpha=alpha),
    )
    if framework == "mocov2" and count == scale.memory and alpha is None:
        keep = max(1, scale.shortened(epochs) // GRADIENT_MOMENTS)
        recipe = replace(recipe, training=replace(recipe.training, keep_every=keep))
    return scaled(recipe, framework, scale, epochs, num_queries)


def simclr(scale: Scale, *, count: int, alpha: float | None) -> Recipe:
    """A run of SimCLR; negatives are drawn from both views."""
    recipe = RECIPES["simclr"]
    recipe = replace(
        recipe,
        method=SimCLRSettings(count=count),
        objective=replace(recipe.objective, alpha=alpha),
    )
    return scaled(recipe, "simclr", scale, PUBLISHED_EPOCHS, None)


def scaled(
    recipe: TrainingRecipe,
    framework: str,
    scale: Scale,
    epochs: int,
    num_queries: int | None,
    encoder: EncoderSettings | None = None,
    **method: Any,
) -> Recipe:
    """A published recipe at another scale, as an experiment's recipe."""
    alpha = recipe.objective.alpha
    if alpha is not None:  # 256 and 256.0 are one training, and get one name
        recipe = replace(recipe, objective=replace(recipe.objective, alpha=float(alpha)))
    training = at_scale(recipe, scale, epochs=epochs, num_queries=num_queries)
    training = replace(
        training,
        method=replace(training.method, **method),
        encoder=training.encoder if encoder is None else encoder,
    )
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
