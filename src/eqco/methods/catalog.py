"""All frameworks by name: add one by writing its file and a line here."""

from eqco.methods.base import Method
from eqco.methods.moco import MoCo
from eqco.methods.simclr import SimCLR
from eqco.methods.simo import SiMo

__all__ = ["METHODS"]

METHODS: dict[str, type[Method]] = {"simo": SiMo, "moco": MoCo, "simclr": SimCLR}
