"""What a loaded encoder shows of itself: a few lines of text, and a card in a notebook."""

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqco.recipes import recipe_to_dict
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory, read_object

if TYPE_CHECKING:
    from eqco.assembly.loaded import LoadedEncoder

__all__ = ["summary_html", "summary_text"]

BLUE, INK = "#3b6fb6", "#333333"
CELL = "text-align:left;padding:1px 12px 1px 0"


def summary_text(encoder: "LoadedEncoder") -> str:
    """One line each of the network, the training and its accuracies."""
    recipe = encoder.recipe
    alpha = recipe.objective.alpha
    loss = "plain InfoNCE" if alpha is None else f"α = {alpha:g}"
    lines = [
        f"LoadedEncoder({str(encoder.run) if encoder.run else 'no run'!r})",
        f"  {encoder.network} at {recipe.data.image_size} pixels: features of "
        f"{encoder.feature_dim}, embeddings of {encoder.embedding_dim}",
        f"  {recipe.method.name}, N = {recipe.training.num_queries}, {loss}, "
        f"τ = {recipe.objective.temperature:g}, {recipe.training.epochs} epochs",
    ]
    lines += [f"  {row[0]}: kNN {row[1]}, probe {row[2]}" for row in accuracies(encoder.run)]
    return "\n".join([*lines, "  takes images as they are: .embed(images), .index(photos, out)"])


def summary_html(encoder: "LoadedEncoder") -> str:
    """A card: what it is, how it was trained, its curve, its accuracies and its neighbours.

    All words are escaped, and pictures are inside, so that the card needs no file when it is sent.
    """
    parts = [f"<b>{escape(str(encoder.run or 'encoder'))}</b>"]
    parts.append(html_table([], list(facts(encoder))))
    rows = accuracies(encoder.run)
    if rows:
        parts.append(html_table(["validation images", "kNN, %", "probe, %"], rows))
    directory = run_directory(encoder.run)
    if directory is not None:
        lines = directory.read_metrics()
        if any("loss" in line for line in lines):
            parts.append(inline_png(curve_png(lines), "loss and accuracy while training"))
        neighbours = directory.path / "neighbours.png"
        if neighbours.is_file():
            parts.append(inline_png(neighbours.read_bytes(), "nearest neighbours"))
    settings = [
        [f"{group}.{name}", str(value)]
        for group, values in recipe_to_dict(encoder.recipe).items()
        for name, value in values.items()
    ]
    parts.append(f"<details><summary>recipe</summary>{html_table([], settings)}</details>")
    return f"<div>{''.join(parts)}</div>"


def facts(encoder: "LoadedEncoder") -> Iterator[list[str]]:
    """What a reader wants to know first."""
    recipe, directory = encoder.recipe, run_directory(encoder.run)
    yield ["network", f"{encoder.network} at {recipe.data.image_size} pixels"]
    yield ["features", f"{encoder.feature_dim}"]
    negatives = recipe.num_negatives
    numbers = [f"N = {recipe.training.num_queries}"]
    numbers += [] if negatives is None else [f"K = {negatives}"]
    alpha = recipe.objective.alpha
    numbers += ["plain InfoNCE" if alpha is None else f"α = {alpha:g}"]
    yield ["method", f"{recipe.method.name}: {', '.join(numbers)}"]
    if directory is not None and directory.environment.exists():
        began = read_object(directory.environment)
        yield ["data", f"{began.get('data')}: {began.get('images', 0):,} images"]
    state = "" if directory is None or directory.result.exists() else ", not complete"
    yield ["training", f"{recipe.training.epochs} epochs{state}"]


def run_directory(run: Path | None) -> RunDirectory | None:
    """The run directory, if the encoder came from one that is still there."""
    if run is None:
        return None
    place = run if run.is_dir() else run.resolve().parent.parent
    return RunDirectory(place) if (place / "recipe.json").is_file() else None


def accuracies(run: Path | None) -> list[list[str]]:
    """Rows of name, kNN and probe with their intervals, as `eqco train` has left them."""
    directory = run_directory(run)
    file = None if directory is None else directory.path / "validation.json"
    if file is None or not file.is_file():
        return []
    rows = read_object(file).get("rows", [])
    try:
        return [
            [str(row["name"]), interval_text(row["knn"]), interval_text(row["probe"])]
            for row in rows
        ]
    except (KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged; delete it to see the rest.") from error


def interval_text(found: dict[str, float]) -> str:
    """A share in percent with its interval.

    >>> interval_text({"value": 0.38, "low": 0.35, "high": 0.41})
    '38.0 (35.0–41.0)'
    """
    return f"{100 * found['value']:.1f} ({100 * found['low']:.1f}–{100 * found['high']:.1f})"


def curve_png(lines: Sequence[dict[str, Any]]) -> bytes:
    """The loss over steps, and the accuracy of the probe where it was measured on the way."""
    from matplotlib.figure import Figure

    curves = {"loss": [(line["step"], line["loss"]) for line in lines if "loss" in line]}
    probes = [
        (line["step"], 100 * value)
        for line in lines
        for name, value in line.items()
        if name.startswith("probe/")
    ]
    if len(probes) > 1:
        curves["kNN accuracy on validation images, %"] = probes
    figure = Figure(figsize=(4 * len(curves), 2.4), layout="constrained", dpi=100)
    panels = figure.subplots(1, len(curves), squeeze=False).flat
    for panel, (title, points) in zip(panels, curves.items(), strict=True):
        panel.plot(*zip(*points, strict=True), color=BLUE, linewidth=1.2)
        panel.set_title(title, fontsize=9, color=INK)
        panel.set_xlabel("steps", fontsize=8, color=INK)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8, colors=INK)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def inline_png(data: bytes, words: str) -> str:
    """A picture inside the text."""
    code = base64.b64encode(data).decode()
    return f'<div><img alt="{escape(words)}" src="data:image/png;base64,{code}"></div>'


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, every cell escaped.

    >>> "&lt;b&gt;" in html_table([], [["<b>", "1"]])
    True
    """
    head = "".join(f'<th style="{CELL}">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{CELL}">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{head}</tr>' if header else ''}{body}</table>"
