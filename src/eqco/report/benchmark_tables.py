"""Tables of a benchmark's record: rows of metrics, columns of what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from eqco.runtime.records import Record

__all__ = [
    "Column",
    "Metrics",
    "Table",
    "every_round",
    "median_words",
    "metrics_of",
    "number",
    "ratio",
    "ratio_of_medians",
    "speed_column",
    "table_of",
]

Metrics = Callable[[str], float]  # the metrics of one row, by name
Column = Callable[[Metrics], str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its heading, which is empty where it stands alone."""

    title: str = ""
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def table_of(
    corner: str,
    rows: Mapping[str, Metrics],
    columns: Mapping[str, Column],
    title: str = "",
) -> Table:
    """A line for each row, with what each column says of its metrics."""
    lines = [[name, *(text(of) for text in columns.values())] for name, of in rows.items()]
    return Table(title=title, header=[corner, *columns], lines=lines)


def metrics_of(record: Record, prefix: str, missing: float | None = None) -> Metrics:
    """Metrics whose names begin with a prefix, by the rest; refused if absent, or `missing`."""
    if missing is None:
        return lambda name: record.metrics[prefix + name]
    return lambda name: record.metrics.get(prefix + name, missing)


def number(name: str, form: str = "{:.0f}", unit: float = 1.0) -> Column:
    """A column that is one metric, in its unit."""
    return lambda of: form.format(unit * of(name))


def speed_column(name: str, images: int) -> Column:
    """A column of images per second, from the seconds of a step."""
    return lambda of: f"{images / of(name):.0f}"


def ratio(base: str, name: str, of: Metrics) -> str:
    """A column that is one metric over another."""
    return f"{of(name) / of(base):.2f}"


def every_round(record: Record, name: str, ending: str = "/seconds") -> list[float]:
    """What each round measured; of a record that kept none, its one metric."""
    rounds: dict[str, list[float]] = record.curves.get("rounds", {})
    return rounds[name] if name in rounds else [record.metrics[name + ending]]


def median_words(values: Sequence[float], form: str = "{:.0f}") -> str:
    """The median, and the range of several.

    >>> median_words([512.0]), median_words([0.5, 0.4, 0.64], "{:.2f}")
    ('512', '0.50 (0.40–0.64)')
    """
    reach = f" ({form.format(min(values))}–{form.format(max(values))})" if len(values) > 1 else ""
    return form.format(median(values)) + reach


def ratio_of_medians(over: Sequence[float], under: Sequence[float]) -> str:
    """How many times as large one is: by the medians, and the range that single rounds allow.

    >>> ratio_of_medians([3.0, 3.3, 3.1], [2.0, 2.1, 2.0]), ratio_of_medians([3.0], [2.0])
    ('1.55 (1.43–1.65)', '1.50')
    """
    several = len(over) > 1 and len(under) > 1
    reach = f" ({min(over) / max(under):.2f}–{max(over) / min(under):.2f})" if several else ""
    return f"{median(over) / median(under):.2f}{reach}"
