"""Colours and axes of all plots and of the page."""

from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

__all__ = ["COLOURS", "SHADES", "colours", "palette", "panels", "save", "shade"]

# name -> on a light ground, and on paper; on a dark ground
LOSSES = {
    "infonce": ("#c44e52", "#f0878a"),
    "eqco": ("#3b6fb6", "#82aef0"),
    "ml-cpc": ("#55935c", "#86c98d"),
    "decoupled": ("#8a63ad", "#c3a2e3"),
    "other": ("#a8741a", "#e0b060"),
}
PAGE = {
    "ground": ("#ffffff", "#14171c"),
    "card": ("#f7f9fc", "#1a1f27"),
    "code": ("#f0f3f8", "#232a34"),
    "ink": ("#22262c", "#e8ebf0"),
    "soft": ("#464d57", "#c3c9d3"),
    "muted": ("#626b77", "#98a2b1"),
    "line": ("#d9dee6", "#333b48"),
    "hair": ("#edf0f4", "#262c36"),
    "on-eqco": ("#ffffff", "#10151d"),
}
COLOURS = {name: light for name, (light, _) in LOSSES.items()}
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


def colours(*, dark: bool) -> dict[str, str]:
    """Every colour by name."""
    shades = {name.replace(" ", "-"): shade(name, dark=dark) for name in SHADES}
    return {name: pair[dark] for name, pair in (PAGE | LOSSES).items()} | shades


def palette() -> str:
    """The variables, for light screens and paper, and for dark screens."""
    light, dark = (
        ":root{" + "".join(f"--{name}:{value};" for name, value in colours(dark=dim).items()) + "}"
        for dim in (False, True)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark){{{dark}}}\n"
