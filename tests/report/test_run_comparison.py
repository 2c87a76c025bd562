"""Runs side by side: what differs, and what must not be compared."""

from dataclasses import replace

import pytest

from eqco.methods import SiMoSettings
from eqco.recipes import Recipe, recipe_to_dict
from eqco.report.run_comparison import (
    ComparedRun,
    comparison_lines,
    comparison_notes,
    draw_comparison,
    draw_curves,
    loss_note,
)
from eqco.report.style import panels
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory, write_json


def recipe(*, alpha=None, count=16, temperature=0.2):
    given = Recipe(method=SiMoSettings(count=count))
    return replace(given, objective=replace(given.objective, alpha=alpha, temperature=temperature))


def make_run(folder, given, losses, *, data="photos", accuracy=None):
    """A run directory as a training of so many steps leaves it."""
    run = RunDirectory(folder)
    facts = {"source": data, "data": data, "images": 256 * len(losses), "steps_per_epoch": 1}
    run.start(recipe_to_dict(given), facts)
    for step, loss in enumerate(losses, start=1):
        told = {"information": loss / 2, "information_kind": "bound"}
        run.append_metrics({"step": step, "loss": loss, **told})
    if accuracy is not None:
        found = {"value": accuracy, "low": accuracy - 0.1, "high": accuracy + 0.1}
        rows = [{"name": "raw pixels", "knn": {}, "probe": {}}, {"knn": found, "probe": found}]
        write_json(folder / "validation.json", {"images": 50, "of": "val", "rows": rows})
    return ComparedRun(folder)


def test_the_table_has_what_differs_and_how_it_ended(tmp_path):
    runs = [
        make_run(tmp_path / "plain", recipe(), [4.0] * 10 + [2.0], accuracy=0.3),
        make_run(tmp_path / "eqco", recipe(alpha=256.0), [6.0, 5.0], accuracy=0.5),
    ]
    header, lines = comparison_lines(runs)
    table = {name: texts for name, *texts in lines}
    assert header == ["", "plain", "eqco"]
    assert table["objective.alpha"] == ["None", "256.0"]
    assert "objective.temperature" not in table
    assert table["loss at the end"] == ["3.00", "5.00"]  # of steps 10 and 11; of step 2
    assert table["f̂ at the end, nats"] == ["≥ 1.50", "≥ 2.50"]
    assert table["probe, %"] == ["30.0 (20.0–40.0)", "50.0 (40.0–60.0)"]
    assert table["steps"] == ["11 of 200", "2 of 200"]
    assert "images/s" not in table  # nobody measured it


def test_losses_of_different_alpha_are_said_not_to_be_comparable():
    note = loss_note([recipe(), recipe(alpha=256.0)])
    assert note.startswith("Losses are not comparable: they are of different α (None, 256).")
    assert "K (16, 64)" in loss_note([recipe(), recipe(count=64)])
    assert "τ (0.2, 0.1)" in loss_note([recipe(), recipe(temperature=0.1)])


def test_one_alpha_makes_losses_of_different_k_comparable():
    assert loss_note([recipe(alpha=256.0), recipe(alpha=256.0, count=64)]) == ""


def test_what_else_must_not_be_compared_is_said(tmp_path):
    one = make_run(tmp_path / "one", recipe(), [1.0], accuracy=0.3)
    other = make_run(tmp_path / "other", recipe(), [1.0], data="elsewhere")
    notes = "\n".join(comparison_notes([one, other]))
    assert "different images: accuracies are not comparable" in notes
    assert f"Accuracy was not measured at the end of {tmp_path / 'other'}" in notes
    assert "Losses" not in notes


def test_a_run_without_a_measurement_is_not_one_of_other_images(tmp_path):
    runs = [
        make_run(tmp_path / "one", recipe(), [1.0], accuracy=0.3),
        make_run(tmp_path / "other", recipe(), [1.0]),
    ]
    notes = "\n".join(comparison_notes(runs))
    assert "different images" not in notes
    assert f"Accuracy was not measured at the end of {tmp_path / 'other'}" in notes


def test_the_plot_needs_something_to_show(tmp_path):
    empty = [make_run(tmp_path / name, recipe(), []) for name in "ab"]
    with pytest.raises(InputError, match="none of the runs has metrics yet"):
        draw_comparison(empty, tmp_path / "plot.png")
    runs = [make_run(tmp_path / name, recipe(), [2.0, 1.0]) for name in "cd"]
    assert draw_comparison(runs, tmp_path / "plot.png").stat().st_size > 5000


def test_a_curve_of_one_point_is_seen(tmp_path):
    runs = [make_run(tmp_path / "one", recipe(), [1.0]), make_run(tmp_path / "b", recipe(), [1, 2])]
    _, (panel,) = panels(1)
    draw_curves(panel, runs, "loss", ["one", "two"], ["red", "blue"])
    assert [line.get_marker() for line in panel.lines] == ["o", ""]
