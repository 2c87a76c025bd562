"""The same numbers as the libraries people use today."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from drawing import unit_vectors
from torch.testing import assert_close

import eqco


def with_gradient(loss, *inputs):
    """The value and its gradient to the first input."""
    leaf = inputs[0].clone().requires_grad_()
    value = loss(leaf, *inputs[1:])
    value.backward()
    return value.detach(), leaf.grad


def peer(name):
    return pytest.importorskip(name, reason=f"{name} is not installed (pip install eqco[dev])")


def test_cross_entropy_on_concatenated_logits():
    """MoCo's formulation."""

    def moco(queries, positives, queue):
        queries = F.normalize(queries, dim=1)
        logits = torch.cat([(queries * positives).sum(1, keepdim=True), queries @ queue.T], dim=1)
        return F.cross_entropy(logits / 0.07, torch.zeros(len(queries), dtype=torch.long))

    given = unit_vectors(0, 32, 16) * 3, unit_vectors(1, 32, 16), unit_vectors(2, 4096, 16)
    ours = with_gradient(lambda *t: eqco.contrastive_loss(*t, temperature=0.07), *given)
    assert_close(ours, with_gradient(moco, *given), rtol=1e-10, atol=1e-10)


def test_lightly_nt_xent():
    peer("lightly")
    theirs = importlib.import_module("lightly.loss").NTXentLoss(temperature=0.1)
    views = unit_vectors(0, 32, 16) * 3, unit_vectors(1, 32, 16)
    ours = eqco.NTXentLoss(temperature=0.1)
    assert_close(with_gradient(ours, *views), with_gradient(theirs, *views), rtol=1e-9, atol=1e-9)


def test_pytorch_metric_learning_nt_xent():
    peer("pytorch_metric_learning")
    losses = importlib.import_module("pytorch_metric_learning.losses")
    theirs = losses.SelfSupervisedLoss(losses.NTXentLoss(temperature=0.1), symmetric=True)
    views = unit_vectors(0, 32, 16) * 3, unit_vectors(1, 32, 16)
    ours = eqco.NTXentLoss(temperature=0.1)
    assert_close(with_gradient(ours, *views), with_gradient(theirs, *views), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("paired", [False, True])
def test_info_nce_pytorch(paired):
    peer("info_nce")
    mode = "paired" if paired else "unpaired"
    theirs = importlib.import_module("info_nce").InfoNCE(temperature=0.1, negative_mode=mode)
    negatives = unit_vectors(2, 32, 9, 16) if paired else unit_vectors(2, 100, 16)
    given = unit_vectors(0, 32, 16) * 3, unit_vectors(1, 32, 16), negatives
    ours = eqco.EqCoLoss(temperature=0.1)
    assert_close(with_gradient(ours, *given), with_gradient(theirs, *given), rtol=1e-9, atol=1e-9)


class Passed(torch.nn.Module):
    """A sentence-transformers model whose embeddings are its input."""

    def __getitem__(self, place):
        return self

    def forward(self, features):
        return {"sentence_embedding": features["input"]}


@pytest.mark.parametrize("cached", [False, True])
def test_sentence_transformers_ranking_loss(cached):
    """Its scale is 1/τ; the cached form is our cached_backward's."""
    name = "sentence_transformers.sentence_transformer.losses"
    losses = pytest.importorskip(name, reason="sentence-transformers is not installed")
    given = unit_vectors(0, 12, 16) * 3, unit_vectors(1, 12, 16)
    if cached:
        loss_fn = losses.CachedMultipleNegativesRankingLoss(Passed(), scale=20, mini_batch_size=5)
    else:
        loss_fn = losses.MultipleNegativesRankingLoss(Passed(), scale=20)

    def theirs(*pair):
        return loss_fn([{"input": each} for each in pair], None)

    def ours(queries, positives):
        return eqco.contrastive_loss(queries, positives, temperature=1 / 20)

    assert_close(with_gradient(ours, *given), with_gradient(theirs, *given), rtol=1e-6, atol=1e-6)
