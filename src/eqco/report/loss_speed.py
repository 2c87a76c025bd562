"""The loss beside others: time and memory against K."""

import math
from functools import partial

from eqco.experiments.coordinates import distinct
from eqco.report.benchmark_tables import (
    Metrics,
    Table,
    every_round,
    median_words,
    metrics_of,
    ratio_of_medians,
    table_of,
)
from eqco.report.charts import Chart, Series
from eqco.runtime.records import Record

__all__ = ["loss_charts", "loss_note", "loss_tables"]

CASES = {
    "queue": "Gradient to queries (MoCo)",
    "keys": "Gradient to queries and keys",
    "views": "SimCLR's loss on two views of N images; K stands for N here",
}
RIVALS = {
    "ours": "eqco",
    "cross-entropy": "infonce",
    "compiled": "ml-cpc",
    "info-nce": "decoupled",
    "lightly": "other",
    "metric-learning": "shade 5",
}
DECISIVE = "decisive"  # the part of the loss's record with several rounds of one K


def rivals(record: Record, case: str) -> list[str]:
    """The losses measured in one case."""
    return distinct(key.split("/")[2] for key in record.metrics if key.startswith(f"{case}/"))


def loss_cost(name: str, of: Metrics) -> str:
    """Time and memory of one loss, where it could be measured."""
    seconds, memory = of(f"{name}/seconds"), of(f"{name}/bytes")
    return "–" if math.isnan(seconds) else f"{1e3 * seconds:.2f} ms, {memory / 1e6:.1f} MB"


def cases_over_k(record: Record) -> dict[str, list[int]]:
    """The cases measured at several K, each with these."""
    return {case: ks for case, ks in record.recipe["cases"].items() if case != DECISIVE}


def loss_tables(record: Record) -> list[Table]:
    """Times and memory of the loss beside its peers: at the decisive K over rounds, then by K."""
    tables = [decisive_table(record)] if DECISIVE in record.recipe["cases"] else []
    return tables + [
        table_of(
            "K",
            {str(k): metrics_of(record, f"{case}/{k}/", math.nan) for k in ks},
            {name: partial(loss_cost, name) for name in rivals(record, case)},
            CASES[case],
        )
        for case, ks in cases_over_k(record).items()
    ]


def decisive_table(record: Record) -> Table:
    """How far ours is above the floor and below the compiled loss, by rounds that took turns."""
    (k,), names, lines = record.recipe["cases"][DECISIVE], rivals(record, DECISIVE), []
    keys = [key.split("/") for key in record.metrics]
    for case in distinct(key[1] for key in keys if key[0] == DECISIVE):
        times = {name: every_round(record, f"{DECISIVE}/{case}/{name}") for name in names}
        cells = [
            f"{median_words([1e3 * each for each in seconds], '{:.1f}')} ms, "
            f"{record.metrics[f'{DECISIVE}/{case}/{name}/bytes'] / 1e6:.1f} MB"
            for name, seconds in times.items()
        ]
        cells.append(ratio_of_medians(times["ours"], times["floor"]))
        cells.append(ratio_of_medians(times["compiled"], times["ours"]))
        lines.append([CASES[case], *cells])
    header = [f"K = {k}", *names, "ours over floor", "compiled over ours"]
    return Table(header=header, lines=lines)


def loss_note(record: Record) -> str:
    """The peers, and how many rounds there were of what."""
    said = []
    if cases_over_k(record):
        # the first records have more rounds of one K
        more = ", of {rounds_at_65536} at K = 65536" if "rounds_at_65536" in record.recipe else ""
        said.append(f"{{peers}}. Best of {{rounds}} round(s){more}; single rounds differ by 15 % ")
        said.append("and more. –: failed or over 10 GiB. ")
    if DECISIVE in record.recipe["cases"]:
        (k,) = record.recipe["cases"][DECISIVE]
        said.append(f"Of K = {k} the median of {{decisive_rounds}} rounds (least–most).")
    return "".join(said).rstrip()


def loss_charts(record: Record) -> list[Chart]:
    """Milliseconds against K, a line for each loss."""
    charts = []
    for case, ks in cases_over_k(record).items():
        series = []
        for name in rivals(record, case):
            times = [(k, record.metrics.get(f"{case}/{k}/{name}/seconds")) for k in ks]
            series.append(
                Series(
                    name=name,
                    points=[(float(k), 1e3 * time) for k, time in times if time is not None],
                    colour=RIVALS.get(name, "ink"),
                    style="dashed" if name == "floor" else "line",
                )
            )
        charts.append(
            Chart(
                title=CASES[case].split(";")[0],
                x_label="N, images" if case == "views" else "K, negatives per query",
                y_label="ms, forward + backward",
                series=series,
                log_x=True,
                log_y=True,
                ticks=ks,
            )
        )
    return charts
