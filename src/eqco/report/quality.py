"""How good encoders are: accuracies over seeds, and curves of them over minutes."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from eqco.experiments.coordinates import distinct
from eqco.report.benchmark_tables import Metrics, Table, median_words, metrics_of
from eqco.report.charts import Chart, Series
from eqco.runtime.records import Record

__all__ = ["accuracy_tables", "quality_charts"]

CONTENDERS = {  # in curves of quality, and their colours
    "eqco": "eqco",
    "lightly SimCLR": "other",
    "lightly MoCo": "infonce",
    "stable-pretraining SimCLR": "decoupled",
}
PIXELS = "raw pixels"


def seeds_column(name: str) -> Callable[[Sequence[Metrics]], str]:
    """An accuracy in percent over the runs of one row."""

    def text(runs: Sequence[Metrics]) -> str:
        values = [100 * of(name) for of in runs]
        spread = f" ({min(values):.1f}–{max(values):.1f})" if len(values) > 1 else ""
        return f"{fmean(values):.1f}{spread}"

    return text


def accuracy_tables(record: Record) -> list[Table]:
    """A table for each data set, with a row for each contender: metrics are SET/ROW/RUN/NAME."""
    found = []
    for data, images in record.recipe["data"].items():
        rows = distinct(key.split("/")[1] for key in record.metrics if key.startswith(f"{data}/"))
        lines = []
        for row in rows:
            each = runs_of_row(record, data, row)
            cells = [seeds_column(name)(each) for name in ("knn", "probe")]
            lines.append([row, *cells, minutes_taken(each)])
        part = f", {images:,} training images" if images else ""
        header = ["", "kNN", "probe", "minutes"]
        if not any(minutes for *_, minutes in lines):
            header, lines = header[:-1], [line[:-1] for line in lines]
        found.append(Table(title=f"{data}{part}", header=header, lines=lines))
    return found


def minutes_taken(runs: Sequence[Metrics]) -> str:
    """How long trainings took whose length was chosen before; nothing of others."""
    values = [of("minutes") for of in runs]
    return "" if math.isnan(values[0]) else median_words(values, "{:.1f}")


def runs_of_row(record: Record, data: str, row: str) -> list[Metrics]:
    """The metrics of each seed of one contender."""
    prefix = f"{data}/{row}/"
    rest = (key.removeprefix(prefix) for key in record.metrics if key.startswith(prefix))
    return [
        metrics_of(record, f"{prefix}{run}/", math.nan)
        for run in distinct(r.split("/")[0] for r in rest)
    ]


def quality_charts(record: Record) -> list[Chart]:
    """kNN over minutes, a chart for each data set; dashed: a simpler thing, which is not trained.

    Ours is measured on validation images while it trains, the others on a part of the test images.
    """
    charts = []
    for data, curves in record.curves.items():
        ends = [minutes for curve in curves.values() for minutes, _ in curve]
        series = [
            Series(
                name=name,
                points=[(round(minutes, 2), round(100 * knn, 1)) for minutes, knn in curve],
                colour=CONTENDERS[name],
            )
            for name, curve in curves.items()
            if name in CONTENDERS
        ]
        level = 100 * fmean(of("knn") for of in runs_of_row(record, data, PIXELS))
        across = [(0.0, round(level, 1)), (round(max(ends), 2), round(level, 1))]
        series.append(Series(name=PIXELS, points=across, colour="ink", style="dashed"))
        charts.append(Chart(title=data, x_label="minutes", y_label="kNN, %", series=series))
    return charts
