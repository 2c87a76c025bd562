"""Table 5 from records: ours beside the paper's, and what is committed keeps its promise."""

from pathlib import Path

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import Comparison, reproduce
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tab5 import TAB5, metric_name, steadiness
from eqco.runtime.records import Record, read_records

RESULTS = Path(__file__).parents[2] / "results"


def record(pairs, seed, values):
    """A record of one K with information 2 only."""
    keys = [metric_name("infonce", 2.0), metric_name("eqco", 2.0)]
    return Record(
        experiment="tab5",
        profile="paper",
        recipe={"pairs": pairs, "information": [2.0], "estimators": ["infonce", "eqco"]},
        seed=seed,
        metrics=dict(zip(keys, values, strict=True)),
        curves={"kind": dict(zip(keys, ["bound", "estimate"], strict=True))},
        code="",
        hardware={},
        seconds=0.0,
    )


def row(loss, information):
    return Coordinates(loss=loss, information=information)


def test_cells_hold_every_seed_and_the_papers_number():
    records = [record(64, 1, (1.5, 1.8)), record(128, 0, (1.8, 1.9)), record(64, 0, (1.7, 2.0))]
    cells = {(cell.row, cell.column): cell for cell in TAB5.compare(records)}
    cell = cells[row("eqco", 2), Coordinates(num_negatives=64)]
    assert cell.values == (2.0, 1.8)
    assert cell.published == PUBLISHED["tab5"].numbers[2.0, "eqco", 64] == 1.9
    assert cell.kind == "estimate"
    assert cells[row("infonce", 2), Coordinates(num_negatives=128)].kind == "bound"


def test_steadiness_is_the_range_over_k_of_each_seed():
    cells = [
        Comparison(row=row("eqco", 2), column="K=64", values=(1.0, 2.0), seeds=(0, 1)),
        Comparison(row=row("eqco", 2), column="K=128", values=(2.25, 9.0), seeds=(1, 2)),
    ]
    (found,) = steadiness(cells)
    assert (found.row, found.column) == (Coordinates(information=2.0), Coordinates(loss="eqco"))
    assert found.values == (0.25,)
    assert found.seeds == (1,)  # the only one under both K


def test_published_table_5_is_whole():
    numbers = PUBLISHED["tab5"].numbers
    assert len(numbers) == 40
    for (truth, estimator, pairs), number in numbers.items():
        assert number <= truth
        assert (truth, "eqco" if estimator == "infonce" else "infonce", pairs) in numbers


def committed_records():
    """The records of the published setting."""
    records = read_records(RESULTS, "tab5", "paper")
    assert records
    return records


def test_committed_records_cover_the_table_with_three_seeds():
    records = committed_records()
    found = {(record.recipe["pairs"], record.seed) for record in records}
    assert found == {(pairs, seed) for pairs in (64, 128, 256, 512) for seed in (0, 1, 2)}
    wanted = [task.to_dict() for task in TAB5.recipes("paper")]
    assert all(record.recipe in wanted for record in records)


def test_committed_numbers_are_within_the_promised_distance_of_the_papers():
    cells = TAB5.compare(committed_records())
    assert len(cells) == 40
    for cell in cells:
        assert cell.difference is not None
        assert abs(cell.difference) <= 0.15, cell


def test_committed_eqco_is_steadier_than_infonce_in_every_row():
    ranges = {
        (cell.row, cell.column): cell.mean for cell in steadiness(TAB5.compare(committed_records()))
    }
    for truth in (2, 4, 6, 8, 10):
        plain, eqco = (
            ranges[Coordinates(information=truth), Coordinates(loss=loss)]
            for loss in ("infonce", "eqco")
        )
        assert eqco < plain / 2


def test_a_run_is_bit_equal_when_repeated(tmp_path):
    first = reproduce(TAB5, "smoke", [7], tmp_path / "first")
    second = reproduce(TAB5, "smoke", [7], tmp_path / "second")
    assert [r.metrics for r in first] == [r.metrics for r in second]
