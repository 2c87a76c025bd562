"""The frameworks: each turns two views into contrasts, and remembers after the step."""

from eqco.methods.base import Method, StepOutput
from eqco.methods.catalog import METHODS
from eqco.methods.moco import MoCo
from eqco.methods.simclr import SimCLR
from eqco.methods.simo import SiMo

__all__ = ["METHODS", "Method", "MoCo", "SiMo", "SimCLR", "StepOutput"]
