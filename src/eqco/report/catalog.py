"""Which experiments have a picture: add one by writing its file and a line here."""

from collections.abc import Callable, Sequence
from pathlib import Path

from eqco.report.pretraining import plot_pretraining
from eqco.report.study_bound import plot_study_bound
from eqco.report.tab5 import plot_tab5
from eqco.runtime.records import Record

__all__ = ["PLOTS"]

PLOTS: dict[str, Callable[[Sequence[Record], Path], Path]] = {
    "tab5": plot_tab5,
    "study-bound": plot_study_bound,
    "demo": plot_pretraining,
    "cifar10-simo": plot_pretraining,
}
