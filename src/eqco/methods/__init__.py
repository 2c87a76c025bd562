"""The methods, one file each: settings, views, count of negatives, checks and step."""

from eqco.methods.base import Method, MethodParts, MethodSettings, StepOutput
from eqco.methods.catalog import METHODS
from eqco.methods.cpc import CPC, CPCSettings
from eqco.methods.moco import MoCo, MoCoSettings
from eqco.methods.simclr import SimCLR, SimCLRSettings
from eqco.methods.simo import SiMo, SiMoSettings

__all__ = [
    "CPC",
    "METHODS",
    "CPCSettings",
    "Method",
    "MethodParts",
    "MethodSettings",
    "MoCo",
    "MoCoSettings",
    "SiMo",
    "SiMoSettings",
    "SimCLR",
    "SimCLRSettings",
    "StepOutput",
]
