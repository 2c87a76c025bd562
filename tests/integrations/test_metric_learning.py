"""pytorch-metric-learning's loss: its numbers without α, Eq. 1 of every positive pair with it."""

import math

import pytest
import torch
from drawing import unit_vectors
from torch.testing import assert_close

import eqco

theirs = pytest.importorskip("pytorch_metric_learning.losses", reason="it is not installed")
from pytorch_metric_learning.distances import DotProductSimilarity, LpDistance  # noqa: E402
from pytorch_metric_learning.miners import MultiSimilarityMiner  # noqa: E402
from pytorch_metric_learning.reducers import ThresholdReducer  # noqa: E402

from eqco.integrations.metric_learning import NTXentLoss  # noqa: E402

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])


def embeddings(seed=0):
    return unit_vectors(seed, len(LABELS), 5).mul(2).requires_grad_()


def assert_same(ours, expected, *given, **named):
    values = [loss_fn(*given, **named) for loss_fn in (ours, expected)]
    assert_close(*values, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(value, given[0]) for value in values]
    assert_close(*gradients, rtol=1e-6, atol=1e-6)
    assert gradients[0][0].abs().max() > 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"distance": DotProductSimilarity(normalize_embeddings=False)},
        {"distance": LpDistance(power=2)},
        {"reducer": ThresholdReducer(low=0.1)},
    ],
    ids=["cosine", "dot", "distance", "reducer"],
)
def test_without_alpha_it_is_theirs(settings):
    assert_same(
        NTXentLoss(0.1, **settings), theirs.NTXentLoss(0.1, **settings), embeddings(), LABELS
    )


def test_with_a_miner_and_in_its_wrappers_it_is_theirs():
    given = embeddings()
    pairs = MultiSimilarityMiner()(given, LABELS)
    assert_same(NTXentLoss(0.1), theirs.NTXentLoss(0.1), given, LABELS, pairs)
    losses = NTXentLoss(0.1), theirs.NTXentLoss(0.1)
    ours, expected = (theirs.SelfSupervisedLoss(loss) for loss in losses)
    assert_same(ours, expected, given, embeddings(1).detach())
    ours, expected = (theirs.CrossBatchMemory(loss, 5, memory_size=20) for loss in losses)
    for seed in range(3):
        assert_same(ours, expected, embeddings(seed), LABELS)


@pytest.mark.parametrize("alpha", [2.0, 4096.0, math.inf])
@pytest.mark.parametrize("distance", [None, LpDistance()], ids=["cosine", "distance"])
def test_alpha_is_eq_1_of_every_positive_pair_with_the_k_of_its_anchor(alpha, distance):
    given, tau = embeddings(), 0.3
    unit = torch.nn.functional.normalize(given, dim=1)
    nearness = unit @ unit.T if distance is None else -torch.cdist(unit, unit)
    losses = []
    for anchor in range(len(LABELS)):
        others = [n for n in range(len(LABELS)) if LABELS[n] != LABELS[anchor]]
        total = sum(math.e ** (nearness[anchor, n] / tau) for n in others)
        for positive in range(len(LABELS)):
            if positive != anchor and LABELS[positive] == LABELS[anchor]:
                own = math.e ** (nearness[anchor, positive] / tau)
                if alpha == math.inf:
                    losses.append((total / own).log())
                else:
                    losses.append((1 + alpha / len(others) * total / own).log())
    expected = torch.stack(losses).mean()
    ours = NTXentLoss(tau, alpha=alpha, distance=distance)(given, LABELS)
    assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(value, given) for value in (ours, expected)]
    assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [None, 64.0, math.inf])
def test_anchors_without_negatives_have_no_loss_and_no_gradient(alpha):
    given = embeddings()
    pairs = tuple(torch.tensor(row) for row in ([0, 3], [1, 4], [3, 3], [0, 5]))
    loss = NTXentLoss(0.1, alpha=alpha)(given, indices_tuple=pairs)
    (gradient,) = torch.autograd.grad(loss, given)
    assert torch.isfinite(gradient).all()
    assert not gradient[1].any()
    alone = tuple(torch.tensor(row) for row in ([3], [4], [3, 3], [0, 5]))
    assert_close(loss, NTXentLoss(0.1, alpha=alpha)(given, indices_tuple=alone) / 2)


def test_alpha_below_zero_is_refused():
    with pytest.raises(eqco.InputError, match="alpha=-1"):
        NTXentLoss(0.1, alpha=-1)
