"""Table 5 as charts: estimate against K, one for each true value, truth as a line."""

from collections.abc import Sequence

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.tab5 import compare, steadiness
from eqco.report.charts import Chart, Series, series_of_cells
from eqco.runtime.records import Record

__all__ = ["charts_tab5", "finding_tab5"]

NAMES = {"infonce": "InfoNCE", "eqco": "EqCo", "ml-cpc": "multi-label CPC"}


def charts_tab5(records: Sequence[Record]) -> list[Chart]:
    """One chart for each true value."""
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
