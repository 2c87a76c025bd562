"""What is read from the calls of a loss."""

import math

import pytest
import torch
from drawing import unit_vectors
from torch import nn

import eqco
from eqco.integrations.watching import LossWatch

QUERIES, POSITIVES, KEYS = (unit_vectors(n, count, 5) for n, count in ((0, 6), (1, 6), (2, 9)))


def seen(loss_fn, *args, **kwargs):
    watch = LossWatch(loss_fn)
    watch.wanted = True
    loss_fn(*args, **kwargs)
    watch.stop()
    return watch.take()


def test_negatives_are_read_where_they_are_given():
    loss_fn = eqco.EqCoLoss(temperature=0.2, alpha=64)
    settings = {"temperature": 0.2, "alpha": 64}
    alone = eqco.diagnose(QUERIES, POSITIVES, **settings)
    beside = eqco.diagnose(QUERIES, POSITIVES, KEYS, **settings)
    assert seen(loss_fn, QUERIES, POSITIVES) == alone
    assert seen(loss_fn, QUERIES, POSITIVES, KEYS) == beside
    assert seen(loss_fn, queries=QUERIES, positives=POSITIVES, negatives=KEYS) == beside
    weights = torch.zeros(6, 6, dtype=torch.float64)
    assert seen(loss_fn, QUERIES, POSITIVES, log_weights=weights) == alone


def test_a_temperature_that_learns_is_read_as_it_is():
    loss_fn = eqco.TwoTowerLoss()
    tau = float(loss_fn.temperature().detach())
    assert seen(loss_fn, QUERIES, POSITIVES) == eqco.diagnose(QUERIES, POSITIVES, temperature=tau)


def test_a_batch_of_one_is_passed_over_and_the_next_one_read():
    loss_fn = nn.CosineSimilarity()
    watch = LossWatch(loss_fn, temperature=0.1)
    watch.wanted = True
    loss_fn(QUERIES[:1], POSITIVES[:1])
    assert watch.take() is None
    loss_fn(QUERIES, POSITIVES)
    assert watch.take().num_negatives == 5
    assert watch.take() is None


def test_what_shows_no_embeddings_is_refused():
    loss_fn = nn.Linear(5, 5).double()
    watch = LossWatch(loss_fn, temperature=0.1)
    watch.wanted = True
    with pytest.raises(eqco.InputError, match="called with Tensor; diagnostics need"):
        loss_fn(QUERIES)


@pytest.mark.parametrize(
    ("loss_fn", "count"),
    [(eqco.EqCoLoss(temperature=0.3), 5), (eqco.NTXentLoss(temperature=0.3), 10)],
)
def test_the_bound_is_that_of_the_loss(loss_fn, count):
    """f̂ = log(1 + K) − L without α, with the K of the loss: of two views both are negatives."""
    found = seen(loss_fn, QUERIES, POSITIVES)
    assert found.num_negatives == count
    value = float(loss_fn(QUERIES, POSITIVES))
    assert found.information == pytest.approx(math.log(1 + count) - value)


def test_a_memory_that_is_not_seen_is_refused():
    theirs = pytest.importorskip("lightly.loss")
    loss_fn = theirs.NTXentLoss(0.3, memory_bank_size=(32, 5))
    with pytest.raises(eqco.InputError, match=r"memory bank of its own \(\(32, 5\)\)"):
        seen(loss_fn, QUERIES.float(), POSITIVES.float())
