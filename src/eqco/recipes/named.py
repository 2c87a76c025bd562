"""The published recipes as values, and what the smaller profiles change in them.

Numbers: the paper's implementation details, the authors' released configurations and the original
frameworks; see docs/paper_notes.md.
"""

from dataclasses import replace

from eqco.recipes.schema import (
    DataSettings,
    EncoderSettings,
    NegativesSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
)
from eqco.runtime.errors import InputError

__all__ = ["PROFILES", "RECIPES", "named_recipe"]

SIMO = Recipe(
    method="simo",
    negatives=NegativesSettings(count=16),
    objective=ObjectiveSettings(temperature=0.2, alpha=256),
    optimiser=OptimiserSettings(warmup_epochs=10),
)

MOCO_V2 = Recipe(
    method="moco",
    encoder=EncoderSettings(head="mlp", batch_norm="shuffling", bn_groups=8),
    negatives=NegativesSettings(count=65536),
    objective=ObjectiveSettings(temperature=0.2),
)

MOCO_V1 = replace(
    MOCO_V2,
    data=DataSettings(pipeline="mocov1"),
    encoder=replace(MOCO_V2.encoder, head="linear"),
    objective=ObjectiveSettings(temperature=0.07),
    optimiser=OptimiserSettings(schedule="steps", drops=(120, 160)),
)

SIMCLR = Recipe(
    method="simclr",
    data=DataSettings(pipeline="simclr"),
    negatives=NegativesSettings(count=256),
    objective=ObjectiveSettings(temperature=0.1, alpha=256),
    optimiser=OptimiserSettings(base_learning_rate=0.3, weight_decay=1e-6, warmup_epochs=10),
)

RECIPES = {"simo": SIMO, "mocov1": MOCO_V1, "mocov2": MOCO_V2, "simclr": SIMCLR}

PROFILES = {
    "paper": "the published setting: ResNet-50, 224 pixels, 200 epochs, for GPUs and ImageNet",
    "desk": "light encoder, 32 pixels, 20 epochs: minutes to hours on two cores",
    "demo": "light encoder, 32 pixels, 200 epochs of a small set: about two minutes",
}


def named_recipe(name: str, profile: str = "paper") -> Recipe:
    """A published recipe as one profile runs it.

    >>> named_recipe("simo").negatives.count, named_recipe("simo", "demo").encoder.backbone
    (16, 'light')
    """
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}. There are: {', '.join(RECIPES)}.")
    if profile not in PROFILES:
        raise InputError(f"there is no profile {profile!r}. There are: {', '.join(PROFILES)}.")
    recipe = RECIPES[name]
    if profile == "paper":
        return recipe
    epochs, num_queries = (20, 256) if profile == "desk" else (200, 128)
    negatives = recipe.negatives
    if recipe.method == "moco":
        # a memory as large as the data set would hold older keys of the query's own image
        negatives = replace(negatives, count=4096 if profile == "desk" else 256)
    elif recipe.method == "simclr":  # K = N, as published
        negatives = replace(negatives, count=num_queries)
    return replace(
        recipe,
        # a short run must not lag behind its own encoder: β = 0.999 averages over 1000 steps
        ema_decay=0.99,
        data=replace(recipe.data, image_size=32),
        encoder=replace(
            recipe.encoder, backbone="light", bn_groups=min(2, recipe.encoder.bn_groups)
        ),
        negatives=negatives,
        optimiser=shortened(recipe.optimiser, recipe.training.epochs, epochs),
        training=TrainingSettings(num_queries=num_queries, epochs=epochs, save_every=5),
    )


def shortened(optimiser: OptimiserSettings, published: int, epochs: int) -> OptimiserSettings:
    """Warm-up and drops at the same share of a shorter training, at twice the rate."""
    share = epochs / published
    return replace(
        optimiser,
        # so few steps at the rate of 200 epochs of ImageNet would hardly move
        base_learning_rate=2 * optimiser.base_learning_rate,
        warmup_epochs=round(optimiser.warmup_epochs * share, 2),
        drops=tuple(round(drop * share) for drop in optimiser.drops),
    )
