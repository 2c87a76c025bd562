"""Table 9: both kinds of weights are fine-tuned, compared seed by seed, and drawn."""

from dataclasses import replace

import pytest

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import RunContext, reproduce
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tab9 import TAB9, gain, pretrain
from eqco.methods import SiMoSettings
from eqco.report.catalog import EXHIBITS, PLOTS
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record
from eqco.runtime.run_directory import RunDirectory


def record(initial, seed, profile="desk", **metrics):
    return Record(
        experiment="tab9",
        profile=profile,
        recipe={"initial": initial, "data": "bccd", "backbone": "resnet18"},
        seed=seed,
        metrics=metrics,
        code="",
        hardware={},
        seconds=0,
    )


@pytest.mark.end_to_end
def test_a_smoke_run_trains_both_and_pretrains_once(tmp_path, trained_runs):
    context = RunContext(work=trained_runs)
    records = reproduce(TAB9, "smoke", (0,), tmp_path / "results", context)
    assert [r.recipe["initial"] for r in records] == ["random init", "SiMo"]
    assert all(0 <= r.metrics["AP"] <= 1 for r in records)
    assert PLOTS["tab9"](records, tmp_path / "plot.png").stat().st_size > 1000
    place = trained_runs / "tab9-smoke-pretraining-0"
    written = RunDirectory(place).last.stat().st_mtime_ns
    shared = TAB9.profiles["smoke"][1].pretraining
    assert pretrain(shared, context) == place  # found complete, not trained again
    assert RunDirectory(place).last.stat().st_mtime_ns == written
    method = replace(shared.recipe.method, ema_decay=0.5)
    other = replace(shared, recipe=replace(shared.recipe, method=method))
    with pytest.raises(InputError, match="another recipe than tab9's"):
        pretrain(other, context)


def test_rows_are_percent_with_the_gain_seed_by_seed():
    records = [
        record("SiMo", 1, AP=0.5, **{"AP50, RBC": 0.8}),
        record("random init", 0, AP=0.3, **{"AP50, RBC": 0.7}),
        record("random init", 1, AP=0.4, **{"AP50, RBC": 0.7}),
        record("SiMo", 0, AP=0.35, **{"AP50, RBC": 0.7}),
    ]
    cells = TAB9.compare(records)
    assert [(c.row, c.column) for c in cells][:2] == [
        (Coordinates(weights="random init"), Coordinates(metric="AP")),
        (Coordinates(weights="random init"), Coordinates(metric="AP50", category="RBC")),
    ]
    assert cells[0].values == pytest.approx((30, 40))
    assert all(cell.published is None for cell in cells)  # blood cells are not COCO
    (difference, _) = gain(cells)
    assert difference.values == pytest.approx((5, 10))
    assert difference.row == Coordinates(weights="SiMo")
    (alone, _) = gain(TAB9.compare(records[1:]))  # seed 1 of SiMo is not there
    assert alone.values == pytest.approx((5,))
    said = EXHIBITS["tab9"].finding(records)
    assert said == "AP, SiMo − random init: +7.5 points on bccd (seeds: +5.0, +10.0)."


def test_the_papers_numbers_stand_beside_ours_in_the_published_setting_alone():
    rows = ("random init", "supervised", "MoCo v2", "SiMo")
    cells = TAB9.compare([record(row, 0, profile="paper", AP=0.39) for row in rows])
    expected = [PUBLISHED["tab9"].numbers[row, "AP"] for row in rows]
    assert [cell.published for cell in cells] == expected


def test_the_desk_compares_the_same_fine_tuning_from_two_weights():
    random, simo = TAB9.profiles["desk"]
    assert random.detection == simo.detection
    training = simo.pretraining.recipe
    assert isinstance(training.method, SiMoSettings)
    assert training.training.seed == 0
    assert training.encoder.backbone == random.backbone
    assert replace(training.encoder, stem="imagenet") == training.encoder


def test_a_data_set_that_was_not_given_is_named_with_its_option(tmp_path):
    with pytest.raises(InputError, match="--bccd FOLDER"):
        reproduce(TAB9, "desk", (0,), tmp_path, RunContext(work=tmp_path))
