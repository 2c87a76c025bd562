"""One look for all plots."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["COLOURS", "panels", "save"]

COLOURS = {"infonce": "#c44e52", "eqco": "#3b6fb6", "ml-cpc": "#55935c"}
INK = "#333333"


def panels(
    count: int, *, width: float = 2.5, height: float = 3.0, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with a row of panels; no window, no global state of matplotlib."""
    figure = Figure(figsize=(max(5.0, width * count), height), layout="constrained", dpi=130)
    axes = list(figure.subplots(1, count, squeeze=False, **shared)[0])
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8, colors=INK)
        panel.grid(axis="y", color="#eeeeee", linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
