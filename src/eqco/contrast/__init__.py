"""Which keys each query is scored against, and Eq. 1 over them."""

from eqco.contrast.caching import cached_backward
from eqco.contrast.diagnostics import Diagnostics, diagnose
from eqco.contrast.in_batch import in_batch_negatives
from eqco.contrast.loss import contrastive_loss
from eqco.contrast.memory_bank import MemoryBank
from eqco.contrast.modules import EqCoLoss, NTXentLoss
from eqco.contrast.nce import NCEObjective
from eqco.contrast.negatives import Contrast, Negatives, combine_negatives
from eqco.contrast.normaliser import RunningNormaliser
from eqco.contrast.objective import Objective
from eqco.contrast.queue import KeyQueue
from eqco.contrast.sampled import sampled_negatives
from eqco.contrast.slow_copy import SlowCopy
from eqco.contrast.temperature import LearnableTemperature
from eqco.contrast.two_towers import TwoTowerLoss

__all__ = [
    "Contrast",
    "Diagnostics",
    "EqCoLoss",
    "KeyQueue",
    "LearnableTemperature",
    "MemoryBank",
    "NCEObjective",
    "NTXentLoss",
    "Negatives",
    "Objective",
    "RunningNormaliser",
    "SlowCopy",
    "TwoTowerLoss",
    "cached_backward",
    "combine_negatives",
    "contrastive_loss",
    "diagnose",
    "in_batch_negatives",
    "sampled_negatives",
]
