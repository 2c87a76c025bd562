"""All methods by name: add one by writing its file and a line here."""

from eqco.methods.base import MethodSettings
from eqco.methods.cmc import CMCSettings
from eqco.methods.infomin import InfoMinSettings
from eqco.methods.cpc import CPCSettings
from eqco.methods.moco import MoCoSettings
from eqco.methods.pirl import PIRLSettings
from eqco.methods.simclr import SimCLRSettings
from eqco.methods.simo import SiMoSettings

__all__ = ["METHODS"]

METHODS: dict[str, type[MethodSettings]] = {
    settings.name: settings
    for settings in (
        SiMoSettings,
        MoCoSettings,
        SimCLRSettings,
        CMCSettings,
        PIRLSettings,
        InfoMinSettings,
        CPCSettings,
    )
}
