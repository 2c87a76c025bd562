"""Several runs side by side: what differs in their settings, how they learned, what they reach."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib.axes import Axes

from eqco.recipes import Recipe, recipe_from_dict
from eqco.report.style import INK, SHADES, panels, save, shade
from eqco.report.tables import number_text
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory, differences, read_object

__all__ = ["ComparedRun", "comparison_lines", "comparison_notes", "draw_comparison", "loss_note"]

NONE = "–"
LAST = 0.1  # share of a training whose mean stands for its end


@dataclass(frozen=True)
class ComparedRun:
    """A run as it stands in its directory."""

    path: Path

    @property
    def name(self) -> str:
        """Its folder."""
        return self.path.resolve().name

    @cached_property
    def directory(self) -> RunDirectory:
        """Its files."""
        found = RunDirectory(self.path)
        if not found.recipe.exists():
            raise InputError(
                f"{self.path} is not a run directory; give such as eqco train leaves in runs/."
            )
        return found

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its recipe as JSON has it."""
        return self.directory.read_recipe()

    @cached_property
    def recipe(self) -> Recipe:
        """Its recipe."""
        return recipe_from_dict(self.settings)

    @cached_property
    def began(self) -> dict[str, Any]:
        """Data, machine and versions that it began with."""
        return self.directory.read_environment()

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Its metrics."""
        return self.directory.read_metrics()

    @cached_property
    def validation(self) -> dict[str, Any]:
        """What `eqco train` measured at the end; empty where it did not."""
        file = self.path / "validation.json"
        return read_object(file) if file.is_file() else {}

    @property
    def steps(self) -> int:
        """Steps that its metrics tell of."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole training; None where it is not known."""
        per_epoch = self.began.get("steps_per_epoch")
        return None if per_epoch is None else self.recipe.training.epochs * per_epoch

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(images seen, value) of a metric; `probe/` is the first probe of that kind."""
        count = self.recipe.training.num_queries
        return [
            (line["step"] * count, value)
            for line in self.lines
            for key, value in line.items()
            if (key == name or (name == "probe/" and key.startswith(name)))
            and isinstance(value, int | float)
        ]

    def end(self, name: str) -> float | None:
        """The mean of a metric over the last tenth of the training."""
        points = self.curve(name)
        if not points:
            return None
        return fmean(value for seen, value in points if seen > (1 - LAST) * points[-1][0])

    def accuracy(self, measure: str) -> str:
        """kNN or probe on validation images, in percent with its interval."""
        rows = self.validation.get("rows") or [{}]
        found = rows[-1].get(measure)  # the encoder is the last, after what it must beat
        if found is None:
            return NONE
        value, low, high = (100 * found[key] for key in ("value", "low", "high"))
        return f"{value:.1f} ({low:.1f}–{high:.1f})"

    @cached_property
    def images_per_second(self) -> float | None:
        """The median over the training, from its events; None where there are none."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = self.path / "tensorboard"
        if not folder.is_dir():
            return None
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        if "images_per_second" not in events.Tags()["scalars"]:
            return None
        return median(event.value for event in events.Scalars("images_per_second"))


def comparison_lines(runs: Sequence[ComparedRun]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table: a column for each run."""
    lines = [
        [name, *(setting_text(run.settings, name) for run in runs)] for name in differing(runs)
    ]
    rows: dict[str, list[str]] = {
        "data": [str(run.began["data"]) for run in runs],
        "images": [f"{run.began['images']:,}" for run in runs],
        "steps": [steps_text(run) for run in runs],
        "K": [negatives_text(run.recipe) for run in runs],
        "loss at the end": [optional_text(run.end("loss")) for run in runs],
        "f̂ at the end, nats": [information_text(run) for run in runs],
        "kNN, %": [run.accuracy("knn") for run in runs],
        "probe, %": [run.accuracy("probe") for run in runs],
        "images/s": [optional_text(run.images_per_second) for run in runs],
    }
    if len(set(rows["data"])) == 1 and len(set(rows["images"])) == 1:
        del rows["data"], rows["images"]
    lines += [[name, *texts] for name, texts in rows.items() if set(texts) != {NONE}]
    return ["", *column_names(runs)], lines


def column_names(runs: Sequence[ComparedRun]) -> list[str]:
    """The runs by their folders, or by their paths where folders share a name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Names of the settings that are not the same in all runs."""
    found: dict[str, None] = {}
    for run in runs[1:]:
        found |= dict.fromkeys(differences(runs[0].settings, run.settings))
    return list(found)


def setting_text(settings: Mapping[str, Any], name: str) -> str:
    """A setting by its name; a dash where the method has none such, or it is the default."""
    value: Any = settings
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return NONE
        value = value[key]
    return str(value)


def steps_text(run: ComparedRun) -> str:
    """How far it was trained."""
    total = run.total_steps
    complete = run.directory.result.exists() or run.steps == total
    return f"{run.steps:,}" if complete or total is None else f"{run.steps:,} of {total:,}"


def negatives_text(recipe: Recipe) -> str:
    """K, where the method has negatives."""
    count = recipe.num_negatives
    return NONE if count is None else f"{count:,}"


def optional_text(value: float | None) -> str:
    """A number, if there is one."""
    return NONE if value is None else number_text(value)


def information_text(run: ComparedRun) -> str:
    """f̂ at the end: ≥ where it is a bound, ≈ where it is an estimate."""
    value = run.end("information")
    kinds = [line["information_kind"] for line in run.lines if "information_kind" in line]
    if value is None or not kinds:
        return NONE
    return f"{'≥' if kinds[-1] == 'bound' else '≈'} {value:.2f}"


def loss_note(recipes: Sequence[Recipe]) -> str:
    """Why the losses of these recipes cannot be compared; empty where they can.

    >>> from dataclasses import replace
    >>> plain, eqco = Recipe(), replace(Recipe(), objective=replace(Recipe().objective, alpha=256))
    >>> loss_note([plain, eqco])[:59]
    'Losses are not comparable: they are of different α (None, 2'
    >>> loss_note([plain, plain])
    ''
    """
    kinds: dict[str, list[Any]] = {
        "method": [recipe.method.name for recipe in recipes],
        "α": [recipe.objective.alpha for recipe in recipes],
        "τ": [recipe.objective.temperature for recipe in recipes],
        "K": [recipe.num_negatives for recipe in recipes],
    }
    # an α with a count that it imitates makes losses of different K comparable
    if all(alpha is not None and math.isfinite(alpha) for alpha in kinds["α"]):
        del kinds["K"]
    named = [
        f"{name} ({', '.join(value_text(value) for value in dict.fromkeys(values))})"
        for name, values in kinds.items()
        if len(set(values)) > 1
    ]
    if not named:
        return ""
    return (
        f"Losses are not comparable: they are of different {' and '.join(named)}. A lower one says "
        f"nothing; compare accuracies, or f̂."
    )


def value_text(value: Any) -> str:
    """A setting's value in a sentence."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def comparison_notes(runs: Sequence[ComparedRun]) -> list[str]:
    """What a reader of the table must know."""
    notes = [loss_note([run.recipe for run in runs])]
    assessed = [run.validation for run in runs if run.validation]
    measured = {(found.get("of"), found.get("images")) for found in assessed}
    if len({run.began["data"] for run in runs}) > 1 or len(measured) > 1:
        notes.append("They are of different images: accuracies are not comparable.")
    if any(run.validation for run in runs):
        notes.append(
            "In brackets: 95 % interval over validation images; another seed would differ as well."
        )
    without = [run for run in runs if not run.validation]
    if without:
        names = ", ".join(str(run.path) for run in without)
        notes.append(
            f"Accuracy was not measured at the end of {names}: eqco eval RUN DATA does, on images "
            f"with classes."
        )
    machines = {str(run.began.get("hardware", {}).get("processor")) for run in runs}
    if len(machines) > 1:
        notes.append(f"images/s is of different machines: {', '.join(sorted(machines))}.")
    return [note for note in notes if note]


def draw_comparison(runs: Sequence[ComparedRun], path: Path) -> Path:
    """Loss, f̂ and kNN accuracy of all runs against the images seen."""
    note = loss_note([run.recipe for run in runs])
    titles = {
        "loss": "loss (not comparable)" if note else "loss",
        "information": "f̂, nats",
        "probe/": "kNN accuracy on validation images, %",
    }
    shown = [name for name in titles if any(run.curve(name) for run in runs)]
    if not shown:
        raise InputError("none of the runs has metrics yet; train them first.")
    figure, axes = panels(len(shown), width=4.2, height=3.4)
    names = column_names(runs)
    colours = [shade(SHADES[place]) for place in spread_places(len(runs))]
    for panel, name in zip(axes, shown, strict=True):
        draw_curves(panel, runs, name, names, colours)
        panel.set_title(titles[name], fontsize=9, color=INK)
        panel.set_xlabel("images seen", fontsize=8, color=INK)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=min(4, len(runs)),
        fontsize=8,
        frameon=False,
    )
    return save(figure, path)


def draw_curves(
    panel: Axes,
    runs: Sequence[ComparedRun],
    name: str,
    names: Sequence[str],
    colours: Sequence[str],
) -> None:
    """One metric of all runs; accuracies are few, and have marks."""
    probe = name == "probe/"
    for run, label, colour in zip(runs, names, colours, strict=True):
        points = [(seen, 100 * value if probe else value) for seen, value in run.curve(name)]
        seen, values = zip(*points, strict=True) if points else ((), ())
        marker = "o" if probe or len(points) == 1 else ""  # a line through one point is not seen
        panel.plot(
            seen, values, color=colour, linewidth=1.2, marker=marker, markersize=3, label=label
        )


def spread_places(count: int) -> list[int]:
    """Places in the scale of shades, as far from each other as they can be.

    >>> spread_places(2), spread_places(1)
    ([0, 9], [0])
    """
    last = len(SHADES) - 1
    return [round(number * last / max(1, count - 1)) for number in range(count)]
