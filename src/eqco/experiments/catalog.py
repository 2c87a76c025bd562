"""All experiments by name: add one by writing its file and a line here."""

from typing import Any

from eqco.experiments.examples import CIFAR_SIMO, DEMO
from eqco.experiments.experiment import Experiment
from eqco.experiments.fig1 import FIG1
from eqco.experiments.fig2 import FIG2
from eqco.experiments.fig3 import FIG3
from eqco.experiments.fig4 import FIG4
from eqco.experiments.study_bound import STUDY_BOUND
from eqco.experiments.study_length import STUDY_LENGTH
from eqco.experiments.study_momentum import STUDY_MOMENTUM
from eqco.experiments.study_small_batch import STUDY_SMALL_BATCH
from eqco.experiments.tab1 import TAB1
from eqco.experiments.tab2 import TAB2
from eqco.experiments.tab3 import TAB3
from eqco.experiments.tab4 import TAB4
from eqco.experiments.tab5 import TAB5
from eqco.experiments.tab6 import TAB6
from eqco.experiments.tab7 import TAB7
from eqco.experiments.tab8 import TAB8
from eqco.experiments.tab9 import TAB9
from eqco.runtime.errors import InputError

__all__ = ["EXPERIMENTS", "find_experiment"]

# in the order in which `eqco reproduce all` does them
EXPERIMENTS: dict[str, Experiment[Any]] = {
    "tab5": TAB5,
    "fig4": FIG4,
    "study-small-batch": STUDY_SMALL_BATCH,
    "study-length": STUDY_LENGTH,
    "study-momentum": STUDY_MOMENTUM,
    "fig1": FIG1,
    "fig2": FIG2,
    "tab3": TAB3,
    "fig3": FIG3,
    "tab1": TAB1,
    "tab2": TAB2,
    "tab4": TAB4,
    "tab6": TAB6,
    "tab7": TAB7,
    "tab8": TAB8,
    "study-bound": STUDY_BOUND,
    "demo": DEMO,
    "cifar10-simo": CIFAR_SIMO,
    "tab9": TAB9,
}


def find_experiment(name: str) -> Experiment[Any]:
    """The experiment of that name.

    >>> find_experiment("tab5").name
    'tab5'
    """
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}. There are: {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
