"""Charts of the page as a picture file, for documents: the same values, drawn by matplotlib."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from eqco.report.charts import Chart, Series
from eqco.report.style import COLOURS, INK, panels, save, shade
from eqco.report.words import plural, seeds_of
from eqco.runtime.records import Record

__all__ = ["draw_charts", "picture_of"]

IN_ROW = 5  # charts of a picture
STYLES = {"line": "-", "thin": "-", "dashed": "--", "marks": "none"}


def picture_of(
    charts: Callable[[Sequence[Record]], list[Chart]],
) -> Callable[[Sequence[Record], Path], Path]:
    """A plot for `eqco reproduce` from the charts of the page."""

    def plot(records: Sequence[Record], path: Path) -> Path:
        note = f"profile {records[0].profile}, {plural(len(seeds_of(records)), 'seed')}"
        data = records[0].recipe.get("data")
        return draw_charts(charts(records), path, f"{data}, {note}" if data else note)

    return plot


def draw_charts(charts: Sequence[Chart], path: Path, note: str = "") -> Path:
    """All charts in one row, or in two where they are many, with one legend."""
    rows = 1 if len(charts) <= IN_ROW else 2
    columns = -(-len(charts) // rows)
    width = max(3.3 if columns < IN_ROW else 2.6, 8.0 / columns)
    figure, axes = panels(columns, rows=rows, width=width, height=3.7)
    handles: dict[str, Artist] = {}
    before = ""
    for place, (panel, chart) in enumerate(zip(axes, charts, strict=False)):
        (draw_bars if chart.categories else draw_lines)(panel, chart)
        panel.set_title(chart.title, fontsize=10, color=INK)
        if chart.y_label == before and place % columns:  # once for all in a row that share it
            panel.set_ylabel("")
        before = chart.y_label
        if len(chart.series) > 1:
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    for spare in axes[len(charts) :]:
        spare.set_axis_off()
    if handles:
        longest = 0.6 + 0.07 * max(map(len, handles))  # inches, with its mark
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=max(1, min(max(3, int(columns * width // 2)), int(columns * width / longest))),
            fontsize=8.5,
            frameon=False,
        )
    figure.supxlabel(note, x=0.995, ha="right", fontsize=7, color="#888888")
    return save(figure, path)


def draw_lines(panel: Axes, chart: Chart) -> None:
    """Lines and marks; a range is a bar, or a band where the points are many."""
    for series in chart.series:
        x, y = zip(*series.points, strict=True) if series.points else ((), ())
        colour, many = colour_of(series), len(x) > 24
        marked = series.style == "marks" or (series.style == "line" and not many)
        # a number alone gets a wider ring, so that a line through the same place does not hide it
        ring = 11 if len(x) == 1 else 7
        panel.plot(
            x,
            y,
            linestyle=STYLES[series.style],
            marker="o" if marked else "",
            markersize=ring if series.published else 4,
            mfc="none" if series.published else colour,
            color=colour,
            linewidth=1.6 if series.style == "line" else 1.1,
            label=series.name,
        )
        if series.low and many:
            panel.fill_between(x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
        elif series.low:
            panel.vlines(x, series.low, series.high, color=colour, alpha=0.35, linewidth=4)
    if chart.log_x:
        panel.set_xscale("log", base=2)
    if chart.log_y:
        panel.set_yscale("log")
    if chart.ticks:
        panel.set_xticks(chart.ticks, [f"{tick:g}" for tick in chart.ticks])
        panel.minorticks_off()
    if chart.covers:
        room = 0.05 * (max(chart.covers) - min(chart.covers)) or 1.0
        panel.set_ylim(min(chart.covers) - room, max(chart.covers) + room)
    if chart.from_zero:
        panel.set_ylim(bottom=0)
    panel.set_xlabel(chart.x_label, fontsize=9, color=INK)
    panel.set_ylabel(chart.y_label, fontsize=9, color=INK)


def draw_bars(panel: Axes, chart: Chart) -> None:
    """Rows of bars from top to bottom, with their numbers."""
    thick = 0.8 / max(1, len(chart.series))
    for order, series in enumerate(chart.series):
        colour = colour_of(series)
        for i, (place, value) in enumerate(series.points):
            y = place + (order - (len(chart.series) - 1) / 2) * thick
            face = "none" if series.published else colour
            panel.barh(
                y, value, height=0.85 * thick, color=face, edgecolor=colour, label=series.name
            )
            end = value
            if series.low:
                panel.hlines(y, series.low[i], series.high[i], color=INK, linewidth=1.2)
                end = max(end, series.high[i])
            panel.annotate(
                f"{value:.1f}",
                (end, y),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    panel.set_yticks(range(len(chart.categories)), chart.categories)
    panel.invert_yaxis()
    panel.margins(x=0.16)
    panel.grid(visible=False)
    panel.set_xlabel(chart.y_label, fontsize=9, color=INK)


def colour_of(series: Series) -> str:
    """The colour of a series on a white ground."""
    if series.colour == "ink":
        return INK
    return COLOURS.get(series.colour) or shade(series.colour)
