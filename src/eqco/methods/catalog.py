"""All methods by name: add one by writing its file and a line here."""

from eqco.methods.base import MethodSettings
from eqco.methods.byol import BYOLSettings
from eqco.methods.moco import MoCoSettings
from eqco.methods.mocov3 import MoCoV3Settings
from eqco.methods.simclr import SimCLRSettings
from eqco.methods.simclrv2 import SimCLRv2Settings
from eqco.methods.simo import SiMoSettings
from eqco.methods.swav import SwAVSettings

__all__ = ["METHODS"]

METHODS: dict[str, type[MethodSettings]] = {
    settings.name: settings
    for settings in (
        SiMoSettings,
        MoCoSettings,
        SimCLRSettings,
        SimCLRv2Settings,
        MoCoV3Settings,
        BYOLSettings,
        SwAVSettings,
    )
}
