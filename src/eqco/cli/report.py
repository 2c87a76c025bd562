"""`eqco report`: every figure and table that has records, as one page to look at."""

from pathlib import Path

from rich.console import Console

from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.experiment import profile_records
from eqco.report.benchmarks import BENCHMARKS, newest_records
from eqco.report.page import is_page, write_page
from eqco.runtime.atomic_files import refuse_unwritable
from eqco.runtime.errors import InputError


def run(*, results: Path = Path("results"), out: Path = Path("report.html")) -> None:
    """Write all records as one HTML page that needs no network: charts, tables, the rule to try.

    Nothing is run: `eqco reproduce` makes records, this shows those that are there.

    Args:
        results: folder of the records.
        out: the page to write; an earlier page is replaced, another file is not.

    Examples:
        eqco report
        eqco report --results demo/records --out demo/report.html
    """
    if not results.is_dir():
        raise InputError(
            f"--results {results} is not a folder. Name the folder of the records, or make some: "
            f"eqco reproduce tab5 --profile smoke."
        )
    if out.exists() and not (out.is_file() and is_page(out)):
        raise InputError(f"--out {out} exists and is no page of eqco report. Choose another name.")
    refuse_unwritable(out)
    console = Console()
    if not has_records(results):
        console.print(
            f"there are no records in {results}: the page will show the rule alone. Make some with "
            f"eqco reproduce tab5 --profile smoke --results {results}",
            markup=False,
            soft_wrap=True,
        )
    written = write_page(results, out)
    size = written.stat().st_size / 1e3
    console.print(f"written: {written} ({size:.0f} kB); open it in a browser", markup=False)


def has_records(results: Path) -> bool:
    """Whether anything in the folder has a place on the page."""
    return any(
        profile_records(experiment, profile, results)
        for experiment in EXPERIMENTS.values()
        for profile in experiment.profiles
    ) or any(newest_records(results, name) for name in BENCHMARKS)
