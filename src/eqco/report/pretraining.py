"""A training as a picture: f̂, gradient norm and kNN accuracy beside their references."""

from collections.abc import Sequence
from pathlib import Path

from eqco.experiments.pretraining import REFERENCES
from eqco.report.style import COLOURS, INK, panels, save
from eqco.runtime.records import Record

__all__ = ["plot_pretraining"]

SHADES = {"pixels": "#bbbbbb", "random": "#8a8a8a", "trained": COLOURS["eqco"]}


def plot_pretraining(records: Sequence[Record], path: Path) -> Path:
    """Curves of every seed, and bars of the mean accuracy with whiskers over seeds."""
    figure, axes = panels(3, width=3.3, height=3.2)
    kind = records[0].curves["information_kind"]
    for record in records:
        for panel, name in zip(axes, ("information", "gradient_norm_mean"), strict=False):
            steps, values = zip(*record.curves[name], strict=True)
            panel.plot(steps, values, color=COLOURS["eqco"], linewidth=1.4, alpha=0.8)
    axes[0].set_title(f"f̂, nats ({kind})", fontsize=10, color=INK)
    axes[1].set_title("mean ‖dL/dq‖", fontsize=10, color=INK)
    for panel in axes[:2]:
        panel.set_xlabel("step", fontsize=9, color=INK)
    axes[1].set_ylim(bottom=0)
    for place, name in enumerate(REFERENCES):
        found = [100 * record.metrics[name] for record in records]
        mean = sum(found) / len(found)
        reach = [[mean - min(found)], [max(found) - mean]]
        axes[2].bar(place, mean, yerr=reach, color=SHADES[name], capsize=4, width=0.65)
        axes[2].text(place, mean / 2, f"{mean:.1f}", ha="center", fontsize=9, color="white")
    axes[2].set_xticks(range(len(REFERENCES)), list(REFERENCES.values()), fontsize=8)
    neighbours = records[0].recipe["neighbours"]
    axes[2].set_title(f"kNN accuracy, % (k = {neighbours})", fontsize=10, color=INK)
    seeds = len({record.seed for record in records})
    figure.text(
        0.995,
        0.005,
        f"{records[0].recipe['data']}, profile {records[0].profile}, "
        f"{seeds} seed{'s' * (seeds > 1)}",
        ha="right",
        fontsize=7,
        color="#888888",
    )
    return save(figure, path)
