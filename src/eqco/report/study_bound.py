"""The study of the bound as pictures: f̂ − truth against α, one line for each K."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes

from eqco.experiments.study_bound import CRITICS
from eqco.report.charts import Chart, Series
from eqco.report.style import INK, SHADES, panels, save
from eqco.runtime.records import Record
from eqco.theory import largest_overshoot

__all__ = ["charts_study_bound", "finding_study_bound", "plot_study_bound"]


def plot_study_bound(records: Sequence[Record], path: Path) -> Path:
    """Draw one profile, a column for each true value, a row for each critic; the first seeds."""
    chosen = first_seeds(records)
    columns = len(chosen)
    figure, axes = panels(columns, rows=2, width=3.7, height=3.3, sharex=True, sharey="col")
    for row, (curve, words) in enumerate(CRITICS.items()):
        here = axes[row * columns : (row + 1) * columns]
        here[0].set_ylabel(f"f̂ − truth (nats), {words}", fontsize=9, color=INK)
        for panel, record in zip(here, chosen.values(), strict=True):
            draw_excess(panel, record, curve)
    for panel, truth in zip(axes[:columns], chosen, strict=True):
        panel.set_title(f"truth {truth:g} nats", fontsize=10, color=INK)
    for panel in axes[columns:]:
        panel.set_xlabel("α", fontsize=9, color=INK)
    first = axes[0]
    first.plot([], [], ":", color=INK, linewidth=1, label="no critic of this K exceeds")
    first.plot([], [], "o", color=INK, markersize=4, label="α = K: last guaranteed bound")
    first.plot([], [], "|", color=INK, markersize=11, mew=1.8, label="f̂ reaches the truth")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside right center",
        title="K negatives per query",
        title_fontsize=8,
        fontsize=8,
        frameon=False,
    )
    return save(figure, path)


def draw_excess(panel: Axes, record: Record, curve: str) -> None:
    """One critic at one true value: f̂ − truth, and dotted what it cannot exceed, for each K."""
    alphas, ks = record.recipe["alphas"], record.recipe["negatives"]
    shades = colormaps["viridis"].resampled(len(ks) + 1)
    panel.axhspan(0, 100, color="#c44e52", alpha=0.07, linewidth=0)
    panel.axhline(0, color=INK, linewidth=1.2)
    for index, num_negatives in enumerate(ks):
        points = excess_points(record, curve, num_negatives)
        colour, label = shades(index), f"K = {num_negatives}"
        panel.plot(*zip(*points, strict=True), color=colour, label=label)
        panel.plot(*points[0], "o", color=colour, markersize=4)
        ceiling = ceiling_points(record, num_negatives)
        panel.plot(*zip(*ceiling, strict=True), ":", color=colour, linewidth=1)
        key = f"alpha at the truth, {CRITICS[curve]}, K={num_negatives}"
        if key in record.metrics:
            panel.plot(record.metrics[key], 0, "|", color=colour, markersize=11, mew=1.8)
    if curve == "excess":
        panel.plot(alphas, record.curves["limit"], "--", color=INK, linewidth=1, label="K → ∞")
    low, high = min(record.curves["limit"]), largest_overshoot(alphas[-1], ks[0])
    panel.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    panel.set_xscale("log", base=2)
    panel.set_xticks([2**power for power in (1, 4, 7, 10, 13, 16)])
    red, place = "#c44e52", panel.transAxes
    panel.text(0.03, 0.97, "above the truth", transform=place, va="top", fontsize=8, color=red)


def excess_points(record: Record, curve: str, num_negatives: int) -> list[tuple[float, float]]:
    """α and f̂ − truth, from α = K on."""
    row = record.curves[curve][str(num_negatives)]
    shown = zip(record.recipe["alphas"], row, strict=True)
    return [(float(alpha), excess) for alpha, excess in shown if excess is not None]


def ceiling_points(record: Record, num_negatives: int) -> list[tuple[float, float]]:
    """α and the largest f̂ − truth of any critic, from α = K on."""
    alphas = [alpha for alpha in record.recipe["alphas"] if alpha >= num_negatives]
    return [(float(alpha), largest_overshoot(alpha, num_negatives)) for alpha in alphas]


def first_seeds(records: Sequence[Record]) -> dict[float, Record]:
    """One record for each true value: that of the smallest seed."""
    ordered = sorted(records, key=lambda record: (record.recipe["information"], -record.seed))
    return {record.recipe["information"]: record for record in ordered}


def charts_study_bound(records: Sequence[Record]) -> list[Chart]:
    """For the page: a chart for each true value and critic, one line for each K."""
    chosen = first_seeds(records).items()
    return [
        excess_chart(record, curve, f"truth {truth:g} nats, {words}")
        for curve, words in CRITICS.items()
        for truth, record in chosen
    ]


def excess_chart(record: Record, curve: str, title: str) -> Chart:
    """f̂ − truth against α; dashed, what no critic with the fewest negatives exceeds."""
    alphas, ks = record.recipe["alphas"], record.recipe["negatives"]
    zero = [(float(alpha), 0.0) for alpha in (alphas[0], alphas[-1])]
    series = [Series(name="truth", points=zero, colour="ink", look="thin")]
    for place, count in enumerate(ks):
        points = excess_points(record, curve, count)
        colour = SHADES[place * len(SHADES) // len(ks)]
        series.append(Series(name=f"K = {count}", points=points, colour=colour))
    for place in (0, len(ks) - 1):
        points, name = ceiling_points(record, ks[place]), f"no critic of K = {ks[place]} exceeds"
        colour = SHADES[place * len(SHADES) // len(ks)]
        series.append(Series(name=name, points=points, colour=colour, look="dashed"))
    if curve == "excess":
        limit = [(float(a), e) for a, e in zip(alphas, record.curves["limit"], strict=True)]
        series.append(Series(name="K → ∞", points=limit, colour="ink", look="dashed"))
    return Chart(
        title=title,
        x_label="α",
        y_label="f̂ − truth, nats",
        series=series,
        log_x=True,
        ticks=[alpha for alpha in alphas if alpha.bit_length() % 3 == 2],
    )


def finding_study_bound(records: Sequence[Record]) -> str:
    """The largest excess, and where it is."""
    best, truth, count, record = max(
        (
            (row[-1], truth, int(count), record)
            for truth, record in first_seeds(records).items()
            for count, row in record.curves["best"].items()
        ),
        key=lambda found: found[0],
    )
    alpha, plain = record.recipe["alphas"][-1], record.curves["excess"][str(count)][-1]
    if best <= 0:
        return f"f̂ stays below the truth up to α = {alpha}."
    return (
        f"Once α > K f̂ is an estimate: at K = {count} and α = {alpha} it exceeds a truth of "
        f"{truth:g} nats by {plain:.2f} with the true density ratio as critic and by {best:.2f} "
        f"with the best multiple of it; no critic's exceeds it by more than "
        f"{largest_overshoot(alpha, count):.2f}."
    )
