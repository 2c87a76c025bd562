"""`eqco demo`: see that it works, in a few minutes, with nothing but this package."""

from pathlib import Path

from rich.console import Console

from eqco.assembly import load
from eqco.cli.reproduce import reproduce_with_progress
from eqco.evaluation import extract_features
from eqco.experiments.catalog import find_experiment
from eqco.experiments.experiment import RunContext
from eqco.experiments.rule import rule_against_k
from eqco.experiments.training_runs import TrainedRun, train_once
from eqco.report.catalog import PLOTS
from eqco.report.gallery import draw_gallery
from eqco.report.rule import plot_rule, print_rule
from eqco.report.summary import write_summary

ALPHA, TEMPERATURE = 4096.0, 0.2


def run(*, out: Path = Path("demo"), profile: str = "desk") -> None:
    """Show the rule m = τ·log(α/K) at work: on random embeddings, on Gaussians, in a training.

    What was done already is not done again: delete the folder to start anew.

    Args:
        out: folder for plots, tables and the trained encoder.
        profile: desk (a few minutes on two cores) or smoke (seconds, to see that it runs).

    Examples:
        eqco demo
        eqco demo --out look --profile smoke
    """
    console = Console()
    for name in ("tab5", "demo"):
        find_experiment(name).recipes(profile)  # an unknown profile is refused before anything runs
    console.print("1. The rule on random embeddings\n", style="bold")
    counts = [4, 16, 64, 256, 1024, 4096, 16384]
    points = rule_against_k(counts, alpha=ALPHA, temperature=TEMPERATURE)
    print_rule(console, points)
    console.print(f"written: {plot_rule(points, ALPHA, out / 'rule.png')}", markup=False)
    for heading, name in (("2. The lab", "tab5"), ("3. A training", "demo")):
        console.print(f"\n{heading}\n", style="bold", markup=False)
        experiment = find_experiment(name)
        context = RunContext(work=out / "runs")
        records = out / "records"
        found = reproduce_with_progress(console, experiment, profile, (0,), records, context)
        write_summary(console, experiment, found, out, plot=PLOTS.get(name))
    trained = train_once(experiment.recipes(profile)[0], 0, context)  # found done
    console.print(f"written: {gallery_of(trained, out)}", markup=False)


def gallery_of(trained: TrainedRun, out: Path) -> Path:
    """Test photos with the training photos that the trained encoder finds nearest to them."""
    encode, size = load(trained.directory.path).features, trained.training.data.image_size
    train, test = (
        (split, extract_features(encode, split, size=size))
        for split in (trained.source["train"], trained.source["test"])
    )
    title = "a test photo, then the training photos nearest to it (green: of its class)"
    return draw_gallery(test, train, out / "gallery.png", title=title)
