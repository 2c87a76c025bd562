"""The page of `eqco report`: what it says without a browser looking at it."""

import itertools
import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from eqco.cli.main import main
from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import Comparison, reproduce
from eqco.report.charts import Quantity, charts_of_cells
from eqco.report.page import QUESTIONS, comparison_html, page, write_page
from eqco.report.style import colours
from eqco.runtime.records import read_records

ROOT = Path(__file__).parents[2]


@cache
def page_of_records() -> str:
    """The page of all records of the repository, which takes half a minute to make."""
    return page(ROOT / "results", ROOT)


def test_the_page_of_no_records_lists_every_experiment_with_its_command(tmp_path):
    text = unescape(write_page(tmp_path, tmp_path / "report.html").read_text())
    for name in EXPERIMENTS:
        assert f"eqco reproduce {name} --profile " in text
    assert "Records exist here for 0 of the paper's 13 figures and tables;" in text


def test_the_command_writes_the_page_and_names_it(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    out = tmp_path / "new" / "report.html"
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    assert out.read_text().startswith("<!doctype html>")
    assert "written" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_refused(tmp_path, capsys):
    assert main(["report", "--results", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder. Name the folder of the records" in capsys.readouterr().err


def test_links_to_records_lead_from_the_page_to_files_that_exist(tmp_path):
    out = ROOT / "report.html"
    text = page(ROOT / "results", out.parent)
    links = re.findall(r'href="([^"#][^"]*)"', text)
    assert len(links) >= len(list((ROOT / "results").glob("tab5/paper/*.json")))
    for target in links:
        assert (out.parent / target).exists(), target


def test_the_page_is_small_and_asks_nothing_of_the_network():
    text = page_of_records()
    assert len(text.encode()) < 1_500_000
    assert not re.search(r'(src|href)="(https?:)?//|@import|url\(', text)


def test_what_is_gained_stands_open_and_other_quantities_are_folded_away():
    text = page_of_records()
    section = re.search(r'<section id="fig4">.*?</section>', text, re.DOTALL)[0]
    opened = re.sub(r"<details.*?</details>", "", section, flags=re.DOTALL)
    assert "<h3>Gained over InfoNCE" in opened
    assert "<h3>Nearest neighbours" in section
    assert "<h3>Nearest neighbours" not in opened


def test_a_half_done_experiment_says_how_much_of_it_is_there(tmp_path):
    experiment = find_experiment("tab5")
    reproduce(experiment, "smoke", [0, 1], tmp_path)
    records = read_records(tmp_path, "tab5", "smoke")
    assert len(records) == 4
    records[0].path(tmp_path).unlink()
    text = write_page(tmp_path, tmp_path / "report.html").read_text()
    assert "3 of 4 runs so far" in text
    assert "profile smoke" in text
    assert "its numbers mean nothing" in text
    assert "eqco reproduce tab5 --profile desk" in text  # smoke records are no result


def test_records_of_recipes_that_are_no_more_are_left_out(tmp_path):
    record = read_records(ROOT / "results", "tab5", "paper")[0]
    replace(record, recipe={**record.recipe, "steps": 7}).write(tmp_path)
    text = write_page(tmp_path, tmp_path / "report.html").read_text()
    assert "profile paper" not in text


CELLS = [
    Comparison(
        row=Coordinates(framework=framework, loss="eqco" if alpha else "infonce", alpha=alpha),
        column=Coordinates(num_negatives=k),
        values=(k / 4, k / 2),
        published=60.5,
    )
    for framework in ("MoCo", "SimCLR")
    for alpha in (None, 256.0)
    for k in (4, 16)
]


def test_numbers_of_another_setting_get_axes_of_their_own():
    charts = charts_of_cells(CELLS, Quantity(ours="probe, %", paper="ImageNet, %"))
    assert [c.title for c in charts] == [
        "MoCo: ours",
        "MoCo: paper",
        "SimCLR: ours",
        "SimCLR: paper",
    ]
    for chart in charts:
        (published,) = {series.published for series in chart.series}
        assert chart.y_label == ("ImageNet, %" if published else "probe, %")
    (first, *_) = charts
    assert [series.name for series in first.series] == ["InfoNCE", "EqCo, α=256"]
    assert [series.colour for series in first.series] == ["infonce", "eqco"]
    assert first.series[0].points == [(4.0, 1.5), (16.0, 6.0)]
    assert (first.series[0].low, first.series[0].high) == ([1.0, 4.0], [2.0, 8.0])


def test_all_axes_are_as_long_and_those_of_one_quantity_are_the_same():
    charts = charts_of_cells(CELLS, Quantity(ours="probe, %", paper="ImageNet, %"))
    assert {chart.y_label: chart.covers for chart in charts} == {
        "probe, %": (1.0, 8.0),
        "ImageNet, %": (57.0, 64.0),  # 60.5 ± 3.5
    }


def test_columns_without_numbers_become_bars():
    cells = [Comparison(row="SiMo", column=name, values=(1.0,)) for name in ("shuffling", "sync")]
    (chart,) = charts_of_cells(cells, Quantity(same=True))
    assert chart.categories == ["shuffling", "sync"]
    assert [series.style for series in chart.series] == ["bars"]


def test_the_papers_numbers_have_columns_of_their_own():
    text = comparison_html(CELLS[:2])
    assert text.count(">ours<") == text.count(">paper<") == 2
    assert '<td class="paper">60.5</td>' in text


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_stand_out_from_their_ground(dark):
    """WCAG AA: 4.5 for text, 3 for graphics."""
    known = colours(dark=dark)
    for text, ground in itertools.product(("ink", "soft", "muted", "eqco"), ("ground", "card")):
        assert contrast(known[text], known[ground]) >= 4.5, (text, ground)
    assert contrast(known["on-eqco"], known["eqco"]) >= 4.5
    for name in ("infonce", "eqco", "ml-cpc", "decoupled", "other"):
        assert contrast(known[name], known["ground"]) >= 3, name


def test_the_page_begins_with_what_a_reader_asks(tmp_path):
    text = page_of_records()
    questions = [text.index(f"<h3>{question}") for question in QUESTIONS]
    assert questions == sorted(questions)
    assert text.index('id="summary"') < questions[0] < text.index('id="explorer"')
    # where nothing was recorded nothing is asked
    (tmp_path / "empty").mkdir()
    empty = page(tmp_path / "empty", tmp_path)
    assert "No experiment has records yet" in empty
    assert not any(question in empty for question in QUESTIONS)
