"""The published numbers are those that the paper prints."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from eqco.detection import METRICS
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import moco
from eqco.recipes.profiles import PAPER as PAPER_SCALE
from eqco.report.tables import comparison_table
from eqco.runtime.records import Record

PAPER = Path(__file__).parents[2].parent / "shared" / "paper" / "eqco-paper.tex"
LABELS = {
    "tab1": "tbl:eqco_k",
    "tab2": "tbl:simo_sota",
    "tab3": "tab:simo_alpha",
    "tab4": "tab:moco_K",
    "tab5": "tab:toy_pro",
    "tab6": "tab:simo_momentum_update",
    "tab7": "tab:simo_bn",
    "tab8": "tab:simo_wider_models",
    "tab9": "tab:coco",
}


FIXTURE = json.loads(Path(__file__).with_name("published_numbers.json").read_text())
TABLES, PROSE = FIXTURE["tables"], FIXTURE["prose"]


@pytest.fixture(scope="module")
def tex():
    if not PAPER.is_file():
        pytest.skip("an extra: published_numbers.json beside the paper's text, which is not here")
    return PAPER.read_text()


def rows(name):
    """The cells of a printed table, row by row."""
    return [row.split(" | ") for row in TABLES[name]["rows"]]


def rows_of_tex(tex, name):
    """The cells of a table as printed, row by row, without LaTeX's marks."""
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", tex, re.DOTALL)
    (table,) = [each for each in tables if f"\\label{{{LABELS[name]}}}" in each]
    body = re.search(r"\\begin\{tabular\}\{.*?\}\n(.*)\\end\{tabular\}", table, re.DOTALL)[1]
    lines = [line for line in body.split("\\\\") if line.replace("\\hline", "").strip()]
    return [[plain(cell) for cell in line.split("&")] for line in lines]


def plain(cell):
    """A cell's words and numbers: `AP$_{50}$` is AP50."""
    cell = re.sub(r"\(?\\cite\{.*?\}\)?|\\hline|\\(?:textbf|emph|mathcal)", "", cell)
    return re.sub(r"[${}_\\]", "", cell).strip()


def in_columns(table, kind=int):
    """Two rows: what the columns are, and their numbers."""
    (_, *columns), (_, *numbers) = table
    return {kind(column): float(n) for column, n in zip(columns, numbers, strict=True)}


def of_methods(table):
    """Table 2: SiMo's rows name K and α."""
    found = {}
    for method, epochs, number in table[1:]:
        named = re.fullmatch(r"(SiMo) \(K=(\d+), alpha=(\d+)\)", method)
        framework, count, alpha = named.groups() if named else (method, None, None)
        key = (framework, count and int(count), alpha and int(alpha), int(epochs))
        found[key] = float(number)
    return found


def of_estimators(table):
    """Table 5: a row names the information, the next two the estimators."""
    columns, found = table[1][1:], {}
    for title, *numbers in table[2:]:
        if not numbers:
            information = float(title.partition("=")[2])
            continue
        estimator = {"INCE": "infonce", "IEqCo": "eqco"}[title]
        for column, number in zip(columns, numbers, strict=True):
            found[(information, estimator, int(column))] = float(number)
    return found


def of_detectors(table):
    """Table 9."""
    return {
        (name, metric): float(number)
        for name, *numbers in table[1:]
        for metric, number in zip(table[0][1:], numbers, strict=True)
    }


def batch_norm(title):
    """Shuffling BN begins with a small letter here."""
    return title.replace("Shuffling", "shuffling")


def wide(title):
    """ResNet-50 (2x) is 2."""
    return int(title.removeprefix("ResNet-50 (").removesuffix("x)"))


PRINTED = {
    "tab1": in_columns,
    "tab2": of_methods,
    "tab3": in_columns,
    "tab4": in_columns,
    "tab5": of_estimators,
    "tab6": lambda table: in_columns(table, float),
    "tab7": lambda table: in_columns(table, batch_norm),
    "tab8": lambda table: {(wide(name), int(alpha)): float(n) for name, _, alpha, n in table[1:]},
    "tab9": of_detectors,
}


@pytest.mark.parametrize("name", LABELS)
def test_every_cell_of_a_table_is_what_the_paper_prints_there(name):
    assert PUBLISHED[name].numbers == PRINTED[name](rows(name))
    assert PUBLISHED[name].place == TABLES[name]["place"]


def test_the_parameters_of_wide_models_are_those_of_table_8():
    printed = {wide(name): float(millions) for name, millions, _, _ in rows("tab8")[1:]}
    assert PUBLISHED["tab8 parameters"].numbers == printed


def test_the_points_of_figure_4_are_those_of_table_2():
    for (count, alpha), number in PUBLISHED["fig4"].numbers.items():
        assert PUBLISHED["tab2"].numbers[("SiMo", count, alpha or count, 200)] == number


def test_every_number_of_the_prose_stands_in_its_sentence():
    found = PUBLISHED["fig3"].numbers | PUBLISHED["prose"].numbers
    assert found == {entry["key"]: entry["number"] for entry in PROSE}
    for entry in PROSE:
        assert re.search(rf"(?<![\d.]){entry['number']}(?![\d])", entry["sentence"]), entry["key"]
        if entry["key"] in PUBLISHED["prose"].numbers:
            assert entry["key"].endswith(f"({entry['place']})")


@pytest.mark.parametrize("name", LABELS)
def test_the_tables_stored_here_are_those_of_the_paper(name, tex):
    assert rows(name) == rows_of_tex(tex, name)


def test_the_sentences_stored_here_are_those_of_the_paper(tex):
    text = " ".join(tex.split())
    for entry in PROSE:
        assert text.count(entry["sentence"]) == 1, entry["key"]
        before = text[: text.index(entry["sentence"])]
        section = f"Section {before.count(chr(92) + 'section{')}"
        place = "supplement" if "\\appendix" in before else section
        assert entry["place"].startswith(place), entry["key"]


def record_of(task, profile, metrics):
    """A record of one run."""
    return Record(
        experiment="",
        profile=profile,
        recipe=task.to_dict(),
        seed=0,
        metrics=metrics,
        curves=defaultdict(lambda: defaultdict(lambda: "bound"), information_kind="bound"),
        code="",
        hardware={},
        seconds=0.0,
    )


def records_of(experiment, profile):
    """A record of every run of a profile, with made-up numbers."""
    metrics = defaultdict(lambda: 0.5, dict.fromkeys(METRICS, 0.5))
    return [record_of(task, profile, metrics) for task in experiment.recipes(profile)]


def published_in(experiment, records):
    """The published numbers in the tables of an experiment, each as often as it stands there."""
    tables = [experiment.compare(records), *experiment.conclude(records).values()]
    cells = [cell for table in tables for cell in table]
    return Counter(cell.published for cell in cells if cell.published is not None)


# experiment -> the groups of published numbers that its tables must show
WHERE = {
    **{f"tab{number}": (f"tab{number}",) for number in range(1, 10)},
    "fig3": ("fig3",),
    "fig4": ("fig4",),
    "tab8": ("tab8", "tab8 parameters"),
}


@pytest.mark.parametrize("profile", ["none", "desk", "paper"])
@pytest.mark.parametrize("name", WHERE)
def test_every_published_number_stands_in_the_tables_of_its_experiment(name, profile):
    """Beside our row, or in a row that says it was not run here; also where nothing was run."""
    experiment = EXPERIMENTS[name]
    found = published_in(experiment, [] if profile == "none" else records_of(experiment, profile))
    for group in WHERE[name]:
        missing = Counter(PUBLISHED[group].numbers.values()) - found
        assert not missing, (group, missing)


def test_the_differences_that_the_text_names_are_shown():
    found = sum(
        (published_in(EXPERIMENTS[name], []) for name in ("tab2", "tab3", "tab8")), Counter()
    )
    assert not Counter(PUBLISHED["prose"].numbers.values()) - found


@pytest.mark.parametrize("profile", ["none", "paper"])
def test_the_printed_table_2_is_the_papers_row_by_row_then_ours(profile):
    records = [] if profile == "none" else records_of(EXPERIMENTS["tab2"], profile)
    _, lines = comparison_table(EXPERIMENTS["tab2"].compare(records))
    printed = rows("tab2")[1:]
    for (title, text), (method, epochs, number) in zip(lines, printed, strict=False):
        assert title.startswith(method.partition(" (")[0])
        assert f"{epochs} epochs" in title
        assert number in text
    assert [title.removesuffix(" (not run here)") for title, _ in lines[len(printed) :]] == [
        "SimCLR, K=256, α=4096, 200 epochs"
    ]


def test_the_headline_is_the_difference_of_two_rows_of_mocos():
    fig3 = EXPERIMENTS["fig3"]
    found = {(65536, None): 0.606, (256, None): 0.547, (256, 65536.0): 0.604}
    records = [
        record_of(moco("mocov1", PAPER_SCALE, count=k, alpha=alpha), "paper", {"linear": accuracy})
        for (k, alpha), accuracy in found.items()
    ]
    tables = fig3.conclude(records)
    plain_drop, eqco_drop = tables["What the smaller memory costs MoCo, points of accuracy"]
    assert (plain_drop.published, eqco_drop.published) == (6.1, 0.2)
    assert plain_drop.mean == pytest.approx(5.9)
    assert eqco_drop.mean == pytest.approx(0.2)


def test_each_number_is_in_its_row_and_column():
    """One from the corner of each table, read by eye."""
    assert PUBLISHED["tab1"].numbers[1024] == 67.4
    assert PUBLISHED["tab2"].numbers[("SiMo", 256, 65536, 800)] == 72.1
    assert PUBLISHED["tab3"].numbers[16384] == 68.4
    assert PUBLISHED["tab4"].numbers[4096] == 67.6
    assert PUBLISHED["tab5"].numbers[(10.0, "infonce", 64)] == 4.1
    assert PUBLISHED["tab6"].numbers[0.0] == 62.1
    assert PUBLISHED["tab7"].numbers["shuffling BN"] == 58.8
    assert PUBLISHED["tab8"].numbers[(4, 256)] == 71.9
    assert PUBLISHED["tab9"].numbers[("SiMo", "APs")] == 22.9


@pytest.mark.parametrize(
    "name", [*(f"fig{i}" for i in range(1, 5)), *(f"tab{i}" for i in range(1, 9))]
)
def test_every_figure_and_table_has_its_three_profiles(name):
    assert {"smoke", "desk", "paper"} <= set(EXPERIMENTS[name].profiles)
