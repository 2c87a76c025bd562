"""Tables and pictures from records: every f̂ is labelled, every picture is a picture."""

from dataclasses import replace

import torch

from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.experiment import Comparison
from eqco.mutual_information import EqCo, InfoNCE, measure
from eqco.report.catalog import EXHIBITS, PLOTS
from eqco.report.evaluation import draw_confusion
from eqco.report.mutual_information import readings_table
from eqco.report.page import comparison_html
from eqco.report.tables import comparison_table, largest_difference

CELLS = [
    Comparison(row="eqco", column="K=64", values=(1.0, 1.5), published=1.5, kind="estimate"),
    Comparison(row="eqco", column="K=512", values=(1.0, 1.0), published=0.9, kind="bound"),
    Comparison(row="infonce", column="K=64", values=(0.5,), kind="bound"),
]


def test_a_table_has_a_line_for_each_row_and_a_gap_where_nothing_was_measured():
    """Its seeds stand in each cell, since one has a single one."""
    header, lines = comparison_table(CELLS)
    assert header == ["", "f̂ is", "K=64", "K=512"]
    assert lines[0] == [
        "eqco",
        "estimate / bound",
        "1.25 ±0.35 (n = 2) (1.5, -0.25)",  # deviations of 0.25 each: √(2 · 0.25² / 1)
        "1.00 ±0.00 (n = 2) (0.9, +0.10)",
    ]
    assert lines[1] == ["infonce", "bound", "0.50 (n = 1)", "–"]


def test_a_part_of_a_table_stands_below_its_title():
    part = [replace(CELLS[2], row=row, part="Without negatives") for row in ("byol", "swav")]
    _, lines = comparison_table([*CELLS, *part])
    assert [line[0] for line in lines[1:]] == ["infonce", "— Without negatives —", "byol", "swav"]
    assert {len(line) for line in lines} == {4}
    html = comparison_html([*CELLS, *part])
    title, first = html.index("Without negatives"), html.index("byol")
    assert html.index("infonce") < title < first < html.index("swav")
    # row, label, K=64 with the paper's beside it, and so K=512
    assert 'colspan="6">Without negatives</th>' in html


def test_the_largest_difference_is_a_distance():
    assert largest_difference(CELLS) == 0.25
    assert largest_difference(CELLS[2:]) is None


def test_every_experiment_has_its_place_on_the_page_and_a_picture():
    assert set(EXHIBITS) == set(PLOTS) == set(EXPERIMENTS)


def test_readings_of_several_seeds_are_averaged_and_labelled():
    quick = {"dim": 4, "hidden_size": 8, "output_size": 4, "steps": 5, "repeats": 5}
    readings = [
        reading
        for seed in (0, 1)
        for reading in measure([1.0], 4, [InfoNCE(), EqCo(64)], seed=seed, **quick)
    ]
    header, lines = readings_table(readings)
    assert "standard deviation over seeds" in header[4]
    assert [line[2] for line in lines] == ["infonce", "eqco"]
    assert lines[0][5] == "a bound"
    assert lines[1][5] == "an estimate, at most 2.8 above"  # log(65/4)
    mean = (readings[0].value + readings[2].value) / 2
    assert lines[0][4].startswith(f"{mean:.3f} ±")


def test_long_names_of_classes_leave_room_for_the_confusions(tmp_path):
    """matplotlib warns where none is left, and warnings are errors here."""
    classes = ["German shepherd, German shepherd dog, German police dog, alsatian"] * 10
    assert draw_confusion(torch.eye(10), classes, tmp_path / "confusion.png", "here").exists()
