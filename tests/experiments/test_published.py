"""The published numbers are those that the paper prints."""

import re
from collections import Counter
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


def printed(tex, label):
    """Numbers with one decimal in the table of that label; headings of Table 5 are not results."""
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", tex, re.DOTALL)
    (table,) = [each for each in tables if f"\\label{{{label}}}" in each]
    body = re.search(r"\\begin\{tabular\}.*\\end\{tabular\}", table, re.DOTALL)[0]
    lines = [line for line in body.splitlines() if "Mutual Information" not in line]
    return Counter(
        float(number) for number in re.findall(r"(?<![\d.])\d+\.\d(?!\d)", " ".join(lines))
    )


@pytest.mark.parametrize("name", LABELS)
def test_a_table_has_the_numbers_that_the_paper_prints_and_no_others(name, tex):
    assert Counter(map(float, PUBLISHED[name].numbers.values())) == printed(tex, LABELS[name])


@pytest.mark.parametrize("name", ["fig3", "prose", "tab8 parameters"])
def test_every_number_of_the_prose_stands_in_the_text(name, tex):
    for sentence, number in PUBLISHED[name].numbers.items():
        assert re.search(rf"(?<![\d.]){re.escape(str(number))}(?!\.?\d)", tex), sentence


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
