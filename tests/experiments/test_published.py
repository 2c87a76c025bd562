"""The published numbers are those that the paper prints."""

import re
from pathlib import Path

import pytest

from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.published import PUBLISHED

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


@pytest.fixture(scope="module")
def tex():
    if not PAPER.is_file():
        pytest.skip("the paper is not beside this repository")
    return PAPER.read_text()


def rows(tex, name):
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
    """Table 2: `SiMo (K=16, alpha=256)` is `SiMo, K=16, alpha=256` here."""
    return {
        (method.replace(" (", ", ").rstrip(")"), int(epochs)): float(number)
        for method, epochs, number in table[1:]
    }


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


PRINTED = {
    "tab1": in_columns,
    "tab2": of_methods,
    "tab3": in_columns,
    "tab4": in_columns,
    "tab5": of_estimators,
    "tab6": lambda table: in_columns(table, float),
    "tab7": lambda table: in_columns(table, batch_norm),
    "tab8": lambda table: {(name, int(alpha)): float(n) for name, _, alpha, n in table[1:]},
    "tab9": of_detectors,
}


@pytest.mark.parametrize("name", LABELS)
def test_every_cell_of_a_table_is_what_the_paper_prints_there(name, tex):
    assert PUBLISHED[name].numbers == PRINTED[name](rows(tex, name))


def test_the_parameters_of_wide_models_are_those_of_table_8(tex):
    printed = {name: float(millions) for name, millions, _, _ in rows(tex, "tab8")[1:]}
    assert PUBLISHED["tab8 parameters"].numbers == printed


def test_the_points_of_figure_4_are_those_of_table_2():
    for (count, alpha), number in PUBLISHED["fig4"].numbers.items():
        row = f"SiMo, K={count}, alpha={alpha or count}"
        assert PUBLISHED["tab2"].numbers[(row, 200)] == number


# Where in the text each number of the prose stands; # is the number.
SENTENCES = {
    "fig3": {
        "MoCo, K=256 (He et al.)": r"in MoCo (\cite{moco}) the ImageNet accuracy rises from #\% to",
        "MoCo, K=65536 (He et al.)": r"54.7\% to #\% under linear classification protocol when $K$ "
        "grows from 256 to 65536.",
        "MoCo, drop from K=65536 to 256": r"the performance gap between $K=256$ and $K=65536$ (the "
        r"best configuration reported in \cite{moco}) \emph{almost disappears} (from #\% decrease",
        "MoCo with EqCo, drop from K=65536 to 256": r"\emph{almost disappears} (from 6.1\% "
        r"decrease to #\%)",
        "SimCLR, K=256": r"(e.g. 4096 \emph{vs.} 256), the accuracy significantly improves from "
        r"#\% to 65.3\%",
        "SimCLR, K=256, alpha=4096": r"Our ``mimicking'' result (#\%, $\alpha=4096, K=256$)",
        "SimCLR, K=4096 (Chen et al.)": r"reported in the original SimCLR paper (#\%, with a "
        "physical batch size of $K=4096$)",
        "SimCLR, batch 256, 100 epochs (Chen et al.)": r"gap is still very large (#\%@batch=256",
        "SimCLR, batch 8192, 100 epochs (Chen et al.), at least": r"vs. #+\%@batch=8192, 100 "
        "epochs training)",
    },
    "prose": {
        "SiMo less MoCo v2, 800 epochs (Section 3)": "when we extend the training epochs to 800, "
        r"we get the accuracy of 72.1\%, surpassing the baseline MoCo v2 by #\%.",
        "SiMo, alpha=65536 less 256, 200 epochs (Section 4)": "under 200 epochs training, SiMo "
        r"with $\alpha=65536$ outperforms that of $\alpha=256$ by only #\%.",
        "ResNet-50 (2x) less ResNet-50 (supplement)": "SiMo with ResNet-50 (2x) and ResNet-50 (4x) "
        r"outperforms the baseline (68.5\%) by #\% and",
        "ResNet-50 (4x) less ResNet-50 (supplement)": "SiMo with ResNet-50 (2x) and ResNet-50 (4x) "
        r"outperforms the baseline (68.5\%) by 2\% and #\% respectively.",
    },
}


@pytest.mark.parametrize("name", SENTENCES)
def test_every_number_of_the_prose_stands_in_its_sentence(name, tex):
    text = " ".join(tex.split())
    assert SENTENCES[name].keys() == PUBLISHED[name].numbers.keys()
    for key, number in PUBLISHED[name].numbers.items():
        assert text.count(SENTENCES[name][key].replace("#", str(number))) == 1, key


def test_the_prose_is_in_the_sections_that_are_named(tex):
    text = " ".join(tex.split())
    for key, number in PUBLISHED["prose"].numbers.items():
        before = text[: text.index(SENTENCES["prose"][key].replace("#", str(number)))]
        number_of_section = before.count("\\section{")
        place = "supplement" if "\\appendix" in before else f"Section {number_of_section}"
        assert key.endswith(f"({place})")


def test_each_number_is_in_its_row_and_column():
    """One from the corner of each table, read by eye."""
    assert PUBLISHED["tab1"].numbers[1024] == 67.4
    assert PUBLISHED["tab2"].numbers[("SiMo, K=256, alpha=65536", 800)] == 72.1
    assert PUBLISHED["tab3"].numbers[16384] == 68.4
    assert PUBLISHED["tab4"].numbers[4096] == 67.6
    assert PUBLISHED["tab5"].numbers[(10.0, "infonce", 64)] == 4.1
    assert PUBLISHED["tab6"].numbers[0.0] == 62.1
    assert PUBLISHED["tab7"].numbers["shuffling BN"] == 58.8
    assert PUBLISHED["tab8"].numbers[("ResNet-50 (4x)", 256)] == 71.9
    assert PUBLISHED["tab9"].numbers[("SiMo", "APs")] == 22.9


@pytest.mark.parametrize(
    "name", [*(f"fig{i}" for i in range(1, 5)), *(f"tab{i}" for i in range(1, 9))]
)
def test_every_figure_and_table_has_its_three_profiles(name):
    assert {"smoke", "desk", "paper"} <= set(EXPERIMENTS[name].profiles)
