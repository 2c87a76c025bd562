"""What `eqco train` ends with: the encoder beside simpler things, a curve, and neighbours."""

import copy
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from eqco.assembly import open_weights
from eqco.assembly.assessment import Assessment, Undecided, assess, sample_features
from eqco.assembly.choosing import typical_side
from eqco.assembly.comparison import Stage
from eqco.assembly.heading import UNREADABLE
from eqco.assembly.parts import HELD_BACK
from eqco.assembly.runs import RunInfo
from eqco.data import Split
from eqco.evaluation.scores import ENOUGH
from eqco.recipes import Recipe, with_settings
from eqco.recipes.rules import MOST_EPOCHS, Facts, choose_batch
from eqco.report.gallery import draw_gallery, draw_neighbours
from eqco.report.style import COLOURS, INK, panels, save
from eqco.report.tables import print_table
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory, write_json

__all__ = ["assess_run", "is_assessed", "print_assessment", "write_assessment"]

CURVE, NEIGHBOURS, VALIDATION = "curve.png", "neighbours.png", "validation.json"
MEASURES = {"knn": "kNN", "probe": "probe"}


def assess_run(
    begun: RunInfo,
    place: Path,
    console: Console,
    *,
    stage: Stage = lambda title, total: nullcontext(lambda count: None),
) -> None:
    """Compare the encoder of a run with simpler things, say so, and leave it in the run.

    What cannot be read is told and costs the comparison alone: the encoder is there.
    """
    data = begun.recipe.data
    how: dict[str, Any] = {
        "device": begun.loader.device,
        "workers": data.workers,
        "on_unreadable": data.on_unreadable,
        "stage": stage,
    }
    # a copy: what is opened is frozen, and the user's module is the user's
    weights = open_weights(place, backbone=copy.deepcopy(begun.backbone))
    found = sample = None
    try:
        found = assess(weights, begun.source, **how)
        if found is None:
            sample = sample_features(weights, begun.source, **how)
        print_assessment(console, found, begun, place)
    except InputError as error:
        console.print(f"it cannot be compared: {error}", style="yellow", markup=False)
    lists = sorted(place.glob(f"{Path(UNREADABLE).stem}*.txt"))
    if damaged := count_damaged(lists, begun, place):
        console.print(
            f"found damaged while training, and replaced by others: {damaged:,}",
            style="yellow",
            markup=False,
            highlight=False,
        )
    for path in [*write_assessment(found, sample, place), *lists]:
        console.print(f"written: {path}", markup=False, highlight=False)


def count_damaged(lists: Sequence[Path], begun: RunInfo, place: Path) -> int:
    """How many images were found only in training that cannot be read: of those listed, the ones
    that were not known when it began. A resumed run lists again what it meets again.
    """
    lines = [line for file in lists for line in file.read_bytes().splitlines()]
    names = {os.path.abspath(line.partition(b"\t")[0]) for line in lines}
    began = RunDirectory(place).read_environment()
    return max(0, len(names) - int(began.get("unreadable", len(begun.source.unreadable))))


def print_assessment(
    console: Console, found: Assessment | None, begun: RunInfo, place: Path
) -> None:
    """The table with a warning where it is due, or what can be known without labels."""
    if found is None:
        print_self_consistency(console, begun, place)
        return
    count = len(found.val_features.values)
    missing = len(found.val) - count
    without = f" ({missing:,} more cannot be read)" if missing else ""
    console.print(
        f"{count:,} validation images ({found.val.name}), not test images{without}:",
        markup=False,
        highlight=False,
    )
    lines = [[row.name, str(row.knn), str(row.probe)] for row in found.rows]
    print_table(console, ["", "kNN %", "probe %"], lines)
    console.print(
        "In brackets: 95 % interval over these images; another training would differ as well.",
        style="dim",
        markup=False,
    )
    for line in warnings(found, begun, place):
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if line := how_to_test(begun, place):
        console.print(line, markup=False, highlight=False)


def how_to_test(begun: RunInfo, place: Path) -> str:
    """The command that tests on test images, where there are some; none builds a user's module."""
    test = begun.source.splits.get("test")
    if begun.backbone is not None or test is None or test.labels is None:
        return ""
    return f"on test images: eqco eval {shlex.quote(str(place))}{unknown_data(place)}"


def warnings(found: Assessment, begun: RunInfo, place: Path) -> list[str]:
    """Where the encoder is not clearly better: what it does not beat, and what to try; of what so
    few images cannot decide, that more are needed.
    """
    count, undecided = len(found.val_features.values), found.undecided
    lines = too_few(undecided, count, held_back=found.val.name == HELD_BACK)
    if count < ENOUGH and not lines:
        lines = [f"warning: differences between rows say little with fewer than {ENOUGH} images."]
    known = {each.pair for each in undecided}
    pairs = [pair for pair in found.not_beaten if pair not in known]
    return [*lines, *what_to_try(pairs, begun, place)] if pairs else lines


def too_few(undecided: Sequence[Undecided], count: int, *, held_back: bool) -> list[str]:
    """That so many validation images cannot tell whether the encoder is better, and how many could;
    `held_back` says that they are a tenth of train.
    """
    lines = []
    if hopeless := [each for each in undecided if not each.winnable]:
        lines.append(
            f"warning: too few labelled validation images ({count}) to tell whether this encoder "
            f"is better than {names_of([each.pair for each in hopeless])}: even one that is right "
            f"on all of them would not be clearly ahead. Label more images"
            f"{enough_images(hopeless, held_back)}."
        )
    if ahead := [each for each in undecided if each.winnable]:
        lines.append(
            f"warning: this encoder is ahead of {names_of([each.pair for each in ahead])}, but "
            f"{count} labelled validation images are too few to tell that from chance. Label more "
            f"images{enough_images(ahead, held_back)}, if it stays as far ahead."
        )
    return lines


def enough_images(undecided: Sequence[Undecided], held_back: bool) -> str:
    """How many images would do for all of these; empty where nobody can say."""
    needed = [each.images for each in undecided if each.images is not None]
    if len(needed) < len(undecided):
        return ""
    tenth = f", a tenth of {10 * max(needed):,} in train" if held_back else ""
    return f": it takes about {max(needed):,} for validation{tenth}"


def names_of(pairs: Sequence[tuple[str, str]]) -> str:
    """Baselines with the measures they are named for.

    >>> names_of([("raw pixels", "knn"), ("raw pixels", "probe"), ("colour histogram", "knn")])
    'raw pixels (kNN, probe); colour histogram (kNN)'
    """
    by: dict[str, list[str]] = {}
    for name, measure in pairs:
        by.setdefault(name, []).append(MEASURES[measure])
    return "; ".join(f"{name} ({', '.join(measures)})" for name, measures in by.items())


def what_to_try(pairs: Sequence[tuple[str, str]], begun: RunInfo, place: Path) -> list[str]:
    """A warning that names what the encoder does not beat, and commands that may help."""
    recipe = begun.recipe
    epochs, size = 2 * recipe.training.epochs, 2 * recipe.data.image_size
    usual = choose_batch(Facts(images=len(begun.loader.split), side=size, minutes=1.0))
    warning = f"warning: this encoder is not clearly better than {names_of(pairs)}."
    lines = [warning]
    if recipe.training.epochs < MOST_EPOCHS:
        lines.append(f"  train longer:   {RunDirectory(place).longer_training(epochs)}")
    if begun.backbone is not None:  # whose images and batches are the user's
        return lines
    if typical_side(begun.source) >= size:
        lines.append(f"  larger images:  {again(place, 'image_size', size, f'{size}px')}")
    if usual != recipe.training.num_queries and fits(recipe, usual):
        lines.append(f"  another batch:  {again(place, 'num_queries', usual, f'n{usual}')}")
    if lines == [warning]:
        lines.append("  another recipe: eqco recipes lists them")
    return lines


def fits(recipe: Recipe, num_queries: int) -> bool:
    """Whether the recipe takes such a batch."""
    try:
        with_settings(recipe, num_queries=num_queries)
    except InputError:
        return False
    return True


def again(place: Path, setting: str, value: int, name: str) -> str:
    """The command, or for a Dataset the call in Python, that trains anew with another setting."""
    began, recipe = RunDirectory(place).read_environment(), place / "recipe.json"
    bands = began.get("channels")
    kept = {"--init": began.get("init"), "--channels": None if bands == 3 else bands}
    out = place.resolve().with_name(f"{place.resolve().name}-{name}")
    if began["source"] is None:
        return f"eqco.train(…, {setting}={value}, out={os.path.relpath(out)!r})"
    option = {"image_size": "--data.image-size", "num_queries": "--training.num-queries"}[setting]
    words = ["--recipe", recipe, option, value]
    words += [word for flag, value in kept.items() if value for word in (flag, value)]
    words += ["--unlabelled"] if began.get("unlabelled") else []
    words += ["--out", os.path.relpath(out)]
    return f"eqco train {given_data(place)} {shlex.join(map(str, words))}"


def print_self_consistency(console: Console, begun: RunInfo, place: Path) -> None:
    """Without labels: what can be measured, and what cannot be known."""
    diagnosed = [line for line in RunDirectory(place).read_metrics() if "embedding_rank" in line]
    last = diagnosed[-1] if diagnosed else {}
    if last and "information" not in last:
        method = begun.recipe.method
        lacks = "has no negatives" if begun.recipe.num_negatives is None else "compares no cosines"
        console.print(
            f"the embeddings fill {last['embedding_rank']:.1f} dimensions (at step "
            f"{last['step']}); {method.name} {lacks}, so that there is no estimate of what one "
            f"view tells of another.",
            markup=False,
            highlight=False,
        )
    elif last:
        console.print(
            f"two views of one image are at a mean squared distance of {last['alignment']:.2f} "
            f"(0: the same; 2: unrelated); {describe_information(last)} (at step {last['step']}).",
            markup=False,
            highlight=False,
        )
    train = begun.source.splits.get("train")
    few = train is not None and train.labels is not None
    console.print(
        f"There are {'too few labelled images to hold some back' if few else 'no labels'}, so that "
        f"nobody can say how well the features tell classes apart: look at the neighbours in "
        f"{NEIGHBOURS}, or sort a few hundred images into folders and run eqco eval.",
        markup=False,
    )
    index = (
        f"eqco index {shlex.quote(str(place))} {given_data(place)}, then eqco search index PHOTO"
    )
    if begun.backbone is not None:  # no command can build it
        index = f"eqco.load({str(place)!r}, backbone=…).index(PHOTOS, 'index').search(PHOTO)"
    console.print(
        f"neighbours of any photo: {index}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def describe_information(line: Mapping[str, Any]) -> str:
    """What a line of metrics says that one view tells of the other.

    >>> describe_information({"information": 0.5, "information_kind": "bound"})
    'each view tells at least 0.50 nats of the other'
    """
    value = line["information"]
    if value <= 0:  # which information never is
        return "the loss shows no information yet of one in the other"
    about = "at least" if line["information_kind"] == "bound" else "about"
    return f"each view tells {about} {value:.2f} nats of the other"


def given_data(place: Path) -> str:
    """The data of a run as they stand in a command; PHOTOS for those given in Python."""
    return shlex.quote(RunDirectory(place).read_environment()["source"] or "PHOTOS")


def unknown_data(place: Path) -> str:
    """What a command needs that takes a run's data from it, where they were given in Python."""
    return "" if RunDirectory(place).read_environment()["source"] else " PHOTOS"


def is_assessed(place: Path) -> bool:
    """Whether an assessment was written, not the curve alone."""
    return any((place / name).exists() for name in (VALIDATION, NEIGHBOURS))


def write_assessment(
    found: Assessment | None, sample: tuple[Split, Tensor] | None, place: Path
) -> list[Path]:
    """The table as JSON, the learning curve and the neighbours, in the run directory.

    Without labels neighbours are those of a `sample` of the images among each other.
    """
    written = []
    if sample is not None:
        title = "a training image, then those nearest to it, whatever their labels"
        written.append(draw_neighbours(*sample, place / NEIGHBOURS, title=title))
    if found is not None:
        file = place / VALIDATION
        rows = [
            {
                "name": row.name,
                **{
                    measure: {"value": each.value, "low": each.low, "high": each.high}
                    for measure, each in (("knn", row.knn), ("probe", row.probe))
                },
            }
            for row in found.rows
        ]
        write_json(
            file,
            {"images": len(found.val_features.values), "of": found.val.name, "rows": rows},
        )
        written.append(file)
        pairs = (found.val, found.val_features), (found.train, found.train_features)
        # of images that cannot be read there are no features, and the others lose their numbers
        if all(len(split) == len(features.values) for split, features in pairs):
            title = "a validation image, then its nearest training images (green: of its class)"
            written.append(draw_gallery(*pairs, place / NEIGHBOURS, title=title))
    written.append(draw_curve(RunDirectory(place), found, place / CURVE))
    return written


def draw_curve(run: RunDirectory, found: Assessment | None, path: Path) -> Path:
    """Loss over steps, and beside it the kNN accuracy where there are labels."""
    lines = run.read_metrics()
    probes = [
        (line["step"], value)
        for line in lines
        for name, value in line.items()
        if name.startswith("probe/")
    ]
    figure, axes = panels(2 if probes else 1, width=4.2, height=3.2)
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    axes[0].plot(*zip(*losses, strict=True), color=COLOURS["eqco"], linewidth=1.2)
    axes[0].set_title("loss", fontsize=9, color=INK)
    if probes:
        axes[1].plot(
            [step for step, _ in probes],
            [100 * value for _, value in probes],
            color=COLOURS["eqco"],
            marker="o",
            markersize=3,
        )
        axes[1].set_title("kNN accuracy on validation images, %", fontsize=9, color=INK)
        baselines = found.rows[:-1] if found is not None else ()
        for row, colour in zip(baselines, ("#777777", "#a08a30", "#999999"), strict=False):
            axes[1].axhline(100 * row.knn.value, color=colour, linewidth=1, linestyle="--")
            axes[1].text(
                0.99,
                100 * row.knn.value,
                row.name,
                transform=axes[1].get_yaxis_transform(),
                fontsize=7,
                color=colour,
                ha="right",
                va="bottom",
            )
    for panel in axes:
        panel.set_xlabel("steps", fontsize=8, color=INK)
    return save(figure, path)
