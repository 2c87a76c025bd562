"""Sentences about records say what the records say, and the planner's limit is one of them."""

from pathlib import Path

import pytest

from eqco.contrast.advice import SATURATED
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.coordinates import group_by
from eqco.experiments.experiment import profile_records
from eqco.report.findings import clear_changes

RESULTS = Path(__file__).parents[2] / "results"


def pairs(profile):
    """p₊ of plain InfoNCE and the interval of what α gained over it, where there is one."""
    experiment = EXPERIMENTS["study-saturation"]
    cells = experiment.compare(profile_records(experiment, profile, RESULTS))
    rows = group_by(cells, key=lambda cell: cell.row).values()
    return [(plain.mean, gain.interval) for plain, gain in rows if gain.interval is not None]


@pytest.mark.parametrize("profile", ["desk", "few-images"])
def test_below_the_limit_of_saturation_no_recorded_alpha_gained_clearly(profile):
    """`Diagnostics.advice` and `eqco plan --from` call p₊ saturated from `SATURATED` on."""
    below = [low for p, (low, _) in pairs(profile) if p < SATURATED]
    assert below
    assert max(below) <= 0


def test_above_the_limit_of_saturation_some_recorded_alphas_gained_clearly():
    above = [
        low
        for profile in ("desk", "few-images")
        for p, (low, _) in pairs(profile)
        if p >= SATURATED
    ]
    assert 2 * sum(low > 0 for low in above) >= len(above) > 0


def test_a_change_is_clear_where_its_interval_leaves_zero_out():
    assert clear_changes([(0.1, 2.0), (-1.0, 1.0), (-3.0, -0.1), (0.0, 1.0)]) == (
        "gained in 1 and lost in 1"
    )
    assert clear_changes([(-1.0, 1.0)]) == "gained in none and lost in none"
