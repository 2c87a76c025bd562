"""The page that goes with exported weights: what they are, where from, how good, how to load."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eqco.assembly.onnx_files import RESIZE_TOLERANCE
from eqco.assembly.preprocessing import preprocessing_code, timm_difference
from eqco.assembly.weights import Weights, run_of
from eqco.recipes import recipe_to_dict
from eqco.runtime.records import code_version
from eqco.runtime.run_directory import read_json

__all__ = ["RunFacts", "model_card", "run_facts"]

RunFacts = dict[str, Any]


def run_facts(weights: Weights, given: Path) -> RunFacts:
    """What the run directory tells of these weights: data, epochs, figures, versions.

    Figures are those of the end of training; a checkpoint from before has none.
    """
    if weights.recipe is None:
        return {}
    run = run_of(given)
    if not run.environment.exists():  # a checkpoint that was taken out of its run
        return {}
    environment = read_json(run.environment)
    assert weights.step is not None
    facts: RunFacts = {
        "data": Path(environment["data"]).name,  # not where it lies on this machine
        "images": environment["images"],
        "epochs": weights.step // environment["steps_per_epoch"],
        "code": environment["code"],
        "probe": {},
    }
    result = read_json(run.result) if run.result.exists() else {}
    if result.get("steps") == weights.step:
        facts["probe"] = result["probe"]
        table = run.path / "validation.json"
        facts["validation"] = read_json(table) if table.exists() else None
    return facts


def model_card(
    weights: Weights, facts: RunFacts, *, file: str, usage: Sequence[str], preprocess: bool = True
) -> str:
    """A short page in Markdown; `preprocess`: images have to be prepared, which it shows."""
    kind = "RGB images" if weights.in_channels == 3 else f"{weights.in_channels}-band images"
    network = str(weights.architecture) if weights.architecture else type(weights.backbone).__name__
    lines = [
        f"# {file}",
        "",
        f"A {network} backbone, without a classifier: images in, {weights.feature_dim} features "
        f"out.",
        "",
        "## Loading",
        "",
        "```",
        *usage,
        "```",
        "",
        *(image_lines(weights, kind, usage) if preprocess else graph_lines(kind)),
        "## Training",
        "",
        *training_lines(weights, facts),
        "",
        "## Figures",
        "",
        *figure_lines(facts),
        "",
        "## Versions",
        "",
        *([f"* trained by eqco {facts['code']}"] if facts else []),
        f"* exported by eqco {code_version()}",
    ]
    if weights.recipe is not None:
        recipe = json.dumps(recipe_to_dict(weights.recipe), indent=1)
        lines += ["", "## Recipe", "", "```json", recipe, "```"]
    return "\n".join(lines) + "\n"


def graph_lines(kind: str) -> list[str]:
    """What a graph that prepares images itself takes, and how exactly it does."""
    return [
        "## Images",
        "",
        f"The graph takes {kind} as they are, uint8 of any size, and prepares them itself. Its "
        f"resize differs from Pillow's by 1 of 255 in a few pixels: features may differ from those "
        f"of `eqco embed` by {100 * RESIZE_TOLERANCE:g} % of the largest one. More was refused.",
        "",
    ]


def image_lines(weights: Weights, kind: str, usage: Sequence[str]) -> list[str]:
    """How images are prepared: in words, and as code that gives the features of `eqco embed`."""
    timm = any("timm." in line for line in usage)
    return [
        "## Images",
        "",
        f"The network takes {kind} of {size_words(weights)} pixels, scaled to [0, 1] and then "
        f"normalised, in eval mode. This gives the features that `eqco embed` gives:",
        "",
        "```python",
        *preprocessing_code(weights),
        "```",
        "",
        *([f"{timm_difference(weights)}.", ""] if timm else []),
    ]


def size_words(weights: Weights) -> str:
    """The size of image, and whether it is only a guess."""
    size = f"{weights.image_size} × {weights.image_size}"
    return size if weights.size_is_known else f"a size that is not known (try {size})"


def training_lines(weights: Weights, facts: RunFacts) -> list[str]:
    """How the weights came about, as far as it is known."""
    recipe = weights.recipe
    if recipe is None:
        return [f"Unknown: taken from {Path(weights.name).name}, which was not trained by a run."]
    alpha = "none (plain InfoNCE)" if recipe.objective.alpha is None else recipe.objective.alpha
    count = recipe.num_negatives
    negatives = f"{count}, temperature {recipe.objective.temperature}, α {alpha}"
    lines = [
        f"* method: {recipe.method.name}, without labels",
        f"* negatives: {'none' if count is None else negatives}",
        f"* steps: {weights.step}, of {recipe.training.num_queries} images each",
        f"* seed: {recipe.training.seed}",
    ]
    if facts:
        lines.insert(1, f"* data: {facts['data']}, {facts['images']:,} images")
        lines.insert(2, f"* epochs: {facts['epochs']} of {recipe.training.epochs}")
    return lines


def figure_lines(facts: RunFacts) -> list[str]:
    """The figures of the run's end, or that there are none."""
    probe, table = facts.get("probe"), facts.get("validation")
    if table:
        return validation_lines(table)
    if not probe:
        return ["None were measured on these weights. `eqco eval` measures them."]
    return [f"* {name}: {100 * value:.1f} %" for name, value in probe.items()]


def validation_lines(table: dict[str, Any]) -> list[str]:
    """Accuracy on validation images beside simpler things, as `eqco train` measured it."""
    rows = [
        f"| {row['name']} | " + " | ".join(percent(row[each]) for each in ("knn", "probe")) + " |"
        for row in table["rows"]
    ]
    return [
        f"Accuracy on {table['images']:,} validation images ({table['of']}), not test images, with "
        f"95 % intervals:",
        "",
        "|  | kNN | probe |",
        "|---|---|---|",
        *rows,
    ]


def percent(accuracy: dict[str, float]) -> str:
    """An accuracy and its interval.

    >>> percent({"value": 0.5, "low": 0.4, "high": 0.6})
    '50.0 % (40.0 to 60.0)'
    """
    value, low, high = (100 * accuracy[name] for name in ("value", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
