"""The published recipes as values.

Numbers: the paper's implementation details, the authors' released configurations and the original
frameworks; see docs/paper_notes.md.
"""

from dataclasses import replace

from eqco.methods import (
    BYOLSettings,
    CMCSettings,
    CPCSettings,
    InfoMinSettings,
    MoCoSettings,
    MoCoV3Settings,
    PIRLSettings,
    SimCLRSettings,
    SimCLRv2Settings,
    SiMoSettings,
    SwAVSettings,
)
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

# Published for N = 128: a rate of 0.03, and 240 epochs with drops at 120, 160 and 200.
CMC = Recipe(
    method=CMCSettings(count=16384),
    objective=ObjectiveSettings(temperature=0.07),
    data=DataSettings(pipeline="cmc"),
    encoder=EncoderSettings(head="linear"),
    optimiser=OptimiserSettings(base_learning_rate=0.06, schedule="steps", drops=(100, 133, 167)),
)

# Published for N = 1024, with a rate that follows N.
PIRL = Recipe(
    method=PIRLSettings(count=32000),
    objective=ObjectiveSettings(temperature=0.07),
    data=DataSettings(pipeline="pirl"),
    encoder=EncoderSettings(head="linear"),
)

INFOMIN = replace(
    MOCO_V2,
    method=InfoMinSettings(queue_size=65536),
    objective=ObjectiveSettings(temperature=0.15),
    data=DataSettings(pipeline="infomin"),
)

# Paper: 6×6 patches of 80 pixels out of 260; rate and schedule of ResNet-50 are not published, so
# those of MoCo v2 are taken.
CPC_V2 = Recipe(
    method=CPCSettings(),
    objective=ObjectiveSettings(temperature=0.2),
    data=DataSettings(image_size=260),
    encoder=EncoderSettings(backbone="resnet50-ln", head="linear", embedding_dim=64),
    optimiser=OptimiserSettings(warmup_epochs=10),
)

# As released, but for the batch of 256 and the 200 epochs of Table 2 (800 epochs of 4096).
SIMCLR_V2 = Recipe(
    method=SimCLRv2Settings(queue_size=65536),
    objective=ObjectiveSettings(temperature=0.1),
    data=DataSettings(pipeline="simclr"),
    encoder=EncoderSettings(head="simclrv2"),
    optimiser=OptimiserSettings(
        name="lars",
        base_learning_rate=0.075,
        reference=1,
        rule="square-root",
        warmup_epochs=10,
    ),
)

# MoCo v3 and BYOL: the released settings of 300 epochs, which are nearest to 200.
MOCO_V3 = Recipe(
    method=MoCoV3Settings(ema_decay=0.99),
    objective=ObjectiveSettings(temperature=1.0),
    data=DataSettings(pipeline="mocov3"),
    encoder=EncoderSettings(head="mocov3", embedding_dim=256),
    optimiser=OptimiserSettings(
        name="lars", base_learning_rate=0.3, weight_decay=1e-6, warmup_epochs=10
    ),
)

BYOL = Recipe(
    method=BYOLSettings(ema_decay=0.99),
    data=DataSettings(pipeline="byol"),
    encoder=EncoderSettings(head="byol", embedding_dim=256),
    optimiser=OptimiserSettings(
        name="lars", base_learning_rate=0.3, weight_decay=1e-6, warmup_epochs=10
    ),
)

# The released setting of batch 256 and 200 epochs. Its LARC adapts biases and batch norm too, and
# its cosine ends at a thousandth of the rate.
SWAV = Recipe(
    method=SwAVSettings(num_prototypes=3000, queue_size=3840),
    objective=ObjectiveSettings(temperature=0.1),
    data=DataSettings(pipeline="simclr"),
    encoder=EncoderSettings(head="swav"),
    optimiser=OptimiserSettings(name="lars", base_learning_rate=0.6, weight_decay=1e-6),
)

# Optimiser, τ and fixed patches are what MoCo v3 was released with for ViT-S, and SimCLR's α is its
# batch of 4096. Heads, and the crops of MOCO_V3_VIT, are those of ResNets: docs/paper_notes.md
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

MOCO_V3_VIT = replace(
    MOCO_V3,
    objective=ObjectiveSettings(temperature=0.2),
    encoder=replace(VIT, head="mocov3", embedding_dim=256),
    optimiser=VIT_OPTIMISER,
)

RECIPES = {
    "simo": SIMO,
    "mocov1": MOCO_V1,
    "mocov2": MOCO_V2,
    "simclr": SIMCLR,
    "infomin": INFOMIN,
    "cmc": CMC,
    "pirl": PIRL,
    "cpcv2": CPC_V2,
    "simclrv2": SIMCLR_V2,
    "mocov3": MOCO_V3,
    "byol": BYOL,
    "swav": SWAV,
    "simclr-vit": SIMCLR_VIT,
    "mocov3-vit": MOCO_V3_VIT,
}


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
