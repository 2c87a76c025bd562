"""Networks that turn images into embeddings: backbones, heads, momentum, batch norm."""

from eqco.encoders.batch_norm import SplitBatchNorm1d, SplitBatchNorm2d, split_batch_norm
from eqco.encoders.encoder import Encoder, backbone_named, feature_dim_of
from eqco.encoders.heads import linear_head, mlp_head, normalised_head
from eqco.encoders.light import LightEncoder
from eqco.encoders.momentum import update_momentum
from eqco.encoders.resnet import ResNet, Stem, resnet
from eqco.encoders.timm_bridge import timm_encoder

__all__ = [
    "Encoder",
    "LightEncoder",
    "ResNet",
    "SplitBatchNorm1d",
    "SplitBatchNorm2d",
    "Stem",
    "backbone_named",
    "feature_dim_of",
    "linear_head",
    "mlp_head",
    "normalised_head",
    "resnet",
    "split_batch_norm",
    "timm_encoder",
    "update_momentum",
]
