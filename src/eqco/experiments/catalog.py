"""All experiments by name: add one by writing its file and a line here."""

from typing import Any

from eqco.experiments.ablations import TAB1, TAB3, TAB4, TAB6, TAB7
from eqco.experiments.examples import CIFAR_SIMO, DEMO
from eqco.experiments.experiment import Experiment
from eqco.experiments.fig1 import FIG1
from eqco.experiments.fig2 import FIG2
from eqco.experiments.fig3 import FIG3
from eqco.experiments.fig4 import FIG4
from eqco.experiments.studies import (
    STUDY_FEW_NEGATIVES,
    STUDY_LARGE_BATCH,
    STUDY_LENGTH,
    STUDY_MOMENTUM,
    STUDY_PRECISION,
    STUDY_RECIPES,
    STUDY_SMALL_BATCH,
)
from eqco.experiments.study_alpha import STUDY_ALPHA
from eqco.experiments.study_bound import STUDY_BOUND
from eqco.experiments.study_gradients import STUDY_GRADIENTS
from eqco.experiments.study_rate import STUDY_RATE
from eqco.experiments.study_saturation import STUDY_SATURATION
from eqco.experiments.study_small_folder import STUDY_SMALL_FOLDER
from eqco.experiments.study_text import STUDY_TEXT
from eqco.experiments.tab2 import TAB2
from eqco.experiments.tab5 import TAB5
from eqco.experiments.tab8 import TAB8
from eqco.experiments.tab9 import TAB9
from eqco.runtime.errors import InputError

__all__ = ["EXPERIMENTS", "find_experiment"]

# in the order in which `eqco reproduce all` does them
EXPERIMENTS: dict[str, Experiment[Any]] = {
    experiment.name: experiment
    for experiment in (
        TAB5,
        FIG4,
        STUDY_RATE,
        STUDY_SMALL_FOLDER,
        STUDY_ALPHA,
        STUDY_FEW_NEGATIVES,
        STUDY_GRADIENTS,
        STUDY_SATURATION,
        STUDY_SMALL_BATCH,
        STUDY_LENGTH,
        STUDY_MOMENTUM,
        FIG1,
        FIG2,
        TAB3,
        FIG3,
        TAB1,
        STUDY_LARGE_BATCH,
        TAB2,
        TAB4,
        TAB6,
        TAB7,
        TAB8,
        STUDY_BOUND,
        STUDY_TEXT,
        STUDY_PRECISION,
        STUDY_RECIPES,
        DEMO,
        CIFAR_SIMO,
        TAB9,
    )
}


def find_experiment(name: str) -> Experiment[Any]:
    """The experiment of that name.

    >>> find_experiment("tab5").name
    'tab5'
    """
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}. There are: {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
