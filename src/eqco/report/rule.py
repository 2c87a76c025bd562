"""The rule on random embeddings as a table and a picture."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eqco.experiments.rule import RulePoint, swing
from eqco.report.style import COLOURS, INK, panels, save
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
    """Three panels: loss, f̂ and gradient norm against K."""
    figure, axes = panels(3, width=3.1, height=3.2)
    for panel, (quantity, name) in zip(axes, QUANTITIES.items(), strict=True):
        for with_eqco, colour in ((False, COLOURS["infonce"]), (True, COLOURS["eqco"])):
            side = [point for point in points if point.with_eqco == with_eqco]
            counts = [point.num_negatives for point in side]
            values = [getattr(point, quantity) for point in side]
            label = f"EqCo, α = {alpha:g}" if with_eqco else "InfoNCE"
            panel.plot(counts, values, "o-", color=colour, markersize=4, label=label)
        panel.set_xscale("log", base=4)
        panel.set_xticks(counts, [str(count) for count in counts], rotation=45)
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        panel.set_xlabel("K, negatives per query", fontsize=9, color=INK)
        panel.set_title(name, fontsize=10, color=INK)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8.5, frameon=False)
    return save(figure, path)
