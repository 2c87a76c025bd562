"""Numbers in sentences are those of the records: what a table no longer says, no sentence says.

A number with decimals is looked for in the tables of its own section and of those that its
paragraph links to: as a cell, as the value of one seed, as the spread over seeds, as what the paper
has, or as the difference of two cells of a row or column, on average and, of the first tables, in
one seed; of a benchmark also as the ratio of two numbers of a column. A stale number that another
reading gives by chance is not found.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from filling import FILLING, ROOT

NUMBER = re.compile(r"(?<![\w.,])[-−+]?(\d+\.\d+)(?!\.?\w)")
LINK = re.compile(r"\(([\w./]*)#([\w-]+)\)")
# Numbers that are none of a measurement, by document and section.
SETTINGS = {
    ("README.md", "two-commands"): {"3.11"},  # of Python
    ("README.md", "licence-and-citation"): {"2.0"},
    ("results.md", "results"): {"0.1"},  # τ
    # rate and decay, and how they were chosen, on a seed that no table shows
    ("results.md", "the-same-on-a-small-set"): {"0.12", "0.99", "46.2", "45.3", "46.0"},
    ("results.md", "study-text"): {"0.05", "0.99"},  # τ and decay
    ("results.md", "tab6"): {"0.99"},  # β
    ("results.md", "table-6-on-a-small-set"): {"0.99"},
    ("results.md", "demo"): {"0.1"},  # τ
    ("speed.md", "small-batches"): {"1.35"},  # an aim
}
BLOCK = re.compile(r"<!-- block ([\w-]+) -->.*?<!-- end -->", re.DOTALL)


def numbers_of_pair(first, second, *, seeds: bool) -> Iterator[float]:
    """What separates two cells: on average, in the paper and, if asked, in each seed."""
    if first.values and second.values:
        yield first.mean - second.mean
    if first.published is not None and second.published is not None:
        yield first.published - second.published
    ours = [
        dict(zip(cell.seeds or range(len(cell.values)), cell.values, strict=True))
        for cell in (first, second)
    ]
    for seed in ours[0].keys() & ours[1].keys() if seeds else ():
        yield ours[0][seed] - ours[1][seed]


def numbers_of_cell(cell) -> Iterator[float]:
    """What a cell says by itself."""
    yield from cell.values
    if cell.values:
        yield from (cell.mean, cell.spread)
    if cell.published is not None:
        yield cell.published
    if cell.interval is not None:
        yield from cell.interval


def numbers_of_experiment(name: str, profile: str | None) -> Iterator[float]:
    experiment, records = FILLING.find_experiment(name), FILLING.records_of(name, profile)
    further = list(experiment.further(records).values())
    for cells in (experiment.compare(records), *experiment.conclude(records).values(), *further):
        for cell in cells:
            yield from numbers_of_cell(cell)
        for first, second in combinations(cells, 2):
            if first.row == second.row or first.column == second.column:
                yield from numbers_of_pair(first, second, seeds=cells not in further)


def numbers_of_lines(block: str) -> Iterator[float]:
    """What a block shows, and the ratios of numbers that stand below each other."""
    columns: dict[int, list[float]] = {}
    for line in block.splitlines():
        cells = line.split("|") if line.startswith("|") else [line]
        for place, cell in enumerate(cells):
            shown = [float(found) for found in re.findall(r"\d+\.?\d*", cell)]
            yield from shown
            columns.setdefault(place, []).extend(shown[:1] if len(cells) > 1 else [])
        if len(cells) == 1:
            columns = {}  # another table
        for values in columns.values():
            yield from (values[-1] / other for other in values[:-1] if other)
            yield from (other / values[-1] for other in values[:-1] if values[-1])


@cache
def numbers_of_block(name: str) -> frozenset[float]:
    """All that a block of a document can be read to say."""
    profile = next((each for each in ("few-images", "embedded") if name.endswith(each)), None)
    experiment = name.removesuffix(f"-{profile}").removesuffix("-table")
    if experiment in FILLING.EXPERIMENTS:
        return frozenset(numbers_of_experiment(experiment, profile))
    return frozenset(numbers_of_lines(FILLING.BLOCKS[name]()))


class Section:
    """A heading with what follows it to the next: its names, its paragraphs and its blocks."""

    def __init__(self, names: list[str], text: str):
        self.names = names
        self.blocks = BLOCK.findall(text)
        self.paragraphs = [
            " ".join(paragraph.split())
            for paragraph in re.split(r"\n\n+|\n(?=\* )", BLOCK.sub("\n\n", text))
            if not paragraph.lstrip().startswith(("|", "<", "```", "!["))
        ]

    def numbers(self) -> set[float]:
        return set().union(*map(numbers_of_block, self.blocks))


def heading_name(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@cache
def sections_of(document: Path) -> list[Section]:
    found = []
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    pieces = re.split(r"^((?:<a id=\"[\w-]+\"></a>\n+)*#+ .*)$", text, flags=re.MULTILINE)
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        names = re.findall(r'<a id="([\w-]+)"', heading)
        found.append(Section([*names, heading_name(heading.split("# ")[-1])], body))
    return found


def known_numbers(document: Path, section: Section, paragraph: str) -> set[float]:
    """Of the section and of all that the paragraph links to."""
    known = section.numbers()
    for place, name in LINK.findall(paragraph):
        target = (document.parent / place).resolve() if place else document
        if target in FILLING.DOCUMENTS:
            for each in sections_of(target):
                known |= each.numbers() if name in each.names else set()
    return known


def test_a_stale_number_is_found():
    """A paragraph of Figure 4 with a number that none of its tables has."""
    document = ROOT / "docs" / "results.md"
    (section,) = [each for each in sections_of(document) if "fig4" in each.names]
    assert unknown(document, section, "Plain InfoNCE loses 4.0 points") == []
    assert unknown(document, section, "Plain InfoNCE loses 33.3 points") == ["33.3"]


def unknown(document: Path, section: Section, paragraph: str) -> list[str]:
    """The numbers of a paragraph that no record says."""
    known = known_numbers(document, section, paragraph)
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", paragraph))
    missing = []
    for number in NUMBER.findall(plain):
        if number in SETTINGS.get((document.name, section.names[0]), ()):
            continue
        half = 0.5001 * 10.0 ** -len(number.split(".")[1])
        if not any(abs(abs(value) - float(number)) <= half for value in known):
            missing.append(number)
    return missing


@pytest.mark.parametrize("document", FILLING.DOCUMENTS, ids=lambda path: path.name)
def test_numbers_of_sentences_come_from_records(document):
    missing = {
        paragraph: numbers
        for section in sections_of(document)
        for paragraph in section.paragraphs
        if (numbers := unknown(document, section, paragraph))
    }
    assert missing == {}
