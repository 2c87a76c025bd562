"""The published recipes as values.

Numbers: the paper's implementation details, the authors' released configurations and the original
frameworks; see docs/paper_notes.md.
"""

from dataclasses import replace

from eqco.methods import MoCoSettings, SimCLRSettings, SiMoSettings
from eqco.recipes.profiles import at_scale, find_profile
from eqco.recipes.schema import (
    DataSettings,
    EncoderSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
)
from eqco.runtime.errors import InputError

__all__ = ["RECIPES", "named_recipe"]

# for data of one's own; the others are what records were made with, in float32
AUTOMATIC_PROFILES = ("folder", "embedded", "demo")

SIMO = Recipe(
    method=SiMoSettings(count=16),
    objective=ObjectiveSettings(temperature=0.2, alpha=256),
    optimiser=OptimiserSettings(warmup_epochs=10),
)

MOCO_V2 = Recipe(
    method=MoCoSettings(queue_size=65536),
    objective=ObjectiveSettings(temperature=0.2),
    encoder=EncoderSettings(head="mlp", bn_groups=8),
)

MOCO_V1 = replace(
    MOCO_V2,
    objective=ObjectiveSettings(temperature=0.07),
    data=DataSettings(pipeline="mocov1"),
    encoder=replace(MOCO_V2.encoder, head="linear"),
    optimiser=OptimiserSettings(schedule="steps", drops=(120, 160)),
)

SIMCLR = Recipe(
    method=SimCLRSettings(count=256),
    objective=ObjectiveSettings(temperature=0.1, alpha=256),
    data=DataSettings(pipeline="simclr"),
    optimiser=OptimiserSettings(base_learning_rate=0.3, weight_decay=1e-6, warmup_epochs=10),
)

# MoCo v3's settings for vision transformers; α is what its batch of 4096 has negatives
VIT = EncoderSettings(backbone="timm:vit_small_patch16_224", fixed_patches=True)
VIT_OPTIMISER = OptimiserSettings(
    name="adamw", base_learning_rate=1.5e-4, weight_decay=0.1, warmup_epochs=40
)
SIMCLR_VIT = replace(
    SIMCLR,
    objective=ObjectiveSettings(temperature=0.2, alpha=4096),
    encoder=VIT,
    optimiser=VIT_OPTIMISER,
)

RECIPES = {"simo": SIMO, "mocov1": MOCO_V1, "mocov2": MOCO_V2, "simclr": SIMCLR}
RECIPES |= {"simclr-vit": SIMCLR_VIT}


def named_recipe(name: str, profile: str = "paper") -> Recipe:
    """A published recipe as `eqco train` runs it with one profile.

    >>> named_recipe("mocov2").method.queue_size, named_recipe("mocov2", "demo").method.queue_size
    (65536, 256)
    """
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}. There are: {', '.join(RECIPES)}.")
    recipe = at_scale(RECIPES[name], find_profile(profile))
    if profile not in AUTOMATIC_PROFILES:
        return recipe
    return replace(recipe, training=replace(recipe.training, precision="auto", compile="auto"))
