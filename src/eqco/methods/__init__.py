"""The methods, one file each: settings, views, count of negatives, checks and step."""

from eqco.methods.base import Method, MethodParts, MethodSettings, StepOutput
from eqco.methods.byol import BYOL, BYOLSettings
from eqco.methods.catalog import METHODS
from eqco.methods.moco import MoCo, MoCoSettings
from eqco.methods.mocov3 import MoCoV3, MoCoV3Settings
from eqco.methods.simclr import SimCLR, SimCLRSettings
from eqco.methods.simclrv2 import SimCLRv2, SimCLRv2Settings
from eqco.methods.simo import SiMo, SiMoSettings
from eqco.methods.swav import SwAV, SwAVSettings

__all__ = [
    "BYOL",
    "METHODS",
    "BYOLSettings",
    "Method",
    "MethodParts",
    "MethodSettings",
    "MoCo",
    "MoCoSettings",
    "MoCoV3",
    "MoCoV3Settings",
    "SiMo",
    "SiMoSettings",
    "SimCLR",
    "SimCLRSettings",
    "SimCLRv2",
    "SimCLRv2Settings",
    "StepOutput",
    "SwAV",
    "SwAVSettings",
]
