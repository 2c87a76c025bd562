"""All records as one HTML page that needs no network: `eqco report`.

The page is a function of the records: every number on it is in one of them, in the table of
published numbers, or worked out in the explorer by the rules of `eqco.theory`.
"""

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import eqco
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.coordinates import distinct
from eqco.experiments.experiment import Comparison, Experiment, command_for, recorded
from eqco.experiments.published import PUBLISHED
from eqco.recipes.profiles import SCALES
from eqco.report.benchmarks import BENCHMARKS, Benchmark, newest_benchmark, plain_tables
from eqco.report.catalog import EXHIBITS, Exhibit
from eqco.report.charts import Chart, chart_data
from eqco.report.markup import command, comparison_html, data_script, link, table_html
from eqco.report.status import duration
from eqco.report.style import palette
from eqco.report.tables import largest_difference
from eqco.report.words import machine, seeds_of
from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.records import Record

__all__ = ["is_page", "write_page"]

SPOKEN_FOR = ("tab5", "fig4", "study-small-batch", "fig3", "cifar10-simo", "demo")
OF_THE_PAPER = ("figure", "table")
ORDER = (*OF_THE_PAPER, "study", "example")
SMOKE = "smoke"
TITLE = "<title>EqCo: results</title>"  # in assets/page.html
# whose printed numbers stand beside ours, where not only its own
SOURCES = {"fig3": ("fig3", "tab4"), "tab2": ("tab2", "fig3")}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Records of one experiment and profile that stand together on the page."""

    experiment: Experiment[Any]
    profile: str
    records: Sequence[Record]

    @property
    def exhibit(self) -> Exhibit:
        """How the experiment is shown."""
        return EXHIBITS[self.experiment.name]


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
    shown = [
        Shown(experiment=EXPERIMENTS[name], profile=profile, records=records)
        for name in sorted(EXPERIMENTS, key=reading_order)
        for profile in EXPERIMENTS[name].profiles
        if (records := recorded(EXPERIMENTS[name], profile, results))
    ]
    base = Path(os.path.relpath(results, folder))
    charts: dict[str, list[Chart]] = {}
    sections = []
    for name in dict.fromkeys(one.experiment.name for one in shown):
        here = [one for one in shown if one.experiment.name == name]
        sections.append(section(here, base, charts))
    missing, measured = missing_section(shown), benchmark_section(results, base, charts)
    data = {key: [chart_data(chart) for chart in drawn] for key, drawn in charts.items()}
    return Template(asset("page.html")).substitute(
        style=palette() + asset("page.css"),
        script=asset("charts.js") + asset("explorer.js"),
        summary=summary(shown),
        contents=contents(shown, missing, measured),
        sections="\n".join(sections),
        missing=missing,
        benchmarks=measured,
        footer=footer([record for one in shown for record in one.records]),
        data=data_script(data),
    )


def asset(name: str) -> str:
    """A part of the page that lies beside this file."""
    return (files("eqco.report") / "assets" / name).read_text(encoding="utf-8")


def reading_order(name: str) -> tuple[int, int, str]:
    """Figures and tables by number, then studies, then the rest.

    >>> sorted(["demo", "study-bound", "tab5", "fig4"], key=reading_order)
    ['fig4', 'tab5', 'study-bound', 'demo']
    """
    experiment = EXPERIMENTS[name]
    return ORDER.index(experiment.kind), experiment.number, name


def section(shown: Sequence[Shown], base: Path, charts: dict[str, list[Chart]]) -> str:
    """One experiment: what it is about, then each profile by itself."""
    experiment, exhibit = shown[0].experiment, shown[0].exhibit
    about = f'<p class="shows">{escape(exhibit.shows)}</p>' if exhibit.shows else ""
    parts = [profile_part(one, base, charts) for one in shown]
    return (
        f'<section id="{escape(experiment.name)}"><p class="eyebrow">'
        f"{escape(experiment.label)}</p><h2>{escape(experiment.title)}</h2>{about}{''.join(parts)}</section>"
    )


def profile_part(one: Shown, base: Path, charts: dict[str, list[Chart]]) -> str:
    """Profile, seeds, finding, charts, tables, command and records of one profile."""
    experiment, records = one.experiment, one.records
    cells = experiment.compare(records)
    key = f"{experiment.name}/{one.profile}"
    same = one.profile == "paper"
    charts[key] = one.exhibit.charts(records)
    finding = one.exhibit.finding(records)
    tables = [comparison_html(cells, caption=caption(one, cells, same))]
    tables += [
        f"<h3>{escape(title)}</h3>{comparison_html(concluded)}"
        for title, concluded in experiment.conclude(records).items()
        if concluded
    ]
    options = {"--seeds": tuple(seeds_of(records))}
    made = command_for(experiment, one.profile, options=options)
    return (
        f'<div data-profile="{escape(one.profile)}">{made_by(one)}'
        + (f'<p class="finding">{escape(finding)}</p>' if finding and one.profile != SMOKE else "")
        + f'<div class="charts" data-charts="{escape(key)}"></div>{"".join(tables)}'
        + further_tables(experiment.further(records))
        + command(made)
        + record_list(one, base)
        + "</div>"
    )


def further_tables(tables: Mapping[str, Sequence[Comparison]]) -> str:
    """Tables of other quantities, folded away."""
    parts = [
        f"<h3>{escape(title)}</h3>{comparison_html(cells)}"
        for title, cells in tables.items()
        if cells
    ]
    if not parts:
        return ""
    words = f"{len(parts)} more table{'s' * (len(parts) > 1)}: {'; '.join(tables)}"
    return f'<details class="more"><summary>{escape(words)}</summary>{"".join(parts)}</details>'


def made_by(one: Shown) -> str:
    """Profile, seeds, how many runs and how long they took."""
    records, seeds = one.records, seeds_of(one.records)
    wanted = len(one.experiment.recipes(one.profile)) * len(seeds)
    runs = f"{len(records)} run{'s' * (len(records) > 1)}"
    if len(records) < wanted:
        runs = f"{len(records)} of {wanted} runs so far"
    words = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    time = duration(sum(record.seconds for record in records))
    days = max(record.finished for record in records)[:10]
    about = f"{SCALES[one.profile].about} · {words} · {runs}, {time} · {days}"
    look = " smoke" if one.profile == SMOKE else ""
    return (
        f'<p class="made"><span class="badge{look}">profile {escape(one.profile)}</span> '
        f"<span>{escape(about)}</span></p>"
    )


def caption(one: Shown, cells: Sequence[Comparison], same: bool) -> str:
    """How to read the table, and what the paper's numbers are."""
    several = any(len(cell.values) > 1 for cell in cells)
    uneven = len({len(cell.values) for cell in cells}) > 1
    words = [f"Mean over {len(seeds_of(one.records))} seeds ± half the spread."] * several
    words += ["× n: where a cell has other than that many seeds so far."] * uneven
    if any(cell.published is not None for cell in cells):
        name = one.experiment.name
        places = " and ".join(PUBLISHED[source].place for source in SOURCES.get(name, (name,)))
        words.append(f"Paper: {places}; {PUBLISHED[name].quantity}.")
        farthest = largest_difference(cells)
        if same and farthest is not None:
            words.append(f"Largest difference: {farthest:.2f}.")
    return " ".join(words)


def record_list(one: Shown, base: Path) -> str:
    """Links to every record, folded away."""
    name = one.experiment.name
    folder = base / name / one.profile
    items = "".join(
        f"<li>{link(record.path(base).as_posix(), record.path(base).name)}</li>"
        for record in one.records
    )
    codes = ", ".join(sorted({record.code for record in one.records}))
    return (
        f'<details class="records"><summary>{len(one.records)} '
        f"record{'s' * (len(one.records) > 1)} in {escape(folder.as_posix())}</summary>"
        f"<ul>{items}</ul><p>Code {escape(codes)}; {escape(machine(one.records[0]))}.</p></details>"
    )


def summary(shown: Sequence[Shown]) -> str:
    """Three sentences: two findings, and how much of the paper they cover."""
    real = [one for one in shown if one.profile != SMOKE]
    sentences: list[str] = []
    for name in SPOKEN_FOR:
        for one in real:
            if one.experiment.name == name and len(sentences) < 2:
                said = one.exhibit.finding(one.records)
                sentences += [f"{escape(said)} {cite(one)}"] * bool(said)
    paper = [each for each in EXPERIMENTS.values() if each.kind in OF_THE_PAPER]
    done = distinct(one.experiment.label for one in real if one.experiment in paper)
    if not sentences:
        sentences.append("No experiment has records yet that would say something.")
    if len(sentences) < 2:
        sentences.append("Below is the command of each experiment that makes its records.")
    names = f" ({', '.join(done)})" if 0 < len(done) < 6 else ""
    sentences.append(
        f"Records exist here for {len(done)} of the paper's {len(paper)} figures and "
        f"tables{names}; what has none is listed with the command that makes it."
    )
    return f"<ol>{''.join(f'<li>{sentence}</li>' for sentence in sentences)}</ol>"


def cite(one: Shown) -> str:
    """Where a sentence comes from."""
    seeds = len(seeds_of(one.records))
    words = f"{one.experiment.label}, profile {one.profile}, {seeds} seed{'s' * (seeds > 1)}"
    return f'<a class="cite" href="#{escape(one.experiment.name)}">{escape(words)}</a>'


def contents(shown: Sequence[Shown], missing: str, measured: str) -> str:
    """Links to the sections."""
    places = {one.experiment.name: one.experiment.label for one in shown}
    places |= {"missing": "Not run yet"} if missing else {}
    places |= {"benchmarks": "Speed"} if measured else {}
    items = "".join(
        f'<li><a href="#{escape(name)}">{escape(label)}</a></li>' for name, label in places.items()
    )
    return f'<nav aria-label="Sections"><ul class="contents">{items}</ul></nav>'


def missing_section(shown: Sequence[Shown]) -> str:
    """Experiments without records, with the command that would make them."""
    done = {one.experiment.name for one in shown if one.profile != SMOKE}
    rows = [
        f'<tr><th scope="row">{escape(EXPERIMENTS[name].heading)}</th>'
        f"<td><code>{escape(command_at_desk(EXPERIMENTS[name]))}</code></td></tr>"
        for name in sorted(EXPERIMENTS, key=reading_order)
        if name not in done
    ]
    if not rows:
        return ""
    return (
        '<section id="missing"><h2>Not run yet</h2><p class="shows">Each has one command, which '
        "resumes from the records that exist.</p>"
        f'<table class="listing"><tbody>{"".join(rows)}</tbody></table>{published_tables(done)}'
        "</section>"
    )


def published_tables(done: Container[str]) -> str:
    """What the paper has of the experiments without records."""
    parts = []
    for name in sorted(EXPERIMENTS, key=reading_order):
        cells = EXPERIMENTS[name].compare([]) if name not in done else []
        if cells:
            heading = f"{EXPERIMENTS[name].label}, as published"
            parts.append(f"<h3>{escape(heading)}</h3>{comparison_html(cells)}")
    return "".join(parts)


def command_at_desk(experiment: Experiment[Any]) -> str:
    """The command that makes the records an experiment has not: at the desk where it can be."""
    profile = "desk" if "desk" in experiment.profiles else list(experiment.profiles)[-1]
    return command_for(experiment, profile)


def benchmark_section(results: Path, base: Path, charts: dict[str, list[Chart]]) -> str:
    """The newest record of each benchmark."""
    names = {path.name for path in results.glob("bench-*")}
    parts = []
    for name in sorted(names, key=lambda name: [*BENCHMARKS, name].index(name)):
        record = newest_benchmark(results, name)
        if record is None:
            continue
        shown = BENCHMARKS.get(name) or Benchmark(title=name, shows="", tables=plain_tables)
        charts[name] = shown.charts(record)
        place = f'<div class="charts" data-charts="{escape(name)}"></div>' if charts[name] else ""
        tables = "".join(
            (f"<h4>{escape(table.title)}</h4>" if table.title else "")
            + table_html(table.header, table.lines)
            for table in shown.tables(record)
        )
        note = (
            f"{shown.note(record)} {machine(record)}; {record.finished[:10]}, code {record.code}."
        )
        folder = base / name / record.profile
        parts.append(
            f'<div id="{escape(name)}"><h3>{escape(shown.title)}</h3>'
            f'<p class="shows">{escape(shown.shows)}</p>{place}{tables}'
            f'<p class="hint">{escape(note)} {link(folder.as_posix(), "record")}</p>'
            f"{command(f'python benchmarks/{name[6:]}.py --record')}</div>"
        )
    if not parts:
        return ""
    return (
        '<section id="benchmarks"><h2>Speed</h2><p class="shows">Measured side by side in one run '
        f"on one machine; machines differ, ratios less so.</p>{''.join(parts)}</section>"
    )


def footer(records: Sequence[Record]) -> str:
    """What made the page, and from what."""
    newest = max((record.finished[:10] for record in records), default="")
    words = f"Made by eqco report, eqco {eqco.__version__}, from {len(records)} records"
    return f"<p>{escape(words)}{f', the newest of {escape(newest)}' if newest else ''}.</p>"
