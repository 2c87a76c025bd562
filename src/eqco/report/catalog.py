"""How experiments are shown: add one by writing its file and a line here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.experiment import Experiment
from eqco.report import experiment_charts as charts
from eqco.report import findings
from eqco.report.charts import Chart
from eqco.report.drawing import picture_of
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
    finding: Callable[[Sequence[Record]], str]


def exhibit(
    name: str,
    shows: str,
    charts: Callable[[Experiment[Any], Sequence[Record]], list[Chart]] = charts.accuracy_charts,
    finding: Callable[[Experiment[Any], Sequence[Record]], str] = findings.extremes,
) -> tuple[str, Exhibit]:
    """An experiment as its functions show it; unless others are named, as a table of accuracies."""
    of = EXPERIMENTS[name]
    return name, Exhibit(shows=shows, charts=partial(charts, of), finding=partial(finding, of))


# on the page of `eqco report`
EXHIBITS: dict[str, Exhibit] = dict(
    [
        exhibit(
            "fig1",
            "f̂, the loss read as information, while MoCo v2 trains with memories of different "
            "size. Under InfoNCE it should end higher the more negatives there are; under EqCo, "
            "with α the largest memory, at about the same value. With α above K it is an "
            "estimate.",
            charts.information_charts,
            findings.information_swing,
        ),
        exhibit(
            "fig2",
            "One MoCo v2 is trained without EqCo. After each quarter queries are scored against K "
            "of the keys in its memory, and both losses give their gradient. Under InfoNCE its "
            "norm should depend on K, under EqCo hardly.",
            charts.gradient_charts,
            findings.gradient_factor,
        ),
        exhibit(
            "fig3",
            "Accuracy with fewer and fewer negatives. In the paper EqCo keeps most of what "
            "InfoNCE loses, except with a memory of 16 keys and less.",
            charts.accuracy_charts,
            findings.gains_of_few,
        ),
        exhibit(
            "fig4",
            "SiMo draws its K negatives from the keys of the batch. In the paper its accuracy "
            "drops when K is very small, and with EqCo stays almost steady.",
            charts.accuracy_charts,
            partial(findings.gains_of_few, subject="The accuracy of SiMo"),
        ),
        exhibit(
            "tab1",
            "More queries per batch, the learning rate by the linear rule: accuracy should stay.",
        ),
        exhibit(
            "tab2",
            "The paper's table row by row, then what is run beyond it. Rows that are other "
            "papers' numbers have no run here.",
            charts.accuracy_bars,
            findings.clear_differences,
        ),
        exhibit(
            "tab3",
            "SiMo with all negatives of the batch, imitating more and more of them: a small "
            "gain in the paper.",
        ),
        exhibit(
            "tab4",
            "Plain MoCo v2 with memories of different size: at its temperature of 0.2, K "
            "matters little in the paper.",
        ),
        exhibit(
            "tab5",
            "Two Gaussians share a known amount of information. A critic is trained by each "
            "loss with K pairs per batch, and its loss is read as an estimate of that amount. "
            "Without a margin the reading depends on K; with EqCo it should not.",
            charts.estimate_charts,
            findings.estimate_swing,
        ),
        exhibit(
            "tab6",
            "SiMo with a key encoder that follows slowly, and with one that is the query "
            "encoder itself.",
            charts.accuracy_bars,
        ),
        exhibit(
            "tab7",
            "SiMo with batch norm over an eighth of the batch and keys shuffled, and over all "
            "of it.",
            charts.accuracy_bars,
        ),
        exhibit(
            "tab8",
            "SiMo on networks with more channels.",
        ),
        exhibit(
            "tab9",
            "A detector fine-tuned from random and from pre-trained weights, all else equal. "
            "One pre-training is shared by the seeds: the spread is that of the fine-tuning.",
            charts.detection_charts,
            findings.detection_gain,
        ),
        exhibit(
            "study-small-batch",
            "What should someone do whose memory holds 16 images? Three losses, with the "
            "negatives of the batch alone, and with a short queue that fills them up to those "
            "of the largest batch. The learning rate follows N.",
            charts.accuracy_charts,
            findings.smallest_batch,
        ),
        exhibit(
            "study-rate",
            "With few negatives α makes the gradient longer, as a larger learning rate makes the "
            "step. Does twice the rate gain what α gains, and does α still gain beside it?",
            charts.accuracy_charts,
            findings.gains_at_rates,
        ),
        exhibit(
            "study-small-folder",
            "A small folder and a batch of 8 to 64: another loss, more negatives from a queue, "
            "the gradient of a larger batch by caching, another rate, or only as many steps?",
            charts.accuracy_charts,
            findings.clear_differences,
        ),
        exhibit(
            "study-alpha",
            "A small folder has few images and many seeds: which α is worth taking for K "
            "negatives of 64, and is a large one ever free?",
            charts.accuracy_charts,
            findings.clear_differences,
        ),
        exhibit(
            "study-few-negatives",
            "Is there a loss that keeps with four negatives what it has with all of the batch? "
            "InfoNCE, EqCo, its limit, and both with a normaliser that each image remembers.",
        ),
        exhibit(
            "study-large-batch",
            "At equal epochs a batch four times as large costs accuracy, though its rate follows "
            "the linear rule. Each further row changes one thing: how fast the keys follow, the "
            "rate, a warm-up, the number of steps.",
            charts.accuracy_bars,
        ),
        exhibit(
            "study-gradients",
            "At the last weights of a plain training: the gradient with K negatives drawn for "
            "each query, many times, beside that with all of the batch. The direction of its mean "
            "is bias, what draws differ by is noise.",
            charts.few_negatives_charts,
            findings.bias_and_noise,
        ),
        exhibit(
            "study-saturation",
            "The gradient of plain InfoNCE dies down by the factor 1 − p₊, where p₊ is the mean "
            "probability of the positive; α can give back no more than that. Each mark is a pair "
            "of trainings that differ in α alone.",
            charts.saturation_charts,
            findings.saturation_gain,
        ),
        exhibit(
            "study-recipes",
            "Each recipe trains on the embedded photos for a few minutes. All should end above "
            "the weights they begin with.",
            charts.accuracy_bars,
        ),
        exhibit(
            "study-length",
            "Few negatives are noisier, which longer training may average out: does their cost "
            "go away, and sooner with EqCo?",
            charts.length_charts,
            findings.length_change,
        ),
        exhibit(
            "study-momentum",
            "A key encoder that follows slowly gives steady keys, and in a short training old "
            "ones. Three decays β, and trainings of three lengths.",
            charts.accuracy_charts,
            findings.extremes_by_column,
        ),
        exhibit(
            "study-precision",
            "On processors that compute it natively, bfloat16 is the faster format, and eqco train "
            "chooses it by itself: does it cost accuracy? Each recipe in both, all else equal.",
            charts.accuracy_bars,
            findings.precision_change,
        ),
        exhibit(
            "study-bound",
            "By how much f̂ differs from the truth, with the true density ratio as critic and "
            "with the multiple of it that reads most. Each line begins at α = K, the last point "
            "that is a guaranteed bound, and where the two are one; above zero f̂ says more "
            "than there is.",
            charts.excess_charts,
            findings.largest_excess,
        ),
        exhibit(
            "study-text",
            "A small encoder is trained on docstrings and their functions, and finds functions of "
            "other files by their docstrings. Batches of N pairs; a queue holds keys by a slow "
            "copy of the encoder, caching makes the batch larger with the memory of N.",
            charts.search_bars,
            findings.search_extremes,
        ),
        exhibit(
            "demo",
            "The two trainings of eqco demo on photos of hands that sign a digit, all else equal.",
            charts.example_charts,
            findings.example_accuracy,
        ),
        exhibit(
            "cifar10-simo",
            "A short training on CIFAR-10 with the light encoder: is anything learned?",
            charts.example_charts,
            findings.example_accuracy,
        ),
    ]
)

# pictures as files, by `eqco reproduce`
PLOTS: dict[str, Callable[[Sequence[Record], Path], Path]] = {
    name: picture_of(exhibit.charts) for name, exhibit in EXHIBITS.items()
}
