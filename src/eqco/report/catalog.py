"""How experiments are shown: add one by writing its file and a line here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eqco.experiments.catalog import EXPERIMENTS
from eqco.report.charts import Chart
from eqco.report.drawing import picture_of
from eqco.report.grids import (
    accuracy_bars,
    accuracy_charts,
    accuracy_extremes,
    accuracy_steps,
    charts_example,
    charts_fig1,
    charts_fig2,
    charts_study_length,
    finding_example,
    finding_fig1,
    finding_fig2,
    finding_small_batch,
    finding_study_length,
    finding_study_momentum,
)
from eqco.report.study_bound import charts_study_bound, finding_study_bound, plot_study_bound
from eqco.report.tab5 import charts_tab5, finding_tab5
from eqco.report.tab9 import charts_tab9, finding_tab9
from eqco.runtime.records import Record

__all__ = ["EXHIBITS", "PLOTS", "Exhibit"]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """An experiment on the page.

    Args:
        shows: what it is about and how to read it, in a sentence or two.
        charts: from records of one profile.
        finding: one sentence that says what these records say and no more, or nothing.
    """

    shows: str
    charts: Callable[[Sequence[Record]], list[Chart]]
    finding: Callable[[Sequence[Record]], str] = lambda records: ""


# on the page of `eqco report`
EXHIBITS: dict[str, Exhibit] = {
    "fig1": Exhibit(
        shows=(
            "f̂, the loss read as information, while MoCo v2 trains with memories of "
            "different size. Under InfoNCE it should end higher the more negatives there "
            "are; under EqCo, with α the largest memory, at about the same value. With α "
            "above K it is an estimate."
        ),
        charts=charts_fig1,
        finding=finding_fig1,
    ),
    "fig2": Exhibit(
        shows=(
            "One MoCo v2 is trained without EqCo and looked at after each quarter: queries "
            "meet K of the keys in its memory, and both losses are asked for their "
            "gradient. Under InfoNCE its norm should depend on K, under EqCo hardly."
        ),
        charts=charts_fig2,
        finding=finding_fig2,
    ),
    "fig3": Exhibit(
        shows=(
            "Accuracy with fewer and fewer negatives. In the paper EqCo keeps most of what "
            "InfoNCE loses, except with a memory of 16 keys and less."
        ),
        charts=accuracy_charts(EXPERIMENTS["fig3"]),
        finding=accuracy_steps(EXPERIMENTS["fig3"], "Accuracy"),
    ),
    "fig4": Exhibit(
        shows=(
            "SiMo draws its K negatives from the keys of the batch. In the paper its "
            "accuracy drops when K is very small, and with EqCo stays almost steady."
        ),
        charts=accuracy_charts(EXPERIMENTS["fig4"]),
        finding=accuracy_steps(EXPERIMENTS["fig4"], "The accuracy of SiMo"),
    ),
    "tab1": Exhibit(
        shows="More queries per batch, the learning rate by the linear rule: accuracy should stay.",
        charts=accuracy_charts(EXPERIMENTS["tab1"]),
        finding=accuracy_extremes(EXPERIMENTS["tab1"]),
    ),
    "tab2": Exhibit(
        shows=(
            "The paper's table row by row, then what is run beyond it. Rows that are other papers' "
            "numbers have no run here."
        ),
        charts=accuracy_bars(EXPERIMENTS["tab2"]),
        finding=accuracy_extremes(EXPERIMENTS["tab2"]),
    ),
    "tab3": Exhibit(
        shows=(
            "SiMo with all negatives of the batch, imitating more and more of them: a small "
            "gain in the paper."
        ),
        charts=accuracy_charts(EXPERIMENTS["tab3"]),
        finding=accuracy_extremes(EXPERIMENTS["tab3"]),
    ),
    "tab4": Exhibit(
        shows=(
            "Plain MoCo v2 with memories of different size: at its temperature of 0.2, K "
            "matters little in the paper."
        ),
        charts=accuracy_charts(EXPERIMENTS["tab4"]),
        finding=accuracy_extremes(EXPERIMENTS["tab4"]),
    ),
    "tab5": Exhibit(
        shows=(
            "Two Gaussians share a known amount of information. A critic is trained by each loss "
            "with K pairs per batch, and its loss is read as an estimate of that amount. Without a "
            "margin the reading depends on K; with EqCo it should not."
        ),
        charts=charts_tab5,
        finding=finding_tab5,
    ),
    "tab6": Exhibit(
        shows=(
            "SiMo with a key encoder that follows slowly, and with one that is the query "
            "encoder itself."
        ),
        charts=accuracy_bars(EXPERIMENTS["tab6"]),
        finding=accuracy_extremes(EXPERIMENTS["tab6"]),
    ),
    "tab7": Exhibit(
        shows=(
            "SiMo with batch norm over an eighth of the batch and keys shuffled, and over "
            "all of it."
        ),
        charts=accuracy_bars(EXPERIMENTS["tab7"]),
        finding=accuracy_extremes(EXPERIMENTS["tab7"]),
    ),
    "tab8": Exhibit(
        shows="SiMo on networks with more channels.",
        charts=accuracy_charts(EXPERIMENTS["tab8"]),
        finding=accuracy_extremes(EXPERIMENTS["tab8"]),
    ),
    "tab9": Exhibit(
        shows=(
            "A detector fine-tuned from random and from pre-trained weights, all else equal. One "
            "pre-training is shared by the seeds: the spread is that of the fine-tuning."
        ),
        charts=charts_tab9,
        finding=finding_tab9,
    ),
    "study-small-batch": Exhibit(
        shows=(
            "What should someone do whose memory holds 16 images? Three losses, with the negatives "
            "of the batch alone, and with a short queue that fills them up to those of the largest "
            "batch. The learning rate follows N."
        ),
        charts=accuracy_charts(EXPERIMENTS["study-small-batch"]),
        finding=finding_small_batch,
    ),
    "study-length": Exhibit(
        shows=(
            "Few negatives are noisier, which longer training may average out: does their cost go "
            "away, and sooner with EqCo?"
        ),
        charts=charts_study_length,
        finding=finding_study_length,
    ),
    "study-momentum": Exhibit(
        shows=(
            "A key encoder that follows slowly gives steady keys, and in a short training old "
            "ones. Three decays β, and trainings of three lengths."
        ),
        charts=accuracy_charts(EXPERIMENTS["study-momentum"]),
        finding=finding_study_momentum,
    ),
    "study-bound": Exhibit(
        shows=(
            "By how much f̂ differs from the truth, with the true density ratio as critic and with "
            "the multiple of it that reads most. Each line begins at α = K, the last point that is "
            "a guaranteed bound, and where the two are one; above zero f̂ says more than there is."
        ),
        charts=charts_study_bound,
        finding=finding_study_bound,
    ),
    "demo": Exhibit(
        shows="The training of eqco demo on the embedded photos: is anything learned?",
        charts=charts_example,
        finding=finding_example,
    ),
    "cifar10-simo": Exhibit(
        shows="A short training on CIFAR-10 with the light encoder: is anything learned?",
        charts=charts_example,
        finding=finding_example,
    ),
}

# pictures as files, by `eqco reproduce`
PLOTS: dict[str, Callable[[Sequence[Record], Path], Path]] = {
    **{name: picture_of(exhibit.charts) for name, exhibit in EXHIBITS.items()},
    "study-bound": plot_study_bound,
}
