"""Tables of trainings as pictures: accuracy against K, f̂ during training, gradient norms."""

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eqco.experiments.catalog import find_experiment
from eqco.experiments.experiment import Comparison
from eqco.experiments.fig2 import LOSSES
from eqco.report.style import COLOURS, INK, panels, save
from eqco.runtime.records import Record

__all__ = ["plot_grid", "plot_information", "plot_norms"]

SHADES = matplotlib.color_sequences["tab10"]


def plot_grid(records: Sequence[Record], path: Path) -> Path:
    """The main table: one line for each row, columns along the axis, whiskers over seeds."""
    experiment = find_experiment(records[0].experiment)
    cells = experiment.compare(records)
    columns = in_order({cell.column for cell in cells}, [cell.column for cell in cells])
    figure, (panel,) = panels(1, width=6.0, height=3.6)
    rows = list(dict.fromkeys(cell.row for cell in cells))
    for number, row in enumerate(rows):
        own = sorted(
            (cell for cell in cells if cell.row == row), key=lambda cell: columns.index(cell.column)
        )
        beside = 0.04 * (number - (len(rows) - 1) / 2)  # so that whiskers do not hide each other
        draw_row(panel, own, columns, beside, SHADES[number % len(SHADES)])
    panel.set_xticks(range(len(columns)), columns, fontsize=8)
    panel.set_xlim(-0.4, len(columns) - 0.6)
    panel.set_ylabel("accuracy, %", fontsize=9, color=INK)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    sign(figure, records)
    return save(figure, path)


def in_order(columns: set[str], listed: Sequence[str]) -> list[str]:
    """Columns by the number they have, or as they are listed where one has none.

    >>> in_order({"K=16", "K=4"}, ["K=16", "K=4"]), in_order({"Sync BN"}, ["Sync BN"])
    (['K=4', 'K=16'], ['Sync BN'])
    """
    numbers = {column: re.search(r"[\d.]+", column) for column in columns}
    if all(numbers.values()):
        return sorted(columns, key=lambda column: float(numbers[column][0]))  # type: ignore[index]
    return list(dict.fromkeys(listed))


def draw_row(
    panel: Axes,
    cells: Sequence[Comparison],
    columns: Sequence[str],
    beside: float,
    colour: object,
) -> None:
    """One row; hollow marks are the paper's, where they were measured in the same setting."""
    places = [columns.index(cell.column) + beside for cell in cells]
    means = [cell.mean for cell in cells]
    reach = [
        [cell.mean - min(cell.values) for cell in cells],
        [max(cell.values) - cell.mean for cell in cells],
    ]
    panel.errorbar(
        places,
        means,
        yerr=reach,
        fmt="o-",
        color=colour,
        markersize=4,
        capsize=3,
        label=cells[0].row,
    )
    theirs = [
        (place, cell.published)
        for place, cell in zip(places, cells, strict=True)
        if cell.published is not None and cell.comparable
    ]
    if theirs:
        panel.plot(*zip(*theirs, strict=True), "o", mfc="none", mec=colour, markersize=9)


def plot_information(records: Sequence[Record], path: Path) -> Path:
    """Figure 1: f̂ against the step, InfoNCE and EqCo side by side, one colour for each K."""
    figure, axes = panels(2, width=3.7, height=3.4, sharey=True)
    counts = sorted({record.recipe["training"]["negatives"]["count"] for record in records})
    shades = matplotlib.colormaps["viridis"].resampled(len(counts) + 1)
    for record in records:
        settings = record.recipe["training"]
        count, alpha = settings["negatives"]["count"], settings["objective"]["alpha"]
        steps, values = zip(*record.curves["information"], strict=True)
        # EqCo at α = K is InfoNCE: the largest memory belongs to both sides
        sides = axes if count == counts[-1] else [axes[alpha is not None]]
        for panel in sides:
            panel.plot(steps, values, color=shades(counts.index(count)), linewidth=1.3, alpha=0.8)
    for panel, title in zip(axes, ("InfoNCE", f"EqCo, α = {counts[-1]}"), strict=True):
        panel.set_title(title, fontsize=10, color=INK)
        panel.set_xlabel("step", fontsize=9, color=INK)
    axes[0].set_ylabel("f̂, nats", fontsize=9, color=INK)
    for number, count in enumerate(counts):
        axes[1].plot([], [], color=shades(number), label=f"K = {count}")
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    sign(figure, records)
    return save(figure, path)


def plot_norms(records: Sequence[Record], path: Path) -> Path:
    """Figure 2: mean ‖dL/dq‖ with ±2σ over queries against K, a panel for each moment."""
    record = min(records, key=lambda record: record.seed)
    names = [name for name in record.curves if name.split()[0][0].isdigit()]
    shares = sorted({name.split()[0] for name in names}, key=float)
    figure, axes = panels(len(shares), width=2.6, height=3.4, sharey=True)
    epochs = record.recipe["training"]["training"]["epochs"]
    for panel, share in zip(axes, shares, strict=True):
        for loss, label in LOSSES.items():
            counts, means, deviations = zip(*record.curves[f"{share} {loss}"], strict=True)
            low = [mean - 2 * sigma for mean, sigma in zip(means, deviations, strict=True)]
            high = [mean + 2 * sigma for mean, sigma in zip(means, deviations, strict=True)]
            panel.fill_between(counts, low, high, color=COLOURS[loss], alpha=0.15, linewidth=0)
            panel.plot(counts, means, "o-", color=COLOURS[loss], markersize=3.5, label=label)
        panel.set_xscale("log", base=4)
        panel.set_xticks(counts, [str(count) for count in counts], rotation=45)
        panel.minorticks_off()
        panel.set_xlabel("K", fontsize=9, color=INK)
        panel.set_title(f"after {float(share) * epochs:g} epochs", fontsize=10, color=INK)
    axes[0].set_ylabel("‖dL/dq‖, mean ± 2σ", fontsize=9, color=INK)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    sign(figure, [record])
    return save(figure, path)


def sign(figure: Figure, records: Sequence[Record]) -> None:
    """Data, profile and seeds, in small letters below the picture."""
    seeds = sorted({record.seed for record in records})
    text = (
        f"{records[0].recipe['data']}, profile {records[0].profile}, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    )
    figure.text(0.995, 0.005, text, ha="right", fontsize=7, color="#888888")
