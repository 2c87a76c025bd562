"""How experiments are shown: add one by writing its file and a line here."""

from collections.abc import Callable, Sequence
from pathlib import Path

from eqco.report.exhibit import Exhibit
from eqco.report.grids import plot_grid, plot_information, plot_norms
from eqco.report.pretraining import charts_pretraining, finding_pretraining, plot_pretraining
from eqco.report.study_bound import charts_study_bound, finding_study_bound, plot_study_bound
from eqco.report.tab5 import charts_tab5, finding_tab5, plot_tab5
from eqco.report.tab9 import finding_tab9, plot_tab9
from eqco.runtime.records import Record

__all__ = ["EXHIBITS", "PLOTS"]

# pictures as files, by `eqco reproduce`
PLOTS: dict[str, Callable[[Sequence[Record], Path], Path]] = {
    "tab5": plot_tab5,
    "tab9": plot_tab9,
    "study-bound": plot_study_bound,
    "demo": plot_pretraining,
    "cifar10-simo": plot_pretraining,
    "fig1": plot_information,
    "fig2": plot_norms,
    "fig3": plot_grid,
    "fig4": plot_grid,
    "tab1": plot_grid,
    "tab2": plot_grid,
    "tab3": plot_grid,
    "tab4": plot_grid,
    "tab6": plot_grid,
    "tab7": plot_grid,
    "tab8": plot_grid,
    "study-small-batch": plot_grid,
    "study-length": plot_grid,
}

# on the page of `eqco report`; what has no line here is shown by its table
EXHIBITS: dict[str, Exhibit] = {
    "tab5": Exhibit(
        shows=(
            "Two Gaussians share a known amount of information. A critic is trained by each loss "
            "with K pairs per batch, and its loss is read as an estimate of that amount. Without a "
            "margin the reading depends on K; with EqCo it should not."
        ),
        charts=charts_tab5,
        finding=finding_tab5,
    ),
    "study-bound": Exhibit(
        shows=(
            "With the best possible critic, known in closed form: by how much f̂ differs from the "
            "truth. Each line begins at α = K, the last point that is a guaranteed bound; above "
            "zero f̂ says more than there is."
        ),
        charts=charts_study_bound,
        finding=finding_study_bound,
    ),
    "demo": Exhibit(
        shows="The training of eqco demo on the embedded photos: is anything learned?",
        charts=charts_pretraining,
        finding=finding_pretraining,
    ),
    "cifar10-simo": Exhibit(
        shows="A short training on CIFAR-10 with the light encoder: is anything learned?",
        charts=charts_pretraining,
        finding=finding_pretraining,
    ),
    "tab9": Exhibit(
        shows=(
            "A detector fine-tuned from random and from pre-trained weights, all else equal. One "
            "pre-training is shared by the seeds: the spread is that of the fine-tuning."
        ),
        finding=finding_tab9,
    ),
}
