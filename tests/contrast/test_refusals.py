"""Bad input is refused with value, limit and remedy."""

import math

import pytest
import torch

import eqco
from eqco.runtime.errors import InputError

PAIR = torch.ones(4, 8), torch.ones(4, 8)
ONE = torch.ones(1, 8), torch.ones(1, 8)


def holding(value, count):
    tensor = torch.ones(4, 8)
    tensor.view(-1)[:count] = value
    return tensor


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((torch.ones(4, 8), torch.ones(3, 8)), {}, r"queries of shape \(4, 8\) and positives of"),
        ((torch.ones(8), torch.ones(8)), {}, r"queries of shape \(8,\)"),
        ((torch.ones(0, 8), torch.ones(0, 8)), {}, "hold nothing"),
        ((*PAIR, torch.ones(5, 7)), {}, r"negatives of shape \(5, 7\).*must be \(K, 8\)"),
        ((*PAIR, torch.ones(3, 5, 8)), {}, r"\(4, K, 8\)"),
        ((*PAIR, torch.ones(8)), {}, r"negatives of shape \(8,\)"),
        (ONE, {}, "num_queries=1 and a pool of 1 keys leave K=0.*larger batch"),
        ((*PAIR, torch.ones(0, 8)), {}, "K=0"),
        ((*PAIR, torch.ones(4, 0, 8)), {}, "K=0"),
        ((*PAIR, eqco.KeyQueue(4, dim=8)), {}, r"a KeyQueue; pass queue.negatives\(\)"),
        ((*PAIR, eqco.in_batch_negatives), {}, "the function in_batch_negatives; call it"),
        ((PAIR[0].numpy(), PAIR[1]), {}, "queries is a ndarray; pass a torch tensor"),
        (PAIR, {"alpha": "256"}, "alpha='256' is text; give a number"),
        (PAIR, {"alpha": 0}, "alpha=0; it is the number of negatives imitated"),
        (PAIR, {"alpha": -2.0}, "alpha=-2.0"),
        (PAIR, {"alpha": math.nan}, "alpha=nan"),
        (PAIR, {"alpha": 4, "margin": 0.1}, "alpha=4 and margin=0.1 were both given"),
        (PAIR, {"margin": math.inf}, "margin=inf"),
        (PAIR, {"temperature": 0.0}, "temperature=0.0; it must be a finite number greater than 0"),
        (PAIR, {"temperature": math.nan}, "temperature=nan"),
        (PAIR, {"temperature": torch.tensor(-0.1)}, "temperature=-0.1"),
        (PAIR, {"temperature": torch.ones(2)}, r"temperature is a tensor of shape \(2,\)"),
        (PAIR, {"similarity": "euclidean"}, "similarity='euclidean'; there are 'cosine', 'dot'"),
        (PAIR, {"reduction": "median"}, "reduction='median'"),
        ((PAIR[0].long(), PAIR[1]), {}, "queries is of type torch.int64"),
        ((PAIR[0], PAIR[1].bool()), {}, "positives is of type torch.bool"),
        ((*PAIR, torch.ones(5, 8).int()), {}, "negatives is of type torch.int32"),
        ((holding(math.nan, 3), PAIR[1]), {}, "queries holds 3 NaN and 0 infinite values among 32"),
        ((PAIR[0], holding(math.inf, 2)), {}, "positives holds 0 NaN and 2 infinite"),
        ((*PAIR, holding(-math.inf, 1)), {"similarity": "dot"}, "negatives holds 0 NaN and 1 inf"),
        (
            (*PAIR, eqco.Negatives(torch.ones(9, 8), columns=torch.zeros(3, 2).long())),
            {},
            "negatives.columns has 3 rows for 4 queries",
        ),
        (
            (*PAIR, eqco.Negatives(torch.ones(9, 8), columns=torch.full((4, 1), 9))),
            {},
            "negatives.columns holds row numbers from 9 to 9, but the 9 keys have",
        ),
        (
            (*PAIR, eqco.Negatives(torch.ones(9, 8), excluded=torch.full((4, 1), -1))),
            {},
            "negatives.excluded holds row numbers from -1",
        ),
        (
            (*PAIR, eqco.Negatives(torch.ones(9, 8), excluded=torch.zeros(4, 2).long())),
            {},
            "names a key twice",
        ),
        (
            (*PAIR, eqco.Negatives(torch.ones(9, 8), excluded=torch.zeros(5, 1).long())),
            {},
            "negatives.excluded has 5 rows for 4 queries",
        ),
    ],
)
def test_bad_input_is_refused(arguments, settings, message):
    with pytest.raises(InputError, match=message):
        eqco.contrastive_loss(*arguments, **settings)


def test_settings_are_refused_when_the_module_is_made():
    with pytest.raises(InputError, match="alpha=-1"):
        eqco.EqCoLoss(alpha=-1)
    with pytest.raises(InputError, match="alpha=-1"):
        eqco.Objective(temperature=0.2, alpha=-1)
    with pytest.raises(InputError, match="K=0"):
        eqco.NTXentLoss()(*ONE)


def test_large_but_finite_values_are_not_mistaken_for_infinity():
    huge = torch.full((4, 8), 3e38)
    assert torch.isfinite(eqco.contrastive_loss(torch.ones(4, 8), torch.ones(4, 8), huge * 1e-20))
    half = torch.full((4, 8), 6e4, dtype=torch.float16)
    assert torch.isfinite(eqco.contrastive_loss(half, half, half))


def test_the_look_for_nan_can_be_left_out():
    loss = eqco.contrastive_loss(holding(math.nan, 1), PAIR[1], check_finite=False)
    assert torch.isnan(loss)


def test_tensors_on_another_device_are_refused():
    with pytest.raises(InputError, match="negatives are on meta but queries on cpu"):
        eqco.contrastive_loss(*PAIR, torch.ones(5, 8, device="meta"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eqco.Negatives(torch.ones(3)), r"keys of shape \(3,\)"),
        (lambda: eqco.Negatives(torch.ones(3, 2), columns=torch.ones(3, 1)), "torch.int64"),
        (lambda: eqco.Negatives(torch.ones(3, 2), excluded=torch.ones(3).long()), "excluded of"),
        (lambda: eqco.KeyQueue(0, 4), "capacity=0"),
        (lambda: eqco.KeyQueue(4, 4).negatives(), "the queue of 4 keys is empty"),
        (lambda: eqco.KeyQueue(4, 4).remember(torch.ones(2, 3)), r"keys of shape \(2, 3\)"),
        (
            lambda: eqco.in_batch_negatives(torch.ones(1, 4), index=torch.arange(1)),
            "num_queries=1 offers no negatives",
        ),
        (
            lambda: eqco.in_batch_negatives(
                torch.ones(3, 4), torch.ones(2, 4), index=torch.arange(3)
            ),
            "one key per instance",
        ),
    ],
)
def test_sources_refuse_what_they_cannot_serve(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_asking_for_256_negatives_in_a_batch_of_256_is_refused():
    index = torch.arange(256)
    pool = eqco.in_batch_negatives(torch.ones(256, 2), index=index)
    with pytest.raises(InputError, match=r"negatives.count=256.*offers 255.*or None to use all"):
        eqco.sampled_negatives(pool, 256, seed=0, step=0, index=index, num_queries=256)


def test_sources_are_put_together_as_negatives_alone():
    pool = eqco.in_batch_negatives(torch.ones(4, 8), index=torch.arange(4))
    with pytest.raises(InputError, match=r"a KeyQueue was given.*queue.negatives\(\)"):
        eqco.combine_negatives(pool, eqco.KeyQueue(4, dim=8))
