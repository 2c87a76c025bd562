"""Table 5 as pictures: estimate against K, one panel for each true value, truth as a line."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import Comparison
from eqco.experiments.tab5 import compare, steadiness
from eqco.report.charts import Chart, Series, series_of_cells
from eqco.report.style import COLOURS, INK, panels, save
from eqco.runtime.records import Record

__all__ = ["charts_tab5", "finding_tab5", "plot_tab5"]

NAMES = {"infonce": "InfoNCE", "eqco": "EqCo", "ml-cpc": "multi-label CPC"}


def plot_tab5(records: Sequence[Record], path: Path) -> Path:
    """Draw the records of one profile; whiskers span the seeds, hollow marks are the paper's."""
    recipe = records[0].recipe
    cells = compare(records)
    figure, axes = panels(len(recipe["information"]), width=2.3, height=3.5)
    for panel, truth in zip(axes, recipe["information"], strict=True):
        panel.axhline(truth, color=INK, linewidth=1.2)
        for estimator in recipe["estimators"]:
            row = Coordinates(loss=estimator, information=truth)
            draw_row(panel, [cell for cell in cells if cell.row == row], estimator)
        pairs = sorted({record.recipe["pairs"] for record in records})
        panel.set_title(f"truth {truth:g} nats", fontsize=10, color=INK)
        panel.set_xticks(range(len(pairs)), [str(count) for count in pairs])
        panel.margins(x=0.12)
        low = panel.get_ylim()[0]
        panel.set_ylim(low - 0.03 * (truth - low), truth + 0.08 * (truth - low))
    axes[0].set_ylabel("f̂ (nats)", fontsize=9, color=INK)
    figure.supxlabel("K, pairs per batch (K − 1 negatives per query)", fontsize=9, color=INK)
    seeds = len({record.seed for record in records})
    axes[0].plot([], [], color=INK, linewidth=1.2, label="truth")
    axes[0].plot([], [], "o", color=INK, mfc="none", label="paper, Table 5")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8.5, frameon=False
    )
    figure.text(
        0.995,
        0.005,
        f"profile {records[0].profile}, {seeds} seed{'s' * (seeds > 1)}, α = {recipe['alpha']:g}",
        ha="right",
        fontsize=7,
        color="#888888",
    )
    return save(figure, path)


def draw_row(panel: Axes, cells: Sequence[Comparison], estimator: str) -> None:
    """One estimator in one panel."""
    colour = COLOURS[estimator]
    means = [cell.mean for cell in cells]
    low = [cell.mean - min(cell.values) for cell in cells]
    high = [max(cell.values) - cell.mean for cell in cells]
    kinds = "/".join(dict.fromkeys(cell.kind for cell in cells))
    panel.errorbar(
        range(len(cells)),
        means,
        yerr=[low, high],
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.6,
        capsize=2.5,
        label=f"{NAMES[estimator]} ({kinds})",
    )
    published = [(x, cell.published) for x, cell in enumerate(cells) if cell.published is not None]
    if published:
        panel.plot(
            *zip(*published, strict=True), "o", mfc="none", mec=colour, markersize=9, mew=1.0
        )


def charts_tab5(records: Sequence[Record]) -> list[Chart]:
    """For the page: one chart for each true value."""
    recipe, cells = records[0].recipe, compare(records)
    charts = []
    for truth in recipe["information"]:
        pairs = sorted({record.recipe["pairs"] for record in records})
        line = [(float(count), truth) for count in pairs]
        series = [Series(name="truth", points=line, colour="ink", look="thin")]
        for estimator in recipe["estimators"]:
            row = [
                cell for cell in cells if cell.row == Coordinates(loss=estimator, information=truth)
            ]
            name = f"{NAMES[estimator]} ({'/'.join(dict.fromkeys(cell.kind for cell in row))})"
            series += series_of_cells(name, row, [float(p) for p in pairs], colour=estimator)
        charts.append(
            Chart(
                title=f"truth {truth:g} nats",
                x_label="K, pairs per batch",
                y_label="f̂, nats",
                series=series,
                log_x=True,
                ticks=pairs,
            )
        )
    return charts


def finding_tab5(records: Sequence[Record]) -> str:
    """How far each estimate moves with K."""
    swings: dict[str, list[float]] = {}
    for cell in steadiness(compare(records)):
        if isinstance(cell.column, Coordinates):
            swings.setdefault(cell.column.loss or "", []).append(cell.mean)
    pairs = sorted({record.recipe["pairs"] for record in records})
    if len(pairs) < 2 or not {"infonce", "eqco"} <= set(swings):
        return ""
    return (
        f"Between Gaussians of known information the reading of InfoNCE moves by up to "
        f"{max(swings['infonce']):.2f} nats as K goes from {pairs[0]} to {pairs[-1]}, that of EqCo "
        f"by at most {max(swings['eqco']):.2f}."
    )
