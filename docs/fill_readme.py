"""Writes the tables of the README from the records under results/: `make readme`.

Each `<!-- block NAME -->` … `<!-- end -->` is filled by the function of that name below.
"""

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

from eqco.experiments.catalog import find_experiment
from eqco.experiments.experiment import Comparison
from eqco.report.benchmarks import BENCHMARKS, newest_benchmark
from eqco.report.provenance import provenance
from eqco.report.tables import comparison_table, markdown
from eqco.runtime.records import read_records

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
BLOCK = re.compile(r"(<!-- block ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    """The README with every block made anew from the records."""
    return BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]]() + "\n" + match[3], text)


def experiment_block(name: str, profile: str, heading: str) -> str:
    """The table of an experiment, where it ran, and what follows from it."""
    experiment = find_experiment(name)
    records = read_records(RESULTS, name, profile)
    if not records:
        return f"Not run yet: `eqco reproduce {name} --profile {profile}`."
    cells = experiment.compare(records)
    concluded, further = experiment.conclude(cells), experiment.further(records)
    shown = {title: further.pop(title) for title in list(further) if title.startswith("Gained")}
    blocks = [heading + provenance(records), markdown(*comparison_table(cells))]
    blocks += titled({**concluded, **shown})
    if further:
        blocks += [f"<details><summary>{'; '.join(further)}</summary>", *titled(further)]
        blocks.append("</details>")
    return "\n\n".join(blocks)


def titled(tables: dict[str, list[Comparison]]) -> list[str]:
    """Each table under its title."""
    return [f"{title}:\n\n{markdown(*comparison_table(cells))}" for title, cells in tables.items()]


def benchmark_block(name: str) -> str:
    """The tables of a benchmark's newest record, and where it ran."""
    record = newest_benchmark(RESULTS, name)
    if record is None:
        raise SystemExit(f"no record of {name}: run benchmarks/{name[6:]}.py --record")
    shown = BENCHMARKS[name]
    note = f"{provenance([record])} {shown.note(record)}".rstrip()
    tables = [markdown(table.header, table.lines) for table in shown.tables(record)]
    titles = [f"{table.title}:\n\n" if table.title else "" for table in shown.tables(record)]
    return "\n\n".join([note, *map("".join, zip(titles, tables, strict=True))])


SPREAD = "Mean ± half the spread over seeds. "

BLOCKS: dict[str, Callable[[], str]] = {
    "tab5": lambda: experiment_block(
        "tab5", "paper", "Ours ± half the spread over seeds (paper's, difference). "
    ),
    "study-bound": lambda: experiment_block("study-bound", "desk", ""),
    "demo": lambda: experiment_block("demo", "desk", SPREAD),
    "cifar10-simo": lambda: experiment_block("cifar10-simo", "desk", ""),
    **{
        name: functools.partial(experiment_block, name, "desk", SPREAD)
        for name in (
            *("fig4", "study-small-batch", "study-length", "fig1", "fig2", "fig3", "tab3"),
            *("tab6", "tab9"),
        )
    },
    **{name: functools.partial(benchmark_block, name) for name in BENCHMARKS},
}


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = fill(before)
    readme.write_text(after)
    print("README.md written" if after != before else "README.md agrees with the records")
    sys.exit(0)
