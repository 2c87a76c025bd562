"""All experiments by name: add one by writing its file and a line here."""

from eqco.experiments.experiment import Experiment
from eqco.experiments.pretraining import CIFAR_SIMO, DEMO
from eqco.experiments.study_bound import STUDY_BOUND
from eqco.experiments.tab5 import TAB5
from eqco.runtime.errors import InputError

__all__ = ["EXPERIMENTS", "find_experiment"]

EXPERIMENTS: dict[str, Experiment] = {
    "tab5": TAB5,
    "study-bound": STUDY_BOUND,
    "demo": DEMO,
    "cifar10-simo": CIFAR_SIMO,
}


def find_experiment(name: str) -> Experiment:
    """The experiment of that name.

    >>> find_experiment("tab5").name
    'tab5'
    """
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}. There are: {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
