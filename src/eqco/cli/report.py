"""`eqco report`: every figure and table that has records, as one page to look at."""

from pathlib import Path

from rich.console import Console

from eqco.report.page import write_page
from eqco.runtime.errors import InputError


def run(*, results: Path = Path("results"), out: Path = Path("report.html")) -> None:
    """Write all records as one HTML page that needs no network: charts, tables, the rule to try.

    Nothing is run: `eqco reproduce` makes records, this shows those that are there.

    Args:
        results: folder of the records.
        out: the page to write.

    Examples:
        eqco report
        eqco report --results demo/records --out demo/report.html
    """
    if not results.is_dir():
        raise InputError(
            f"--results {results} is not a folder. Name the folder of the records, or make some: "
            f"eqco reproduce tab5 --profile smoke."
        )
    written = write_page(results, out)
    size = written.stat().st_size / 1e3
    Console().print(f"written: {written} ({size:.0f} kB); open it in a browser", markup=False)
