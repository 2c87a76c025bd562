"""The study of search: pairs are what they say, and every training learns something."""

from dataclasses import replace

import pytest
import torch

from eqco.data.docstrings import read_pairs
from eqco.experiments.experiment import RunContext
from eqco.experiments.study_text import (
    STUDY_TEXT,
    TextTask,
    reciprocal_ranks,
    run,
    split,
    train_encoder,
)
from eqco.report.catalog import EXHIBITS
from eqco.runtime.records import Record, hardware


def test_files_that_are_searched_are_not_trained_on_and_nothing_stands_twice():
    task = STUDY_TEXT.recipes("smoke")[0]
    trained, tested = split(task)
    assert (len(trained), len(tested)) == (task.pairs, task.tests)
    assert not {pair.file for pair in trained} & {pair.file for pair in tested}
    pairs = read_pairs(task.packages)
    assert len({pair.docstring for pair in pairs}) == len({p.function for p in pairs}) == len(pairs)


def test_the_reciprocal_rank_by_hand():
    """Own cosines 0.8, 0, 1: the second key is nearer to none, the first query's is beaten once."""
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    keys = torch.tensor([[0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])
    # query 0: 0.8, 1, 0.6; query 1: 0.6, 0, 0.8; query 2: 0.96, 0.6, 1
    assert reciprocal_ranks(queries, keys).tolist() == pytest.approx([1 / 2, 1 / 3, 1])


def test_caching_is_the_larger_batch():
    small = TextTask(packages=("numpy",), pairs=64, tests=8, num_queries=4, source="cached")
    large = replace(small, num_queries=32, source="batch")
    generator = torch.Generator().manual_seed(0)
    given = torch.randint(1, 99, (2, 64, 5), generator=generator).unbind()
    weights = [
        train_encoder(replace(task, epochs=1), *given, 0, RunContext()).words.weight
        for task in (small, large)
    ]
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("task", STUDY_TEXT.recipes("smoke"), ids=lambda t: f"{t.source} {t.alpha}")
def test_every_training_ranks_better_than_chance(task):
    """Chance is the mean of 1/rank over 64 ranks: 0.074."""
    count = []
    found = run(task, 0, RunContext(advance=count.append))
    assert found.metrics["mrr"] > 2 * 0.074
    assert found.metrics["words_mrr"] > 4 * 0.074
    assert sum(count) == STUDY_TEXT.size(task)
    assert found.curves["versions"].keys() == {"python", "numpy"}


def test_the_table_has_a_row_for_each_training_and_one_for_words():
    def record(task, seed, mrr):
        return Record(
            experiment="study-text",
            profile="desk",
            recipe=task.to_dict(),
            seed=seed,
            metrics={"mrr": mrr, "first": 0.1, "words_mrr": 0.5},
            code="0",
            hardware=hardware(),
            seconds=1.0,
        )

    chosen = STUDY_TEXT.recipes("desk")
    records = [record(t, seed, (n + seed) / 100) for n, t in enumerate(chosen) for seed in (0, 1)]
    found = STUDY_TEXT.compare(records)
    cells = {(cell.row, cell.column.num_queries): cell for cell in found}
    assert len(cells) == 12
    best = "EqCo, α=4096, batch of 8·N by caching"
    assert cells[best, 32].values == pytest.approx((9.0, 10.0))
    assert cells["shared words (tf-idf), no training", 8].mean == 50.0
    finding = EXHIBITS["study-text"].finding(records)
    assert "with N=8 is highest at 50.0 % (shared words" in finding
    assert "with N=32 is highest" in finding
    assert [chart.title for chart in EXHIBITS["study-text"].charts(records)] == [
        "N=8, MRR, %",
        "N=32, MRR, %",
    ]
