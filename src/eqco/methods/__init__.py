"""The methods, one file each: settings, views, count of negatives, checks and step."""

from eqco.methods.base import Method, MethodParts, MethodSettings, StepOutput
from eqco.methods.catalog import METHODS
from eqco.methods.cmc import CMC, CMCSettings
from eqco.methods.infomin import InfoMin, InfoMinSettings
from eqco.methods.cpc import CPC, CPCSettings
from eqco.methods.moco import MoCo, MoCoSettings
from eqco.methods.pirl import PIRL, PIRLSettings
from eqco.methods.simclr import SimCLR, SimCLRSettings
from eqco.methods.simo import SiMo, SiMoSettings

__all__ = [
    "CMC",
    "CPC",
    "METHODS",
    "PIRL",
    "CMCSettings",
    "CPCSettings",
    "InfoMin",
    "InfoMinSettings",
    "Method",
    "MethodParts",
    "MethodSettings",
    "MoCo",
    "MoCoSettings",
    "PIRLSettings",
    "SiMo",
    "SiMoSettings",
    "SimCLR",
    "SimCLRSettings",
    "StepOutput",
]
