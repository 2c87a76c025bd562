"""The rule on random embeddings as a table and a picture."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eqco.experiments.rule import RulePoint, swing
from eqco.report.charts import Chart, Series
from eqco.report.drawing import draw_charts
from eqco.report.tables import print_table

__all__ = ["plot_rule", "print_rule"]

QUANTITIES = {"loss": "loss L", "information": "f̂ (nats)", "gradient_norm": "mean ‖dL/dq‖"}


def print_rule(console: Console, points: Sequence[RulePoint]) -> None:
    """One line per K, plain InfoNCE and EqCo side by side, and how far each swings over K."""
    plain = [point for point in points if not point.with_eqco]
    with_eqco = [point for point in points if point.with_eqco]
    header = ["K", "L plain", "L EqCo", "f̂ plain", "f̂ EqCo", "(is)", "‖dL/dq‖ plain", "EqCo"]
    lines = []
    for one, other in zip(plain, with_eqco, strict=True):
        numbers = [
            f"{getattr(side, quantity):.3f}" for quantity in QUANTITIES for side in (one, other)
        ]
        lines.append([str(one.num_negatives), *numbers[:4], other.kind, *numbers[4:]])
    swings = [
        f"{swing(side, quantity):.2f}×" for quantity in QUANTITIES for side in (plain, with_eqco)
    ]
    print_table(console, header, [*lines, ["max/min", *swings[:4], "", *swings[4:]]])


def plot_rule(points: Sequence[RulePoint], alpha: float, path: Path) -> Path:
    """Three charts: loss, f̂ and gradient norm against K."""
    counts = sorted({point.num_negatives for point in points})
    losses = ((False, "InfoNCE", "infonce"), (True, f"EqCo, α = {alpha:g}", "eqco"))
    charts = [
        Chart(
            title=title,
            x_label="K, negatives per query",
            y_label="",
            series=[
                Series(
                    name=name,
                    points=[
                        (point.num_negatives, getattr(point, quantity))
                        for point in points
                        if point.with_eqco == with_eqco
                    ],
                    colour=colour,
                )
                for with_eqco, name, colour in losses
            ],
            log_x=True,
            ticks=counts,
            from_zero=True,
        )
        for quantity, title in QUANTITIES.items()
    ]
    return draw_charts(charts, path)
