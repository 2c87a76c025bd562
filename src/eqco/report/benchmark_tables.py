"""Tables of a benchmark's record: rows of metrics, columns of what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eqco.runtime.records import Record

__all__ = [
    "Column",
    "Metrics",
    "Table",
    "metrics_of",
    "number",
    "ratio",
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
