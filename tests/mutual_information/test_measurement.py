"""Contracts of a measurement: same seed, same numbers; in any company; and what it refuses."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from eqco.mutual_information import (
    EqCo,
    InfoNCE,
    MultiLabelCPC,
    PairDraws,
    StackedCritics,
    measure,
)
from eqco.mutual_information.measurement import train
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import random_source
from eqco.theory import eqco_margin

QUICK = {"dim": 6, "hidden_size": 16, "output_size": 8, "steps": 60, "repeats": 10}
EVERY = [InfoNCE(), EqCo(alpha=64), MultiLabelCPC(alpha=64)]


def values(readings):
    return {(r.estimator, r.information): r.value for r in readings}


def test_the_same_seed_gives_the_same_numbers_to_the_bit():
    once = measure([1.0, 3.0], 8, EVERY, seed=3, **QUICK)
    again = measure([1.0, 3.0], 8, EVERY, seed=3, **QUICK)
    assert once == again


def test_another_seed_gives_other_numbers():
    once = values(measure([1.0], 8, EVERY, seed=3, **QUICK))
    other = values(measure([1.0], 8, EVERY, seed=4, **QUICK))
    assert all(once[key] != other[key] for key in once)


def test_grouping_changes_a_reading_by_rounding_only():
    together = values(measure([1.0, 3.0, 5.0], 8, EVERY, seed=1, **QUICK))
    for estimator in EVERY:
        for information in (5.0, 1.0):
            alone = values(measure([information], 8, [estimator], seed=1, **QUICK))
            key = (estimator.name, information)
            assert abs(alone[key] - together[key]) < 1e-5


@pytest.mark.end_to_end
def test_grouping_changes_a_long_training_by_less_than_a_hundredth():
    settings = {"steps": 1500, "repeats": 100, "output_size": 32}
    pair = [InfoNCE(), EqCo(alpha=512)]
    together = values(measure([2.0, 10.0], 64, pair, **settings))
    for information in (2.0, 10.0):
        for key, value in values(measure([information], 64, pair, **settings)).items():
            assert abs(value - together[key]) < 0.01


def test_training_takes_the_same_path_as_one_critic_alone():
    """The straightforward loop, from the same weights on the same pairs, reaches the same loss."""
    num_pairs, steps = 8, 150
    critics = StackedCritics(
        [random_source(0, num_pairs, 2.0, "weights")], dim=6, hidden=16, output=8
    )
    copies = [p.detach()[0].clone().requires_grad_() for p in critics.parameters()]
    margin = eqco_margin(64, num_pairs - 1, temperature=1.0) * torch.eye(num_pairs)

    def draws(purpose):
        return PairDraws([2.0], dim=6, seed=0, num_pairs=num_pairs, purpose=purpose)

    def loss(parameters, source):
        x, y = source.pairs(num_pairs)
        a, b, c, d, e, f = parameters
        queries = torch.relu(x[0] @ a[:-1] + a[-1]) @ b + c
        keys = torch.relu(y[0] @ d[:-1] + d[-1]) @ e + f
        return F.cross_entropy(queries @ keys.T - margin, torch.arange(num_pairs))

    def frozen_loss(parameters):
        source = draws("estimation")
        with torch.no_grad():
            return sum(float(loss(parameters, source)) for _ in range(100)) / 100

    untrained = frozen_loss(copies)
    train(critics, [EqCo(64)], draws("training"), num_pairs, 2e-3, steps, lambda count: None)

    optimizer = torch.optim.Adam(copies, lr=2e-3)
    source = draws("training")
    for _ in range(steps):
        optimizer.zero_grad()
        loss(copies, source).backward()
        optimizer.step()

    trained = frozen_loss([p.detach()[0] for p in critics.parameters()])
    assert trained < untrained - 0.5
    assert_close(trained, frozen_loss(copies), rtol=0, atol=1e-3)


def test_frozen_infonce_is_cross_entropy_on_fresh_pairs():
    """At K = 2 and steps too small to matter, the reading is log 2 less the cross entropy."""
    tiny = {**QUICK, "steps": 1, "learning_rate": 1e-12, "repeats": 50}
    (reading,) = measure([4.0], 2, [InfoNCE()], seed=0, **tiny)
    critics = StackedCritics([random_source(0, 2, 4.0, "weights")], dim=6, hidden=16, output=8)
    modules = []
    for mlp in (critics.query_mlp, critics.key_mlp):
        module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        with torch.no_grad():
            module[0].weight.copy_(mlp.hidden[0, :-1].T)
            module[0].bias.copy_(mlp.hidden[0, -1])
            module[2].weight.copy_(mlp.output_weight[0].T)
            module[2].bias.copy_(mlp.output_bias[0, 0])
        modules.append(module)
    source = PairDraws([4.0], dim=6, seed=0, num_pairs=2, purpose="estimation")
    losses = []
    for _ in range(50):
        x, y = source.pairs(2)
        logits = modules[0](x[0]) @ modules[1](y[0]).T
        losses.append(float(F.cross_entropy(logits, torch.arange(2)).detach()))
    assert_close(reading.value, math.log(2) - sum(losses) / 50, rtol=0, atol=1e-6)


def test_independent_gaussians_are_read_as_zero():
    quick = {**QUICK, "steps": 200, "repeats": 200}
    for reading in measure([0.0], 16, EVERY, **quick):
        assert abs(reading.value) < 0.15


def test_every_reading_says_whether_it_is_a_bound():
    """15 negatives: 64 is above K, and within n·K = 240 of multi-label CPC."""
    readings = {r.estimator: r for r in measure([2.0], 16, EVERY, **QUICK)}
    assert {name: r.kind for name, r in readings.items()} == {
        "infonce": "bound",
        "eqco": "estimate",
        "ml-cpc": "bound",
    }
    assert_close(readings["eqco"].overshoot, math.log(65 / 16))
    assert readings["infonce"].alpha == 15


def test_progress_counts_every_step_and_repeat():
    done = []
    measure([1.0], 4, [InfoNCE()], advance=done.append, **QUICK)
    assert sum(done) == QUICK["steps"] + QUICK["repeats"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"informations": [-1.0]}, r"information=-1.0; it must be a finite number of nats, 0 or"),
        ({"informations": [math.nan]}, r"information=nan"),
        ({"informations": []}, r"no information given"),
        ({"estimators": []}, r"no estimators given"),
        ({"num_pairs": 1}, r"pairs=1; .* Use at least 2"),
        ({"dim": 0}, r"dim=0; the vectors need at least 1 dimension"),
        ({"output_size": 0}, r"output_size=0; it must be at least 1"),
        ({"steps": 0}, r"steps=0; it must be at least 1"),
        ({"repeats": 1}, r"repeats=1; .* at least 2"),
        ({"learning_rate": 0.0}, r"learning_rate=0.0; it must be a finite number greater than 0"),
        ({"learning_rate": 1e30}, r"training diverged at pairs=4: .* Lower learning_rate=1e\+30"),
    ],
)
def test_bad_input_is_answered_with_what_would_work(change, message):
    given = {"informations": [1.0], "num_pairs": 4, "estimators": [InfoNCE()], **QUICK, **change}
    with pytest.raises(InputError, match=message):
        measure(**given)
