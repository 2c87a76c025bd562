"""Writes tables and pictures of the documents from the records under results/: `make documents`.

Each `<!-- block NAME -->` … `<!-- end -->` is filled by the function of that name below. A picture
carries the digest of the records it was drawn from, and is drawn again when they change. Records of
code that was never committed are refused.
"""

import functools
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.experiment import Comparison, command_for, missing_runs, profile_records
from eqco.report.benchmarks import BENCHMARKS, command_of, newest_records, united
from eqco.report.catalog import EXHIBITS, PLOTS
from eqco.report.drawing import draw_charts
from eqco.report.findings import saturation_counts
from eqco.report.page import reading_order
from eqco.report.tables import comparison_table, markdown
from eqco.report.training_speed import lightest_setting, rounds_note, training_ratios
from eqco.report.words import provenance, seeds_of
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, require_committed

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PICTURES = {  # below docs/images: experiment and profile
    "tab5.png": ("tab5", "paper"),
    "study-bound.png": ("study-bound", "desk"),
    "fig4.png": ("fig4", "desk"),
    "fig2.png": ("fig2", "desk"),
    "fig3.png": ("fig3", "desk"),
    "study-length.png": ("study-length", "desk"),
    "study-saturation.png": ("study-saturation", "desk"),
}
QUALITY = "quality.png"  # of a benchmark: curves of all its data sets
BLOCK = re.compile(r"(<!-- block ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
FEW_IMAGES = "few-images"
FULLEST = {"tab5": "paper", "tab2": FEW_IMAGES}  # where that is not the first of those at the desk
FURTHER = [("tab2", "desk")]  # begun beside those
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
    if BLOCK.search(path.read_text())
]
SPREAD = "Mean ± standard deviation over seeds. "
BESIDE = "Mean ± standard deviation over seeds (paper's, difference). "


def fill(text: str) -> str:
    """A document with every block made anew from the records."""
    return BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]]() + "\n" + match[3], text)


def profile_of(name: str) -> str:
    """The profile whose records the documents show."""
    if name in FULLEST:
        return FULLEST[name]
    profiles = find_experiment(name).profiles
    return next(each for each in ("desk", FEW_IMAGES, "embedded") if each in profiles)


def records_of(name: str, profile: str | None = None) -> list[Record]:
    """The records of an experiment that the documents show; refused unless all were committed."""
    records = profile_records(find_experiment(name), profile or profile_of(name), RESULTS)
    require_committed(records, RESULTS)
    return records


def experiment_block(name: str, profile: str | None = None) -> str:
    """The table of an experiment, where it ran, and what follows from it."""
    experiment, records = find_experiment(name), records_of(name, profile)
    further = experiment.further(records)
    blocks = [table_block(name, profile), *titled_tables(experiment.conclude(records))]
    if further:
        blocks += [f"<details><summary>{'; '.join(further)}</summary>", *titled_tables(further)]
        blocks.append("</details>")
    return "\n\n".join(blocks)


def table_block(name: str, profile: str | None = None) -> str:
    """The table of an experiment alone, and where it ran; of one not run, what is published."""
    profile = profile or profile_of(name)
    experiment, records = find_experiment(name), records_of(name, profile)
    cells = experiment.compare(records)
    table = markdown(*comparison_table(cells)) if cells else ""
    if not records:
        command = f"Not run yet: `eqco reproduce {name} --profile {profile}`."
        return "\n\n".join(filter(None, (command, table)))
    several = len(seeds_of(records)) > 1
    heading = (BESIDE if profile == "paper" else SPREAD) if several else ""
    return f"{heading}{provenance(records)}\n\n{table}"


def titled_tables(tables: Mapping[str, Sequence[Comparison]]) -> list[str]:
    """Each table under its title."""
    return [f"{title}:\n\n{markdown(*comparison_table(cells))}" for title, cells in tables.items()]


def findings_block() -> str:
    """One line for each experiment that has records: what they say, and how many they are."""
    lines = []
    for name in sorted(EXPERIMENTS, key=reading_order):
        records = records_of(name)
        finding = EXHIBITS[name].finding(records) if records else ""
        if finding:
            place = f"[{EXPERIMENTS[name].label}](#{name})"
            lines.append([place, finding, f"{profile_of(name)}, {seeds_per_run(records)}"])
    return markdown(["", "what the records say", "profile, seeds"], lines)


def seeds_per_run(records: Sequence[Record]) -> str:
    """How many seeds each training has: of the least, and of the most."""
    counts = Counter(record.hash_of_recipe for record in records).values()
    least, most = min(counts), max(counts)
    return f"{least}" if least == most else f"{least}–{most}"


def remaining_block() -> str:
    """What has been begun and has not all records, and the command that makes the others."""
    shown = [(name, profile_of(name)) for name in sorted(EXPERIMENTS, key=reading_order)]
    lines = []
    for name, profile in [*shown, *FURTHER]:
        experiment = EXPERIMENTS[name]
        seeds = experiment.seeds[profile]
        missing = len(missing_runs(experiment, profile, seeds, RESULTS))
        if missing:
            total = len(seeds) * len(experiment.recipes(profile))
            command = f"`{command_for(experiment, profile)}`"
            lines.append([experiment.heading, f"{total - missing} of {total}", command])
    return markdown(["", "runs", "command"], lines)


def benchmark_records(name: str) -> list[list[Record]]:
    """Of each part of a benchmark the newest; refused unless they were made from a commit."""
    parts = newest_records(RESULTS, name)
    if not parts:
        raise InputError(f"no record of {name}: {command_of(name)}")
    require_committed((record for records in parts for record in records), RESULTS)
    return parts


def benchmark_block(name: str) -> str:
    """The tables of a benchmark's newest records, and where each ran."""
    shown, blocks = BENCHMARKS[name], []
    for records in benchmark_records(name):
        record = united(records)
        blocks.append(f"{provenance(records)} {shown.note(record)}".rstrip())
        for table in shown.tables(record):
            title = f"{table.title}:\n\n" if table.title else ""
            blocks.append(title + markdown(table.header, table.lines))
    return "\n\n".join(blocks)


def headline_block() -> str:
    """What the picture of the README shows, in one sentence."""
    records = records_of("fig4")
    return f"*{EXHIBITS['fig4'].finding(records)} {provenance(records)}*"


def saturation_block() -> str:
    """What all pairs of trainings say together, in one sentence."""
    study = find_experiment("study-saturation")
    profiles = ("desk", FEW_IMAGES)
    cells = [cell for each in profiles for cell in study.compare(records_of(study.name, each))]
    return f"*{saturation_counts(cells)}*"


def speed_block() -> str:
    """By how much our training is faster than others' as they come, in one sentence."""
    newest = [record for record, *_ in benchmark_records("bench-train")]
    record = min(newest, key=lightest_setting)
    table = training_ratios(record)
    as_they_come = [line for line in table.lines if "bfloat16" not in line[0]]
    alike = [ratio for pair, ratio, *_ in table.lines if "bfloat16" in pair]
    ratios = [
        f"{ratio} times as many as {pair.split(' over ')[1]}" for pair, ratio, *_ in as_they_come
    ]
    claimed = [ratio for ratio in ratios if ratio[0].isdigit()]  # the others are within noise
    setting, speeds = table.header[1], ", ".join(claimed) or "as many as others within noise"
    return (
        f"Training end to end ({setting}), eqco in bfloat16, which it chooses here, processes so "
        f"many images per second: {speeds}, in float32, which is their default. With those in "
        f"bfloat16 too: {', '.join(alike)}. {rounds_note(record)}"
    )


def quality_records() -> list[Record]:
    """The newest of each data set, with the metrics and curves of its seeds."""
    return sorted(map(united, benchmark_records("bench-quality")), key=lambda r: list(r.curves))


def quality_digest() -> str:
    """A short name for what the curves of quality are drawn from."""
    values = [(record.curves, record.metrics) for record in quality_records()]
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def draw_quality(picture: Path) -> None:
    """The curves of all data sets, with the digest of their records inside."""
    records = quality_records()
    charts = [chart for record in records for chart in BENCHMARKS["bench-quality"].charts(record)]
    note = f"one seed each, {records[0].recipe['threads']} core(s)"
    draw_charts(charts, picture, note)
    store_digest(picture, quality_digest())


def digest(name: str, profile: str) -> str:
    """A short name for the contents of all records of an experiment and profile."""
    records = profile_records(find_experiment(name), profile, RESULTS)
    contents = b"".join(record.path(RESULTS).read_bytes() for record in records)
    return hashlib.sha256(contents).hexdigest()[:16]


def drawn_from(picture: Path) -> str:
    """The digest that a picture carries; nothing where there is none."""
    if not picture.exists():
        return ""
    with Image.open(picture) as image:
        return image.info.get("records", "")


def draw(picture: Path, name: str, profile: str) -> None:
    """The picture of an experiment, with the digest of its records inside."""
    records = profile_records(find_experiment(name), profile, RESULTS)
    require_committed(records, RESULTS)
    PLOTS[name](records, picture)
    store_digest(picture, digest(name, profile))


def store_digest(picture: Path, records: str) -> None:
    """Write into a picture what it was drawn from."""
    inside = PngInfo()
    inside.add_text("records", records)
    with Image.open(picture) as image:
        image.load()
        image.save(picture, pnginfo=inside, optimize=True)


BLOCKS: dict[str, Callable[[], str]] = {
    "findings": findings_block,
    "remaining": remaining_block,
    "headline": headline_block,
    "saturation": saturation_block,
    "speed": speed_block,
    **{name: functools.partial(experiment_block, name) for name in EXPERIMENTS},
    **{
        f"{name}-{profile}": functools.partial(experiment_block, name, profile)
        for name, experiment in EXPERIMENTS.items()
        for profile in ("desk", FEW_IMAGES, "embedded")
        if profile in experiment.profiles
    },
    **{f"{name}-table": functools.partial(table_block, name) for name in EXPERIMENTS},
    **{name: functools.partial(benchmark_block, name) for name in BENCHMARKS},
}


def main() -> None:
    """Fill every document, and draw the pictures whose records changed."""
    for document in DOCUMENTS:
        before = document.read_text()
        after = fill(before)
        document.write_text(after)
        print(document.relative_to(ROOT), "agrees" if after == before else "written")
    for picture, (name, profile) in PICTURES.items():
        path = ROOT / "docs" / "images" / picture
        agrees = drawn_from(path) == digest(name, profile)
        if not agrees:
            draw(path, name, profile)
        print(path.relative_to(ROOT), "agrees" if agrees else "drawn")
    path = ROOT / "docs" / "images" / QUALITY
    agrees = drawn_from(path) == quality_digest()
    if not agrees:
        draw_quality(path)
    print(path.relative_to(ROOT), "agrees" if agrees else "drawn")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
