"""How the page shows an experiment: what it is about, its charts, and what its records say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eqco.report.charts import Chart
from eqco.runtime.records import Record

__all__ = ["Exhibit"]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """An experiment on the page.

    Args:
        shows: what it is about and how to read it, in a sentence or two.
        charts: from records of one profile.
        finding: one sentence that says what these records say and no more, or nothing.
    """

    shows: str
    charts: Callable[[Sequence[Record]], list[Chart]]
    finding: Callable[[Sequence[Record]], str] = lambda records: ""
