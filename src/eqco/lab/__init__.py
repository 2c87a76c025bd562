"""Mutual information between correlated Gaussians: what the estimates are worth (Table 5)."""

from eqco.lab.critics import StackedCritics, Workspace
from eqco.lab.draws import PairDraws, random_source
from eqco.lab.estimators import (
    ESTIMATORS,
    EqCo,
    Estimator,
    InfoNCE,
    MultiLabelCPC,
    named_estimators,
)
from eqco.lab.measurement import Reading, measure

__all__ = [
    "ESTIMATORS",
    "EqCo",
    "Estimator",
    "InfoNCE",
    "MultiLabelCPC",
    "PairDraws",
    "Reading",
    "StackedCritics",
    "Workspace",
    "measure",
    "named_estimators",
    "random_source",
]
