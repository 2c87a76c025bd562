"""`eqco demo`: the story in a few minutes, with nothing but this package."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from torch import Tensor

from eqco.assembly import load
from eqco.cli.reproduce import reproduce_with_progress
from eqco.data.pipelines import MOCO_V2
from eqco.encoders import ColourHistogram
from eqco.evaluation import extract_features
from eqco.experiments.catalog import find_experiment
from eqco.experiments.examples import trainings
from eqco.experiments.experiment import RunContext
from eqco.experiments.rule import rule_against_k
from eqco.experiments.training_runs import TrainedRun, train_once
from eqco.report.catalog import PLOTS
from eqco.report.gallery import draw_gallery, neighbours_of_its_class
from eqco.report.rule import plot_rule, print_rule
from eqco.report.summary import write_summary
from eqco.report.words import signed_number
from eqco.runtime.atomic_files import refuse_file
from eqco.runtime.records import Record

ALPHA, TEMPERATURE = 4096.0, 0.2
RULE = f"""The same random embeddings under K = 4 to 16384 negatives. Plain InfoNCE's loss, the
information read off it and its gradient all move with K. With EqCo, α = {ALPHA:g}, they hardly do:
see the last line."""
TRAININGS = """One training of SimCLR under InfoNCE, one under EqCo, all else equal. Watch the
gradient: with 4 negatives InfoNCE's falls as the task becomes easy, EqCo's stays larger. Accuracy
is that of nearest neighbours on test photos: EqCo was ahead in each of three seeds
(docs/results.md#demo). Raw pixels are a hard rival on these photos, where each hand fills the
picture; with all negatives of the batch `eqco train signs` passes them in a few minutes
(docs/rules.md)."""
SIMILAR = """Test photos and the training photos nearest to them, by the encoder trained with EqCo,
which saw no labels, and by colours alone."""
NEXT = """Where to go next:
  eqco train photos/                            an encoder of your own photos
  eqco plan --num-queries 16 --num-negatives 15 what to set for a batch of 16
  eqco reproduce --list                         the paper's figures and tables
  docs/own_loop.md                              the loss in your own loop"""


def run(*, out: Path = Path("demo"), profile: str = "desk") -> None:
    """Show what the rule m = τ·log(α/K) does: to the loss, to a training, and similar photos.

    What was done already is not done again: delete the folder to start anew.

    Args:
        out: folder for plots, tables and the trained encoders.
        profile: desk (a few minutes on two cores) or smoke (seconds, to see that it runs).

    Examples:
        eqco demo
        eqco demo --out look --profile smoke
    """
    console = Console()
    experiment = find_experiment("demo")
    tasks = experiment.recipes(profile)  # an unknown profile is refused before anything runs
    refuse_file(out)

    say(console, "1. The rule, on random embeddings", RULE)
    counts = [4, 16, 64, 256, 1024, 4096, 16384]
    points = rule_against_k(counts, alpha=ALPHA, temperature=TEMPERATURE)
    print_rule(console, points)
    written(console, plot_rule(points, ALPHA, out / "rule.png"))

    say(console, "2. Two trainings with 4 negatives for each photo", TRAININGS)
    context = RunContext(work=out / "runs")
    records = out / "records"
    found = reproduce_with_progress(console, experiment, profile, (0,), records, context)
    write_summary(console, experiment, found, out, plot=PLOTS["demo"])
    console.print(difference(found), markup=False)

    say(console, "3. Similar photos", SIMILAR)
    similar_photos(console, train_once(tasks[-1], 0, context), out)

    console.print(f"\n{NEXT}", markup=False, highlight=False)


def say(console: Console, heading: str, text: str) -> None:
    """A heading, and what to look at."""
    console.print(f"\n{heading}\n", style="bold", markup=False)
    console.print(text.replace("\n", " ") + "\n", markup=False, highlight=False)


def written(console: Console, path: Path) -> None:
    """Say where a picture is."""
    console.print(f"written: {path}", markup=False, highlight=False)


def difference(records: Sequence[Record]) -> str:
    """What EqCo changed in this one seed, which may be chance."""
    plain, eqco = ([each.metrics for each in own] for own in trainings(records).values())
    points = 100 * (eqco[0]["knn"] - plain[0]["knn"])
    factor = eqco[0]["gradient_norm"] / plain[0]["gradient_norm"]
    return (
        f"EqCo less InfoNCE in this seed: {signed_number(points)} points of accuracy (intervals "
        f"above say how much can be chance), with a gradient {factor:.1f} times as large at the "
        f"end."
    )


def similar_photos(console: Console, trained: TrainedRun, out: Path) -> None:
    """Galleries by the encoder and by colours, and how often neighbours are of the same class."""
    size = trained.training.data.image_size
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "the encoder": load(trained.directory.path).features,
        "colours alone": ColourHistogram(*MOCO_V2.normalisation(trained.source.channels)),
    }
    for name, encode in ways.items():
        train, test = (
            (split, extract_features(encode, split, size=size))
            for split in (trained.source["train"], trained.source["test"])
        )
        share = neighbours_of_its_class(test[1], train[1])
        console.print(
            f"{name}: of the 10 nearest, {share:.0%} are of the photo's own class", markup=False
        )
        title = (
            f"By {name}: a test photo, then the training photos nearest to it (green: its class)"
        )
        file = "gallery.png" if name == "the encoder" else "gallery-colours.png"
        written(console, draw_gallery(test, train, out / file, title=title))
