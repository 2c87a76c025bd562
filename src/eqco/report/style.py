"""One look for all plots."""

from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

__all__ = ["COLOURS", "DARK_COLOURS", "SHADES", "panels", "save", "shade"]

COLOURS = {
    "infonce": "#c44e52",
    "eqco": "#3b6fb6",
    "ml-cpc": "#55935c",
    "decoupled": "#8a63ad",
    "other": "#a8741a",
}
DARK_COLOURS = {  # the same hues on a dark ground
    "infonce": "#f0878a",
    "eqco": "#82aef0",
    "ml-cpc": "#86c98d",
    "decoupled": "#c3a2e3",
    "other": "#e0b060",
}
INK = "#333333"
SHADES = [f"shade {place}" for place in range(10)]  # of a scale, such as K


def panels(
    count: int, *, rows: int = 1, width: float = 2.5, height: float = 3.0, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with rows of `count` panels; no window, no global state of matplotlib."""
    figure = Figure(figsize=(max(5.0, width * count), height * rows), layout="constrained", dpi=130)
    axes = list(figure.subplots(rows, count, squeeze=False, **shared).flat)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8, colors=INK)
        panel.grid(axis="y", color="#eeeeee", linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, axes


def shade(name: str, *, dark: bool = False) -> str:
    """The colour of one of `SHADES`; without the end of the scale that the ground would swallow.

    >>> shade("shade 0"), shade("shade 0", dark=True)
    ('#440154', '#3e4989')
    """
    first, last = (0.22, 1.0) if dark else (0.0, 0.86)
    place = SHADES.index(name) / (len(SHADES) - 1)
    return to_hex(colormaps["viridis"](first + (last - first) * place))


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
