"""All records as one HTML page that needs no network: `eqco report`.

The page is a function of the records: every number on it is in one of them, in the table of
published numbers, or worked out in the explorer by the rules of `eqco.theory`. Its text is in
`assets`; templates escape all that comes from a record.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import eqco
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.coordinates import distinct, in_order
from eqco.experiments.experiment import Comparison, Experiment, command_for, profile_records
from eqco.experiments.published import PUBLISHED
from eqco.recipes.profiles import SCALES
from eqco.report.benchmarks import (
    BENCHMARKS,
    Benchmark,
    command_of,
    newest_records,
    plain_benchmark,
    united,
)
from eqco.report.catalog import EXHIBITS
from eqco.report.charts import chart_data
from eqco.report.status import duration
from eqco.report.style import palette
from eqco.report.tables import kind_words, largest_difference, number_text, part_titles
from eqco.report.words import machine, plural, seeds_of, words
from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.records import Record

__all__ = ["comparison_html", "is_page", "reading_order", "write_page"]

# What a reader asks first, and the experiments whose findings answer it.
QUESTIONS = {
    "Does it hold?": ("fig4", "fig3", "tab5"),
    "Is it more than a larger learning rate?": ("study-rate",),
    "When?": ("study-saturation",),
    "What should I do with a small batch?": ("study-small-batch",),
}
OF_THE_PAPER = ("figure", "table")
ORDER = (*OF_THE_PAPER, "study", "example")
SMOKE = "smoke"
TITLE = "<title>EqCo: results</title>"  # in assets/page.html
# whose printed numbers stand beside ours, where not only its own
SOURCES = {"fig3": ("fig3", "tab4"), "tab2": ("tab2", "fig3")}

TEMPLATES = Environment(
    loader=PackageLoader("eqco.report", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.policies["json.dumps_kwargs"] = {
    "ensure_ascii": False,
    "allow_nan": False,
    "separators": (",", ":"),
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Records of one experiment and profile that stand together on the page."""

    experiment: Experiment[Any]
    profile: str
    records: Sequence[Record]

    @property
    def name(self) -> str:
        """Of the experiment."""
        return self.experiment.name

    @property
    def key(self) -> str:
        """By which the charts are found."""
        return f"{self.name}/{self.profile}"

    @property
    def smoke(self) -> bool:
        """Whether the numbers mean nothing."""
        return self.profile == SMOKE

    @property
    def finding(self) -> str:
        """What the records say."""
        return EXHIBITS[self.name].finding(self.records)

    @property
    def about(self) -> str:
        """Scale, seeds, how many runs, how long they took, and when."""
        records, seeds = self.records, seeds_of(self.records)
        wanted = len(self.experiment.recipes(self.profile)) * len(seeds)
        runs = plural(len(records), "run")
        if len(records) < wanted:
            runs = f"{len(records)} of {wanted} runs so far"
        seed_words = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        time = duration(sum(record.seconds for record in records))
        day = max(record.finished for record in records)[:10]
        return f"{SCALES[self.profile].about} · {seed_words} · {runs}, {time} · {day}"

    @property
    def caption(self) -> str:
        """How to read the first table, and what the paper's numbers are."""
        cells = self.experiment.compare(self.records)
        several = any(len(cell.values) > 1 for cell in cells)
        uneven = len({len(cell.values) for cell in cells}) > 1
        parts = [
            f"Mean over {len(seeds_of(self.records))} seeds ± their standard deviation."
        ] * several
        parts += ["× n: where a cell has other than that many seeds so far."] * uneven
        if any(cell.published is not None for cell in cells):
            sources = SOURCES.get(self.name, (self.name,))
            places = " and ".join(PUBLISHED[source].place for source in sources)
            parts.append(f"Paper: {places}; {PUBLISHED[self.name].quantity}.")
            farthest = largest_difference(cells)
            if self.profile == "paper" and farthest is not None:
                parts.append(f"Largest difference: {farthest:.2f}.")
        return " ".join(parts)

    @property
    def command(self) -> str:
        """The command that made the records."""
        options = {"--seeds": tuple(seeds_of(self.records))}
        return command_for(self.experiment, self.profile, options=options)

    @property
    def source(self) -> str:
        """Where an answer comes from."""
        seeds = plural(len(seeds_of(self.records)), "seed")
        return f"{self.experiment.label}, profile {self.profile}, {seeds}"


def write_page(results: Path, out: Path) -> Path:
    """Write the page of all records below `results`; returns its path."""
    with atomic_write(out) as partial:
        partial.write_text(page(results, out.parent), encoding="utf-8")
    return out


def is_page(path: Path) -> bool:
    """Whether a file is a page that `write_page` wrote."""
    with open(path, "rb") as file:
        return TITLE.encode() in file.read(2000)


def page(results: Path, folder: Path) -> str:
    """The page as text; its links lead from `folder` to the records."""
    experiments = [EXPERIMENTS[name] for name in sorted(EXPERIMENTS, key=reading_order)]
    shown = [
        Shown(experiment=experiment, profile=profile, records=records)
        for experiment in experiments
        for profile in experiment.profiles
        if (records := profile_records(experiment, profile, results))
    ]
    done = {one.name for one in shown if not one.smoke}
    missing = [experiment for experiment in experiments if experiment.name not in done]
    benchmarks = newest_benchmarks(results)
    charts = {one.key: EXHIBITS[one.name].charts(one.records) for one in shown}
    charts |= {
        name: [chart for records in own for chart in benchmark.charts(united(records))]
        for name, (benchmark, own) in benchmarks.items()
    }
    contents = {one.name: one.experiment.label for one in shown}
    contents |= {"missing": "Not run yet"} if missing else {}
    contents |= {"benchmarks": "Speed"} if benchmarks else {}
    return TEMPLATES.get_template("page.html").render(
        palette=Markup(palette()),
        answers=answers(shown),
        coverage=coverage(shown),
        contents=contents,
        sections={key: list(group) for key, group in groupby(shown, key=lambda one: one.name)},
        missing=missing,
        benchmarks=benchmarks,
        records=[record for one in shown for record in one.records],
        version=eqco.__version__,
        data={key: [chart_data(chart) for chart in drawn] for key, drawn in charts.items()},
        base=Path(os.path.relpath(results, folder)),
        command_at_desk=command_at_desk,
        command_of=command_of,
        exhibits=EXHIBITS,
        comparison_html=comparison_html,
        tables_html=tables_html,
        link=link,
        machine=machine,
        united=united,
        with_unbroken_units=with_unbroken_units,
    )


def link(path: Path, text: str) -> Markup:
    """A link to a file beside the page.

    >>> link(Path("results/a b.json"), "<b>")
    Markup('<a href="results/a%20b.json">&lt;b&gt;</a>')
    """
    return Markup('<a href="{}">{}</a>').format(quote(path.as_posix()), text)


def with_unbroken_units(text: str) -> str:
    """Numbers stay with their units where a line must be broken.

    >>> with_unbroken_units("4.5 ms, 2 MB").replace("\u00a0", "~")
    '4.5~ms, 2~MB'
    """
    return re.sub(r"(?<=\d) (?=\w)", "\u00a0", text)


def reading_order(name: str) -> tuple[int, int, str]:
    """Figures and tables by number, then studies, then the rest.

    >>> sorted(["demo", "study-bound", "tab5", "fig4"], key=reading_order)
    ['fig4', 'tab5', 'study-bound', 'demo']
    """
    experiment = EXPERIMENTS[name]
    return ORDER.index(experiment.kind), experiment.number, name


def comparison_html(cells: Sequence[Comparison]) -> Markup:
    """Our numbers, and in columns of their own the paper's; nothing where there are none."""
    if not cells:
        return Markup("")
    columns = in_order(cell.column for cell in cells)
    found = {(cell.row, cell.column): cell for cell in cells}
    printed = {cell.column for cell in cells if cell.published is not None}
    numbers = [f"{cell.published:g}" for cell in cells if cell.published is not None]
    return Markup(
        TEMPLATES.get_template("comparison.html").render(
            columns=columns,
            rows={
                row: [found.get((row, column)) for column in columns]
                for row in distinct(cell.row for cell in cells)
            },
            printed=printed,
            deep=Markup(' rowspan="2"') if printed else "",
            labelled=any(cell.kind for cell in cells),
            titles=part_titles(cells),
            decimals=max((len(text.partition(".")[2]) for text in numbers), default=0),
            usual=max(len(cell.values) for cell in cells),
            words=words,
            kind_words=kind_words,
            number_text=lambda value: number_text(value).replace("-", "−"),
            seeds_text=seeds_text,
            zip=zip,
        )
    )


def tables_html(tables: Mapping[str, Sequence[Comparison]]) -> dict[str, Markup]:
    """Tables that have cells, by title."""
    return {title: comparison_html(cells) for title, cells in tables.items() if cells}


def seeds_text(cell: Comparison, usual: int) -> str:
    """The standard deviation over seeds, the interval, and how many seeds where not as usual.

    >>> seeds_text(Comparison(row="", column="", values=(1.70, 1.72)), usual=3)
    '±0.01 × 2'
    """
    notes = [f"±{cell.deviation:.2f}"] if len(cell.values) > 1 else []
    if cell.interval is not None:
        notes.append(f"[{cell.interval[0]:.1f}, {cell.interval[1]:.1f}]")
    notes += [f"× {len(cell.values)}"] if len(cell.values) != usual else []
    return " ".join(notes)


def answers(shown: Sequence[Shown]) -> dict[str, list[Shown]]:
    """What is asked first, with the experiments here that have something to say."""
    speaking = [one for one in shown if not one.smoke and one.finding]
    found = {
        question: [one for name in names for one in speaking if one.name == name]
        for question, names in QUESTIONS.items()
    }
    return {question: here for question, here in found.items() if here}


def coverage(shown: Sequence[Shown]) -> str:
    """How much of the paper has records."""
    paper = [each for each in EXPERIMENTS.values() if each.kind in OF_THE_PAPER]
    real = [one.experiment for one in shown if not one.smoke]
    done = distinct(each.label for each in real if each in paper)
    names = f" ({', '.join(done)})" if 0 < len(done) < 6 else ""
    return (
        f"Records exist here for {len(done)} of the paper's {len(paper)} figures and "
        f"tables{names}; what has none is listed with the command that makes it."
    )


def command_at_desk(experiment: Experiment[Any]) -> str:
    """The command that makes the records an experiment has not: at the desk where it can be."""
    known = [each for each in ("desk", "few-images") if each in experiment.profiles]
    profile = known[0] if known else list(experiment.profiles)[-1]
    return command_for(experiment, profile)


def newest_benchmarks(results: Path) -> dict[str, tuple[Benchmark, list[list[Record]]]]:
    """How each benchmark with a record is shown, and the newest of its records."""
    names = {path.name for path in results.glob("bench-*")}
    found = {}
    for name in sorted(names, key=lambda name: [*BENCHMARKS, name].index(name)):
        records = newest_records(results, name)
        if records:
            found[name] = BENCHMARKS.get(name) or plain_benchmark(name), records
    return found
