"""The methods, one file each: settings, views, count of negatives, checks and step."""

from eqco.methods.base import Method, MethodParts, MethodSettings, StepOutput
from eqco.methods.byol import BYOL, BYOLSettings
from eqco.methods.catalog import METHODS
from eqco.methods.cmc import CMC, CMCSettings
from eqco.methods.cpc import CPC, CPCSettings
from eqco.methods.infomin import InfoMin, InfoMinSettings
from eqco.methods.moco import MoCo, MoCoSettings
from eqco.methods.mocov3 import MoCoV3, MoCoV3Settings
from eqco.methods.pirl import PIRL, PIRLSettings
from eqco.methods.simclr import SimCLR, SimCLRSettings
from eqco.methods.simclrv2 import SimCLRv2, SimCLRv2Settings
from eqco.methods.simo import SiMo, SiMoSettings
from eqco.methods.swav import SwAV, SwAVSettings

__all__ = [
    "BYOL",
    "CMC",
    "CPC",
    "METHODS",
    "PIRL",
    "BYOLSettings",
    "CMCSettings",
    "CPCSettings",
    "InfoMin",
    "InfoMinSettings",
    "Method",
    "MethodParts",
    "MethodSettings",
    "MoCo",
    "MoCoSettings",
    "MoCoV3",
    "MoCoV3Settings",
    "PIRLSettings",
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
