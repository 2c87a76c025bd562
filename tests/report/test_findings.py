"""Sentences about records say what the records say, and the planner's limit is one of them."""

from pathlib import Path

import pytest

from eqco.contrast.advice import SATURATED
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.coordinates import Coordinates, group_by
from eqco.experiments.experiment import Comparison, profile_records
from eqco.experiments.study_saturation import GAIN, GAIN_BY_NEIGHBOURS, SATURATION
from eqco.report.findings import clear_changes, saturation_counts

RESULTS = Path(__file__).parents[2] / "results"


def pairs(profile):
    """p₊ of plain InfoNCE and the interval of what α gained over it, where there is one."""
    experiment = EXPERIMENTS["study-saturation"]
    cells = experiment.compare(profile_records(experiment, profile, RESULTS))
    rows = group_by(cells, key=lambda cell: cell.row).values()
    return [(plain.mean, gain.interval) for plain, gain, _ in rows if gain.interval is not None]


@pytest.mark.parametrize("profile", ["desk", "few-images"])
def test_below_the_limit_of_saturation_no_recorded_alpha_gained_clearly(profile):
    """`Diagnostics.advice` and `eqco plan --from` call p₊ saturated from `SATURATED` on."""
    below = [low for p, (low, _) in pairs(profile) if p < SATURATED]
    assert below
    assert max(below) <= 0


def test_above_the_limit_of_saturation_fewer_than_half_of_recorded_alphas_gained_clearly():
    above = [
        low
        for profile in ("desk", "few-images")
        for p, (low, _) in pairs(profile)
        if p >= SATURATED
    ]
    assert 0 < 2 * sum(low > 0 for low in above) < len(above)


def test_a_change_is_clear_where_its_interval_leaves_zero_out():
    assert clear_changes([(0.1, 2.0), (-1.0, 1.0), (-3.0, -0.1), (0.0, 1.0)]) == (
        "gained in 1 and lost in 1"
    )
    assert clear_changes([(-1.0, 1.0)]) == "gained in none and lost in none"


def test_pairs_are_counted_by_saturation_by_measure_and_by_data():
    """By hand: two saturated pairs of a, one of b, and one pair of b that is not saturated."""
    clear, unclear, behind = (0.5, 2.0), (-1.0, 1.0), (-2.0, -0.5)
    pairs = [("a", 0.5, clear, behind), ("a", 0.3, unclear, clear), ("b", 0.4, clear, unclear)]
    pairs += [("b", 0.2, behind, clear)]
    cells = []
    for number, (data, p, by_probe, by_neighbours) in enumerate(pairs):
        row = Coordinates(data=data, num_negatives=number + 1)
        cells.append(Comparison(row=row, column=SATURATION, values=(p,)))
        for column, interval in ((GAIN, by_probe), (GAIN_BY_NEIGHBOURS, by_neighbours)):
            cells.append(Comparison(row=row, column=column, values=(1.0,), interval=interval))
    assert saturation_counts(cells) == (
        "Of 3 pairs of trainings with p₊ of 0.3 and more under plain InfoNCE α gained in 2 and "
        "lost in none by the probe (1 of 2 on a, 1 of 1 on b), and gained in 1 and lost in 1 by "
        "nearest neighbours; of 1 with less it gained in none and lost in 1 by the probe, and "
        "gained in 1 and lost in none by nearest neighbours (95 % intervals that leave zero out, "
        "as one in twenty does by chance)."
    )
