"""The study of the bound as pictures: f̂ − truth against α, one line for each K."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from eqco.report.charts import Chart, Series
from eqco.report.style import INK, SHADES, panels, save
from eqco.runtime.records import Record

__all__ = ["charts_study_bound", "finding_study_bound", "plot_study_bound"]


def plot_study_bound(records: Sequence[Record], path: Path) -> Path:
    """Draw the records of one profile, one panel for each true value; the first seed of each."""
    chosen = first_seeds(records)
    figure, axes = panels(len(chosen), width=3.7, height=3.9)
    for panel, (truth, record) in zip(axes, chosen.items(), strict=True):
        alphas, ks = record.recipe["alphas"], record.recipe["negatives"]
        shades = matplotlib.colormaps["viridis"].resampled(len(ks) + 1)
        panel.axhspan(0, 100, color="#c44e52", alpha=0.07, linewidth=0)
        panel.axhline(0, color=INK, linewidth=1.2)
        for index, num_negatives in enumerate(ks):
            row = record.curves["excess"][str(num_negatives)]
            points = [(a, e) for a, e in zip(alphas, row, strict=True) if e is not None]
            panel.plot(
                *zip(*points, strict=True), color=shades(index), label=f"K = {num_negatives}"
            )
            panel.plot(*points[0], "o", color=shades(index), markersize=4)
            reached = record.metrics.get(f"alpha at the truth, K={num_negatives}")
            if reached is not None:
                panel.plot(reached, 0, "|", color=shades(index), markersize=11, mew=1.8)
        panel.plot(alphas, record.curves["limit"], "--", color=INK, linewidth=1, label="K → ∞")
        panel.set_xscale("log", base=2)
        panel.set_xticks([2**power for power in (1, 4, 7, 10, 13, 16)])
        panel.set_title(f"truth {truth:g} nats", fontsize=10, color=INK)
        panel.set_xlabel("α", fontsize=9, color=INK)
        low, high = min(record.curves["limit"]), record.curves["excess"][str(ks[0])][-1]
        panel.set_ylim(low - 0.05 * (high - low), high + 0.15 * (high - low))
        panel.text(
            0.03,
            0.97,
            "above the truth",
            transform=panel.transAxes,
            va="top",
            fontsize=8,
            color="#c44e52",
        )
    axes[0].set_ylabel("f̂ − truth (nats), best critic", fontsize=9, color=INK)
    axes[0].plot([], [], "o", color=INK, markersize=4, label="α = K: last guaranteed bound")
    axes[0].plot([], [], "|", color=INK, markersize=11, mew=1.8, label="f̂ reaches the truth")
    handles, labels = axes[0].get_legend_handles_labels()
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


def first_seeds(records: Sequence[Record]) -> dict[float, Record]:
    """One record for each true value: that of the smallest seed."""
    ordered = sorted(records, key=lambda record: (record.recipe["information"], -record.seed))
    return {record.recipe["information"]: record for record in ordered}


def charts_study_bound(records: Sequence[Record]) -> list[Chart]:
    """For the page: one chart for each true value, one line for each K."""
    charts = []
    for truth, record in first_seeds(records).items():
        alphas, ks = record.recipe["alphas"], record.recipe["negatives"]
        zero = [(float(alpha), 0.0) for alpha in (alphas[0], alphas[-1])]
        series = [Series(name="truth", points=zero, colour="ink", look="thin")]
        for place, num_negatives in enumerate(ks):
            row = record.curves["excess"][str(num_negatives)]
            points = [(float(a), e) for a, e in zip(alphas, row, strict=True) if e is not None]
            colour = SHADES[place * len(SHADES) // len(ks)]
            series.append(Series(name=f"K = {num_negatives}", points=points, colour=colour))
        limit = [(float(a), e) for a, e in zip(alphas, record.curves["limit"], strict=True)]
        series.append(Series(name="K → ∞", points=limit, colour="ink", look="dashed"))
        charts.append(
            Chart(
                title=f"truth {truth:g} nats",
                x_label="α",
                y_label="f̂ − truth, nats",
                series=series,
                log_x=True,
                ticks=[alpha for alpha in alphas if alpha.bit_length() % 3 == 2],
            )
        )
    return charts


def finding_study_bound(records: Sequence[Record]) -> str:
    """The largest excess, and where it is."""
    excess, truth, num_negatives, alpha = max(
        (row[-1], truth, int(count), record.recipe["alphas"][-1])
        for truth, record in first_seeds(records).items()
        for count, row in record.curves["excess"].items()
    )
    if excess <= 0:
        return f"Even the best critic's f̂ stays below the truth up to α = {alpha}."
    return (
        f"Even with the best critic f̂ is an estimate once α > K: it exceeds a truth of {truth:g} "
        f"nats by {excess:.2f} at K = {num_negatives} and α = {alpha}."
    )
