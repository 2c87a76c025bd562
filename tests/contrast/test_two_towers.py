"""TwoTowerLoss is CLIP's loss when α = K, and Eq. 1 in both directions for any α."""

import importlib
import math

import pytest
import torch
import torch.nn.functional as F
from drawing import seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import eqco
from eqco.contrast import two_towers
from eqco.runtime.errors import InputError

DOUBLE = torch.float64


def towers(seed, n, dim=6):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, dim, dtype=DOUBLE, generator=generator).requires_grad_() for _ in range(2)
    ]


def clip(first, second, log_scale):
    """CLIP's pseudocode."""
    first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    logits = first @ second.t() * log_scale.exp()
    labels = torch.arange(len(first))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def written_out(first, second, temperature, alpha, ids):
    """Row by row in both directions; rows without negatives are left out."""
    first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    losses = []
    for queries, keys in ((first, second), (second, first)):
        found = []
        for i in range(len(queries)):
            others = [j for j in range(len(keys)) if j != i and ids[j] != ids[i]]
            if not others:
                continue
            total = sum(torch.exp(queries[i] @ keys[j] / temperature) for j in others)
            own = torch.exp(queries[i] @ keys[i] / temperature)
            if alpha == math.inf:
                found.append(torch.log(total / own))
            else:
                weight = 1.0 if alpha is None else alpha / len(others)
                found.append(torch.log(1 + weight * total / own))
        losses.append(torch.stack(found).mean())
    return (losses[0] + losses[1]) / 2


@pytest.mark.parametrize("initial", [0.07, 0.011])
def test_it_is_clip_s_loss_in_value_and_every_gradient(initial):
    given = towers(0, 24)
    loss_fn = eqco.TwoTowerLoss(temperature=eqco.LearnableTemperature(initial=initial)).double()
    ours = loss_fn(*given)
    log_scale = loss_fn.temperature.log_scale
    mine = torch.autograd.grad(ours, [*given, log_scale])
    expected = clip(*given, log_scale)
    assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    theirs = torch.autograd.grad(expected, [*given, log_scale])
    assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [None, 23])
def test_it_is_open_clip_s(alpha):
    pytest.importorskip("open_clip", reason="open_clip_torch is not installed")
    theirs = importlib.import_module("open_clip.loss").ClipLoss()
    given = towers(1, 24)
    scale = torch.tensor(1 / 0.07, dtype=DOUBLE)
    expected = theirs(*(F.normalize(each, dim=1) for each in given), scale)
    ours = eqco.TwoTowerLoss(temperature=0.07, alpha=alpha)(*given)
    assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    pair = [torch.autograd.grad(loss, given) for loss in (ours, expected)]
    assert_close(*pair, rtol=1e-10, atol=1e-12)


@settings(max_examples=40)
@given(
    seed=seeds,
    n=st.integers(3, 9),
    alpha=st.sampled_from([None, 50.0, math.inf]),
    temperature=st.sampled_from([0.015, 0.2]),
    whole=st.booleans(),
    kinds=st.sampled_from([2, 4, 1000]),
)
def test_any_alpha_and_ids_are_eq_1_written_out(seed, n, alpha, temperature, whole, kinds):
    given = towers(seed, n)
    ids = torch.randint(kinds, (n,), generator=torch.Generator().manual_seed(seed))
    ids[:2] = torch.tensor([0, 1])
    with pytest.MonkeyPatch.context() as patch:
        if not whole:  # tiles that do not divide N
            patch.setattr(two_towers, "WHOLE_ELEMENTS", 0)
            patch.setattr(two_towers, "TILE_ROWS", 4)
            patch.setattr(two_towers, "TILE_COLUMNS", 3)
        learned = torch.nn.Parameter(torch.tensor(temperature, dtype=DOUBLE))
        loss_fn = eqco.TwoTowerLoss(temperature=learned, alpha=alpha)
        ours = loss_fn(*given, ids=ids)
        mine = torch.autograd.grad(ours, [*given, learned])
    expected = written_out(*given, learned, alpha, ids)
    assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    assert_close(mine, torch.autograd.grad(expected, [*given, learned]), rtol=1e-8, atol=1e-9)


def test_gradcheck_in_tiles(monkeypatch):
    monkeypatch.setattr(two_towers, "WHOLE_ELEMENTS", 0)
    monkeypatch.setattr(two_towers, "TILE_ROWS", 3)
    loss_fn = eqco.TwoTowerLoss(temperature=0.3, alpha=64)
    torch.autograd.gradcheck(loss_fn, towers(0, 5))


def test_both_directions_by_one_pass_each_agree_with_tiles():
    """The path of several processes and of torch.compile."""
    given, ids = towers(0, 12), torch.arange(12) // 2
    loss_fn = eqco.TwoTowerLoss(temperature=0.07, alpha=64)
    for some in (None, ids):
        tiled, _ = loss_fn.in_tiles(*given, 0.07, some)
        streamed, _ = loss_fn.in_turn(*given, 0.07, some)
        assert_close(tiled, streamed, rtol=1e-12, atol=1e-12)


def test_float32_holds_where_all_cosines_are_low():
    """At τ = 0.01 exponentials of −90 are lost unless they are shifted."""
    generator = torch.Generator().manual_seed(0)
    centre = F.normalize(torch.randn(1, 8, generator=generator), dim=1)
    noise = torch.randn(2, 2500, 8, generator=generator) * 0.05
    first, second = centre + noise[0], -centre + noise[1]
    loss_fn = eqco.TwoTowerLoss(temperature=0.01)
    exact = loss_fn(first.double(), second.double())
    assert_close(loss_fn(first, second).double(), exact, rtol=1e-5, atol=0)


def test_a_row_without_negatives_is_skipped_and_counted():
    given, ids = towers(0, 3), torch.zeros(3).long()
    with pytest.raises(InputError, match="3 queries of 3 have no negatives"):
        eqco.TwoTowerLoss()(*given, ids=ids)
    loss_fn = eqco.TwoTowerLoss(on_empty="skip")
    loss = loss_fn(*given, ids=ids)
    loss.backward()
    assert loss == 0
    assert loss_fn.skipped == 3
    assert all(each.grad.eq(0).all() for each in given)


@pytest.mark.parametrize(
    ("first", "second", "settings", "message"),
    [
        (torch.ones(4, 8), torch.ones(3, 8), {}, r"first of shape \(4, 8\) and second of shape"),
        (torch.ones(4, 8).long(), torch.ones(4, 8), {}, "first is of type torch.int64"),
        (torch.ones(1, 8), torch.ones(1, 8), {}, "N ≥ 2 is needed.*drop_last=True"),
        (torch.ones(2, 8), torch.full((2, 8), math.nan), {}, "second holds 16 NaN"),
        (torch.ones(2, 8), torch.ones(2, 8), {"ids": torch.ones(3).long()}, r"ids of shape \(3,\)"),
    ],
)
def test_bad_towers_are_refused(first, second, settings, message):
    with pytest.raises(InputError, match=message):
        eqco.TwoTowerLoss()(first, second, **settings)


def test_its_temperature_learns_and_is_in_the_state():
    loss_fn = eqco.TwoTowerLoss(alpha=64)
    assert list(loss_fn.state_dict()) == ["temperature.log_scale"]
    loss_fn(*[each.float() for each in towers(0, 6)]).backward()
    assert loss_fn.temperature.log_scale.grad.abs() > 0
