"""Readings as a table that says of each f̂ whether it is a bound or an estimate."""

from collections.abc import Sequence
from statistics import fmean, stdev

from rich.console import Console

from eqco.experiments.coordinates import group_by
from eqco.mutual_information import Reading
from eqco.report.tables import print_table

__all__ = ["print_readings", "readings_table"]


def readings_table(readings: Sequence[Reading]) -> tuple[list[str], list[list[str]]]:
    """Header and lines, one line for each truth, K and estimator; several seeds are averaged."""
    groups = group_by(readings, key=lambda r: (r.information, r.num_pairs, r.estimator))
    several = max(map(len, groups.values())) > 1
    lines = []
    for (information, num_pairs, estimator), group in sorted(
        groups.items(), key=lambda item: item[0][:2]
    ):
        values = [reading.value for reading in group]
        error = stdev(values) if several else group[0].standard_error
        lines.append(
            [
                f"{information:g}",
                str(num_pairs),
                estimator,
                f"{group[0].alpha:g}",
                f"{fmean(values):.3f} ±{error:.3f}",
                guarantee(group[0]),
            ]
        )
    spread = "standard deviation over seeds" if several else "standard error"
    return ["truth", "K", "estimator", "α", f"f̂ (± {spread})", "f̂ is"], lines


def guarantee(reading: Reading) -> str:
    """Bound or estimate, and how far an estimate may be above the truth in expectation."""
    if reading.kind == "bound":
        return "a bound"
    return f"an estimate, at most {reading.overshoot:.2g} above"


def print_readings(console: Console, readings: Sequence[Reading]) -> None:
    """The table, and a line that says how to read it."""
    print_table(console, *readings_table(readings))
    console.print(
        "In nats. K counts pairs: K - 1 negatives per query. A bound cannot exceed the truth in "
        "expectation, an estimate can.",
        markup=False,
    )
