"""The study agrees with theory: below the truth at α = K, above it later, the limit never."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eqco.experiments.experiment import RunContext
from eqco.experiments.study_bound import STUDY_BOUND, excess_at
from eqco.report.catalog import EXHIBITS
from eqco.runtime.records import Record, hardware, read_records
from eqco.theory import exact_gaussian_bound, gaussian_correlation, largest_overshoot

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def outcome():
    task = replace(STUDY_BOUND.recipes("smoke")[0], queries=2000)
    return task, STUDY_BOUND.run(task, 0, RunContext())


def test_at_alpha_equal_to_k_the_value_is_below_the_truth(outcome):
    task, found = outcome
    for num_negatives in task.negatives:
        row = found.curves["excess"][str(num_negatives)]
        assert row[task.alphas.index(num_negatives)] < 0


def test_below_alpha_equal_to_k_nothing_is_shown(outcome):
    task, found = outcome
    for num_negatives in task.negatives:
        shown = zip(task.alphas, found.curves["excess"][str(num_negatives)], strict=True)
        assert all((value is None) == (alpha < num_negatives) for alpha, value in shown)


def test_the_excess_stays_within_the_largest_overshoot_and_grows_with_alpha(outcome):
    task, found = outcome
    for num_negatives in task.negatives:
        shown = [
            (alpha, value)
            for alpha, value in zip(
                task.alphas, found.curves["excess"][str(num_negatives)], strict=True
            )
            if value is not None
        ]
        values = [value for _, value in shown]
        assert values == sorted(values)
        assert all(value <= largest_overshoot(alpha, num_negatives) for alpha, value in shown)


def test_the_best_multiple_is_the_true_ratio_at_alpha_equal_to_k_and_reads_more_beyond(outcome):
    task, found = outcome
    for count in task.negatives:
        start = task.alphas.index(count)
        plain, best, scale = (found.curves[n][str(count)] for n in ("excess", "best", "scale"))
        assert scale[start] == pytest.approx(1, abs=0.06)
        assert best[start] == pytest.approx(plain[start], abs=0.01)
        assert scale[start:] == sorted(scale[start:])
        shown = list(zip(task.alphas, plain, best, strict=True))[start + 2 :]
        assert all(p < b < largest_overshoot(alpha, count) for alpha, p, b in shown)


def test_more_negatives_reach_the_truth_later_and_the_limit_never(outcome):
    task, found = outcome
    reached = [found.metrics[f"alpha at the truth, true ratio, K={k}"] for k in task.negatives]
    assert reached == sorted(reached)
    assert reached[0] > 2
    assert max(found.curves["limit"]) < 0


def test_excess_agrees_with_the_theorys_own_average(outcome):
    task, found = outcome
    correlation = gaussian_correlation(2.0, dim=20)
    generator = torch.Generator().manual_seed(1)
    value = exact_gaussian_bound(correlation, 20, num_negatives=4, alpha=512, generator=generator)
    ours = 2.0 + found.curves["excess"]["4"][task.alphas.index(512)]
    assert abs(ours - float(value)) < 0.08


def test_regression_removes_what_the_sample_mean_is_off_by():
    """With the mean of the positives shifted and α huge, f̂ is the positive: the truth exactly."""
    generator = torch.Generator().manual_seed(0)
    positive = 2.3 + 0.1 * torch.randn(50, dtype=torch.float64, generator=generator)
    excess = excess_at(1e15, positive, torch.zeros_like(positive)[:, None], truth=2.0)
    assert abs(excess) < 1e-9


def test_the_table_shows_both_critics_beside_the_ceiling(outcome):
    task, found = outcome
    record = Record(
        experiment="study-bound",
        profile="smoke",
        recipe=task.to_dict(),
        seed=0,
        metrics=found.metrics,
        curves=found.curves,
        code="0",
        hardware=hardware(),
        seconds=1.0,
    )
    cells = {(cell.row, cell.column): cell.mean for cell in STUDY_BOUND.compare([record])}
    # log(65537/3) = 9.9918
    assert cells["K=2", "no critic exceeds"] == pytest.approx(9.9918, abs=1e-4)
    assert cells["K=2", "truth 2: true ratio"] == found.curves["excess"]["2"][-1]
    assert cells["K=2", "truth 2: best multiple"] == found.curves["best"]["2"][-1]
    (reached,) = STUDY_BOUND.further([record]).values()
    columns = {cell.column for cell in reached}
    assert columns == {"truth 2: true ratio", "truth 2: best multiple"}
    assert "no critic's exceeds it by more than 9.99." in EXHIBITS["study-bound"].finding([record])


def test_committed_records_cover_k_2_to_512_and_alpha_to_65536():
    records = read_records(RESULTS, "study-bound", "desk")
    assert sorted(record.recipe["information"] for record in records) == [2.0, 6.0, 10.0]
    for record in records:
        assert (record.recipe["negatives"][0], record.recipe["negatives"][-1]) == (2, 512)
        assert record.recipe["alphas"][-1] == 65536
        assert len(record.metrics) >= 17
