"""Estimators of mutual information, tried on correlated Gaussians (Table 5)."""

from eqco.mutual_information.critics import StackedCritics
from eqco.mutual_information.draws import PairDraws
from eqco.mutual_information.estimators import EqCo, InfoNCE, MultiLabelCPC, named_estimators
from eqco.mutual_information.measurement import Reading, measure

__all__ = [
    "EqCo",
    "InfoNCE",
    "MultiLabelCPC",
    "PairDraws",
    "Reading",
    "StackedCritics",
    "measure",
    "named_estimators",
]
