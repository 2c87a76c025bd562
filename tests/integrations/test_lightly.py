"""lightly's loss: its numbers without α, ours with it."""

import math

import pytest
import torch
from drawing import unit_vectors
from torch.testing import assert_close

import eqco

theirs = pytest.importorskip("lightly.loss", reason="lightly is not installed")
from eqco.integrations.lightly import NTXentLoss  # noqa: E402


def views(seed, requires_grad=True):
    drawn = (3 * unit_vectors(seed, 6, 5)).float(), unit_vectors(seed + 100, 6, 5).float()
    return [each.requires_grad_(requires_grad) for each in drawn]


@pytest.mark.parametrize("memory", [0, (16, 5)])
def test_without_alpha_it_is_theirs_step_by_step(memory):
    """Memory included: it starts with the same keys, and wraps around in the third step."""
    torch.manual_seed(0)
    expected = theirs.NTXentLoss(temperature=0.1, memory_bank_size=memory)
    torch.manual_seed(0)
    ours = NTXentLoss(temperature=0.1, memory_bank_size=memory)
    for step in range(4):
        given = views(step)
        values = [loss_fn(*given) for loss_fn in (ours, expected)]
        assert_close(*values)
        assert_close(*(torch.autograd.grad(value, given) for value in values))
    assert_close(ours.memory_bank.bank, expected.memory_bank.bank)


@pytest.mark.parametrize("alpha", [64, math.inf])
def test_with_alpha_it_is_eq_1_over_the_batch_or_the_memory(alpha):
    given = views(0)
    value = NTXentLoss(0.2, alpha=alpha)(*given)
    assert_close(value, eqco.NTXentLoss(temperature=0.2, alpha=alpha)(*given))
    with_memory = NTXentLoss(0.2, memory_bank_size=(16, 5), alpha=alpha)
    bank = with_memory.memory_bank.bank.clone()
    value = with_memory(*given)
    assert_close(value, eqco.contrastive_loss(*given, bank, temperature=0.2, alpha=alpha))
    assert not torch.equal(with_memory.memory_bank.bank, bank)


def test_a_call_without_gradient_leaves_the_memory_alone():
    loss_fn = NTXentLoss(0.2, memory_bank_size=(16, 5), alpha=64)
    bank = loss_fn.memory_bank.bank.clone()
    loss_fn(*views(0, requires_grad=False))
    assert_close(loss_fn.memory_bank.bank, bank)


def test_ids_are_for_the_batch_alone():
    ids = torch.tensor([0, 0, 1, 2, 3, 4])
    given = views(0)
    value = NTXentLoss(0.2, alpha=64)(*given, ids=ids)
    assert_close(value, eqco.NTXentLoss(temperature=0.2, alpha=64)(*given, ids=ids))
    with pytest.raises(eqco.InputError, match=r"memory_bank_size=\(16, 5\), whose keys have none"):
        NTXentLoss(0.2, memory_bank_size=(16, 5))(*given, ids=ids)
