"""What is read from the calls of a loss."""

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
