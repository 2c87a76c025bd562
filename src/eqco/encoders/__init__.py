"""Networks that turn images into embeddings: backbones, heads, momentum, batch norm."""

from eqco.encoders.architecture import Architecture, architecture_of, in_channels_of
from eqco.encoders.batch_norm import split_batch_norm
from eqco.encoders.colours import ColourHalves, ColourSpace, Half, require_colours
from eqco.encoders.encoder import (
    RESNETS,
    TIMM,
    Encoder,
    backbone_named,
    feature_dim_of,
    pair_encoders,
    timm_encoder,
    timm_size,
)
from eqco.encoders.foreign import fill, state_dict_in, unwrap
from eqco.encoders.heads import (
    byol_head,
    linear_head,
    mlp_head,
    mocov3_head,
    normalised_head,
    simclrv2_head,
    swav_head,
)
from eqco.encoders.light import LightEncoder
from eqco.encoders.momentum import scheduled_ema_decay, update_momentum
from eqco.encoders.pixels import ColourHistogram, Pixels
from eqco.encoders.precision import (
    Precision,
    autocast_to,
    choose_precision,
    has_native_bfloat16,
    unset_gradients,
)
from eqco.encoders.resnet import ResNet, Stem, resnet
from eqco.encoders.sync_batch_norm import (
    SyncBatchNorm1d,
    SyncBatchNorm2d,
    average_running_statistics,
    sync_batch_norm,
)
from eqco.encoders.transformers import fix_patches, resize_input, stored_size

__all__ = [
    "RESNETS",
    "TIMM",
    "Architecture",
    "ColourHalves",
    "ColourHistogram",
    "ColourSpace",
    "Encoder",
    "Half",
    "LightEncoder",
    "Pixels",
    "Precision",
    "ResNet",
    "Stem",
    "SyncBatchNorm1d",
    "SyncBatchNorm2d",
    "architecture_of",
    "autocast_to",
    "average_running_statistics",
    "backbone_named",
    "byol_head",
    "choose_precision",
    "feature_dim_of",
    "fill",
    "fix_patches",
    "has_native_bfloat16",
    "in_channels_of",
    "linear_head",
    "mlp_head",
    "mocov3_head",
    "normalised_head",
    "pair_encoders",
    "require_colours",
    "resize_input",
    "resnet",
    "scheduled_ema_decay",
    "simclrv2_head",
    "split_batch_norm",
    "state_dict_in",
    "stored_size",
    "swav_head",
    "sync_batch_norm",
    "timm_encoder",
    "timm_size",
    "unset_gradients",
    "unwrap",
    "update_momentum",
]
