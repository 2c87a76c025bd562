"""What `eqco eval` leaves behind: tables on the screen, a result as JSON, and pictures."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from eqco.assembly.comparison import Evaluation, Row
from eqco.data.fonts import drawable, font_families
from eqco.data.opening import short_name
from eqco.evaluation.maps import MIN_IMAGES, FeatureMap, feature_map
from eqco.evaluation.scores import class_scores, confusion
from eqco.report.gallery import draw_gallery
from eqco.report.style import INK, panels, save
from eqco.report.tables import print_table
from eqco.runtime.records import code_version, hardware
from eqco.runtime.run_directory import write_json

__all__ = [
    "draw_confusion",
    "draw_map",
    "evaluation_files",
    "print_evaluation",
    "write_evaluation",
]

NAMED_CLASSES = 60  # as many names fit beside a table of confusions
NAME_LETTERS = 24  # of a class in a picture; more would leave the picture no room
COLOURED_CLASSES = 20  # as many colours can be told apart
SHOWN_CLASSES = 30  # lines of the table on the screen
NOTES = {
    "knn": "",
    "probe": "The probe (logistic regression on one fixed view of each image) is a stand-in for "
    "the paper's linear protocol, which is --protocol linear.",
    "linear": "The references are measured by the probe, and so is the encoder once more, for "
    "comparison: logistic regression on fixed views, not the paper's protocol.",
    "finetune": "All weights were trained, those of the reference from where they began.",
}


def print_evaluation(console: Console, found: Evaluation) -> None:
    """The table of rows with intervals, then the classes of the encoder."""
    images = f"{len(found.train):,} train, {len(found.test):,} {found.test.name} images"
    console.print(f"{found.data}: {images}", style="bold", markup=False, highlight=False)
    shown = 4 if any(row.top5 for row in found.rows) else 3
    header = ["", "by", "top-1 %", "top-5 %"][:shown]
    lines = [[row.name, row.by, str(row.top1), str(row.top5 or "")][:shown] for row in found.rows]
    print_table(console, header, lines)
    interval = (
        f"{found.settings} In brackets: 95 % interval (Wilson's) over test images; it does not "
        f"cover another training."
    )
    for note in filter(None, (interval, NOTES[found.protocol], found.left_out)):
        console.print(note, style="dim", markup=False, highlight=False)
    encoder = found.rows[-1]
    scores = class_scores(confusion(encoder.scores, found.test_features.labels), found.test.classes)
    console.print(f"\n{encoder.name} ({encoder.by}), class by class", style="bold", markup=False)
    worst = sorted(scores, key=lambda score: score.accuracy)
    hardest = scores if len(scores) <= SHOWN_CLASSES else worst[:SHOWN_CLASSES]
    print_table(
        console,
        ["class", "images", "right %", "most often taken for"],
        [
            [
                score.name,
                str(score.images),
                f"{100 * score.accuracy:.1f}",
                f"{score.mistaken_for} ({score.mistakes})" if score.mistakes else "–",
            ]
            for score in hardest
        ],
    )
    if len(hardest) < len(scores):
        console.print(f"the {len(hardest)} hardest of {len(scores)}; all are in the JSON file")


def evaluation_files(out: Path, protocol: str) -> tuple[Path, ...]:
    """Where result, confusions, map and gallery go: files of their own for each protocol."""
    pictures = (out / f"{protocol}-{name}.png" for name in ("confusion", "map", "gallery"))
    return (out / f"{protocol}.json", *pictures)


def write_evaluation(found: Evaluation, out: Path, settings: dict[str, Any]) -> list[Path]:
    """Write result, confusions, map and gallery; returns the files written."""
    out.mkdir(parents=True, exist_ok=True)
    encoder = found.rows[-1]
    table = confusion(encoder.scores, found.test_features.labels)
    classes = found.test.classes
    result = {
        "weights": found.weights.name,
        "protocol": found.protocol,
        "is_the_papers_protocol": found.protocol == "linear",
        "data": found.data,
        "train_images": len(found.train),
        "test_images": len(found.test),
        "test_split": found.test.name,
        "measured_by": found.settings,
        "settings": settings,
        "rows": [row_values(row) for row in found.rows],
        "left_out": found.left_out,
        "classes": [asdict(score) for score in class_scores(table, classes)],
        "confusion": table.tolist(),
        "predictions": encoder.scores.argmax(dim=1).tolist(),
        "code": code_version(),
        "hardware": hardware(),
    }
    file, confusions, map_file, gallery = evaluation_files(out, found.protocol)
    file.unlink(missing_ok=True)  # of the result that is replaced
    where = f"{encoder.name} on {short_name(found.data)} ({found.test.name})"
    with rc_context({"font.family": font_families()}):
        written = [draw_confusion(table, classes, confusions, where)]
        if len(found.test_features.values) >= MIN_IMAGES:
            placed = feature_map(found.test_features)
            written.append(draw_map(placed, classes, map_file, where))
        else:
            map_file.unlink(missing_ok=True)  # of the result that was replaced
    pairs = (found.test, found.test_features), (found.train, found.train_features)
    title = f"{where}: a test image, then its nearest train images (green: of its class)"
    written.append(draw_gallery(*pairs, gallery, title=title))
    write_json(file, result)  # last: where it stands, all stands
    return [file, *written]


def row_values(row: Row) -> dict[str, Any]:
    """A line of the table as plain values."""
    return {
        "name": row.name,
        "by": row.by,
        "top1": asdict(row.top1),
        "top5": asdict(row.top5) if row.top5 else None,
        **row.details,
    }


def class_label(name: str) -> str:
    """The name of a class as it stands in a picture.

    >>> class_label("organ, pipe organ"), class_label("monarch, monarch butterfly, milkweed")
    ('organ, pipe organ', 'monarch, monarch butter…')
    """
    short = name if len(name) <= NAME_LETTERS else f"{name[: NAME_LETTERS - 1]}…"
    return drawable(short)


def draw_confusion(table: Tensor, classes: Sequence[str], path: Path, title: str) -> Path:
    """Rows: the true class; columns: what it is taken for; in percent of the row."""
    classes, title = [class_label(name) for name in classes], drawable(title)
    share = 100 * table / table.sum(dim=1, keepdim=True).clamp(min=1)
    count = len(classes)
    named = count <= NAMED_CLASSES
    side = min(12.0, max(4.5, 2.2 + 0.24 * count)) if named else 8.0
    figure, (panel,) = panels(1, width=side, height=side * 0.95)
    panel.grid(visible=False)
    shown = panel.imshow(share.numpy(), cmap="Blues", vmin=0, vmax=100)
    if named:
        size = 8 if count <= 30 else 6
        panel.set_xticks(range(count), classes, rotation=90, fontsize=size)
        panel.set_yticks(range(count), classes, fontsize=size)
    if count <= 12:
        for i in range(count):
            for j in range(count):
                colour = "white" if share[i, j] > 55 else INK
                text = f"{share[i, j]:.0f}"
                panel.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
    panel.set_xlabel("taken for", fontsize=9, color=INK)
    panel.set_ylabel("is", fontsize=9, color=INK)
    panel.set_title(title, fontsize=9, color=INK, wrap=True)
    bar = figure.colorbar(shown, ax=panel, shrink=0.7, label="% of the class")
    bar.ax.tick_params(labelsize=8)
    return save(figure, path)


def draw_map(placed: FeatureMap, classes: Sequence[str], path: Path, title: str) -> Path:
    """The features in the plane, a colour for each class; of many classes, the largest have one."""
    classes, title = [class_label(name) for name in classes], drawable(title)
    figure = Figure(figsize=(7.6, 5.6), layout="constrained", dpi=130)
    panel = figure.subplots()
    sizes = placed.labels.bincount(minlength=len(classes))
    coloured = sizes.argsort(descending=True, stable=True)[:COLOURED_CLASSES].sort().values
    coloured = coloured[sizes[coloured] > 0]
    rest = ~torch.isin(placed.labels, coloured)
    points = placed.places
    if rest.any():
        label = f"{len(sizes.nonzero()) - len(coloured)} more classes"
        x, y = points[rest].T.numpy()
        panel.scatter(x, y, s=6, color="#cccccc", linewidths=0, label=label)
    palette = colormaps["tab10" if len(coloured) <= 10 else "tab20"]
    for place, number in enumerate(coloured.tolist()):
        x, y = points[placed.labels == number].T.numpy()
        panel.scatter(x, y, s=9, color=palette(place), linewidths=0, label=classes[number])
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_color("#dddddd")
    panel.set_title(title, fontsize=9, color=INK, wrap=True)
    note = (
        f"t-SNE of {len(points)} images: who is near whom counts, distances between groups do not"
    )
    panel.set_xlabel(note, fontsize=7.5, color="#888888")
    figure.legend(
        loc="outside right center", fontsize=8, frameon=False, markerscale=2, labelcolor=INK
    )
    return save(figure, path)
