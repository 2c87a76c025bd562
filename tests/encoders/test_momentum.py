"""Eq. 16."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from eqco.encoders.momentum import scheduled_ema_decay, update_momentum
from eqco.runtime.errors import InputError


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


@given(ema_decay=st.floats(0, 1), steps=st.integers(1, 4))
def test_eq_16_for_every_parameter(ema_decay, steps):
    key, query = network(0), network(1)
    expected = [parameter.detach().clone() for parameter in key.parameters()]
    for _ in range(steps):
        update_momentum(key, query, ema_decay)
        expected = [
            ema_decay * ours + (1 - ema_decay) * theirs
            for ours, theirs in zip(expected, query.parameters(), strict=True)
        ]
    assert_close([*key.parameters()], expected, rtol=1e-12, atol=1e-12)


def test_beta_zero_copies_and_statistics_stay_their_own():
    key, query = network(0), network(1)
    query(torch.randn(8, 3, dtype=torch.float64) + 5)
    before = copy.deepcopy(dict(key.named_buffers()))
    update_momentum(key, query, ema_decay=0)
    assert all(torch.equal(a, b) for a, b in zip(key.parameters(), query.parameters(), strict=True))
    assert all(torch.equal(before[name], value) for name, value in key.named_buffers())


@pytest.mark.parametrize("ema_decay", [-0.1, 1.5, float("nan")])
def test_a_decay_outside_zero_and_one_is_refused(ema_decay):
    with pytest.raises(InputError, match="ema_decay="):
        update_momentum(network(0), network(1), ema_decay)


@given(ema_decay=st.floats(0, 1), step=st.integers(0, 99))
def test_a_rising_decay_goes_from_its_value_to_one(ema_decay, step):
    now, later = (
        scheduled_ema_decay(ema_decay, "cosine", step=each, total_steps=100)
        for each in (step, step + 1)
    )
    assert ema_decay - 1e-12 <= now <= later + 1e-12 <= 1 + 2e-12
    constant = scheduled_ema_decay(ema_decay, "constant", step=step, total_steps=100)
    assert constant == ema_decay


def test_a_rising_decay_by_hand():
    """1 - 0.2 (1 + cos(π/3)) / 2 = 1 - 0.2 · 0.75 = 0.85."""
    assert scheduled_ema_decay(0.8, "cosine", step=2, total_steps=6) == pytest.approx(0.85)
    assert scheduled_ema_decay(0.8, "cosine", step=0, total_steps=6) == pytest.approx(0.8)
    assert scheduled_ema_decay(0.8, "cosine", step=6, total_steps=6) == 1


def test_a_decay_that_rises_to_its_value_by_hand():
    """After three of ten steps half of six tenths have passed: half of β."""
    values = [scheduled_ema_decay(0.8, "rising", step=step, total_steps=10) for step in range(11)]
    assert values[0] == 0
    assert values[3] == pytest.approx(0.4)
    assert values[6:] == [0.8] * 5
    assert values == sorted(values)
