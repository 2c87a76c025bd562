"""Bad input is refused with value, limit and remedy."""

import math
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

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
        (ONE, {}, "num_queries=1 and a pool of 1 keys leave K=0.*drop_last=True.*queue"),
        ((*PAIR, torch.ones(0, 8)), {}, "K=0"),
        ((*PAIR, torch.ones(4, 0, 8)), {}, "K=0"),
        ((*PAIR, eqco.KeyQueue(4, dim=8)), {}, r"a KeyQueue; pass queue.negatives\(\)"),
        ((*PAIR, eqco.in_batch_negatives), {}, "the function in_batch_negatives; call it"),
        ((PAIR[0].numpy(), PAIR[1]), {}, "queries is a ndarray; pass a torch tensor"),
        (PAIR, {"alpha": "256"}, "alpha='256' is a str; give a number"),
        (PAIR, {"temperature": [0.1]}, r"temperature=\[0\.1\] is a list; give a number"),
        (PAIR, {"alpha": 0}, "alpha=0; it says how many negatives those present stand in for"),
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
        (PAIR, {"temperature": None}, "temperature=None"),
        (PAIR, {"temperature": eqco.LearnableTemperature()}, "module LearnableTemperature; call"),
        ((PAIR[0].to(torch.float8_e4m3fn), PAIR[1]), {}, r"float8_e4m3fn.*queries\.float\(\)"),
        ((PAIR[0], PAIR[1].to(torch.float8_e5m2)), {}, r"float8_e5m2.*positives\.float\(\)"),
        ((PAIR[0].long(), PAIR[1]), {}, "queries is of type torch.int64"),
        ((PAIR[0], PAIR[1].bool()), {}, "positives is of type torch.bool"),
        ((PAIR[0], torch.arange(4)), {}, "as labels are; no labels are needed.*second views"),
        ((*PAIR, torch.ones(5, 8).int()), {}, "negatives is of type torch.int32"),
        ((holding(math.nan, 3), PAIR[1]), {}, "queries holds 3 NaN and 0 infinite values among 32"),
        ((PAIR[0], holding(math.inf, 2)), {}, "positives holds 0 NaN and 2 infinite"),
        ((*PAIR, holding(-math.inf, 1)), {"similarity": "dot"}, "negatives holds 0 NaN and 1 inf"),
        (
            (*PAIR, eqco.Negatives(torch.ones(9, 8), indices=torch.zeros(3, 2).long())),
            {},
            "negatives.indices has 3 rows for 4 queries",
        ),
        (
            (*PAIR, eqco.Negatives(torch.ones(9, 8), indices=torch.full((4, 1), 9))),
            {},
            "negatives.indices holds row numbers from 9 to 9, but the 9 keys have",
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
    for name in ("alpha", "margin"):
        with pytest.raises(InputError, match=f"{name} is a tensor, but only the temperature can"):
            eqco.EqCoLoss(**{name: torch.nn.Parameter(torch.ones(()))})
    with pytest.raises(InputError, match=r"no optimiser would find.*nn.Parameter\(temperature\)"):
        eqco.EqCoLoss(temperature=torch.tensor(0.2, requires_grad=True))


def test_the_loss_on_two_views_speaks_of_its_own_arguments():
    loss_fn = eqco.NTXentLoss()
    with pytest.raises(InputError, match=r"of shape \(1, 8\); N ≥ 2 is .*drop_last=True.*queue"):
        loss_fn(*ONE)
    with pytest.raises(InputError, match=r"first of shape \(4, 8\) and second of shape \(2, 8\)"):
        loss_fn(PAIR[0], PAIR[1][:2])
    with pytest.raises(InputError, match=r"second is of type torch\.int64"):
        loss_fn(PAIR[0], PAIR[1].long())
    with pytest.raises(InputError, match="second holds 1 NaN"):
        loss_fn(PAIR[0], holding(math.nan, 1))


def test_transforms_that_cannot_see_through_the_loss_are_refused():
    batches = torch.ones(3, 4, 8), torch.ones(3, 4, 8)
    for loss_fn in (eqco.EqCoLoss(alpha=64), eqco.NTXentLoss()):
        with pytest.raises(InputError, match=r"torch\.func \(vmap.*backward.*eqco\.info_nce"):
            torch.func.vmap(loss_fn)(*batches)
        with pytest.raises(InputError, match=r"torch\.func \(vmap, grad"):
            torch.func.grad(loss_fn)(*PAIR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            with pytest.raises(InputError, match=r"torch\.jit\.trace.*Use torch\.compile"):
                torch.jit.trace(loss_fn, PAIR)


@pytest.mark.parametrize("check_finite", [None, True])
def test_a_mode_without_values_gives_shapes_and_gradients(check_finite):
    with FakeTensorMode():
        first, second = (torch.randn(8, 16, requires_grad=True) for _ in range(2))
        learning = eqco.LearnableTemperature()
        for settings in ({}, {"alpha": 256}, {"temperature": learning}):
            loss_fn = eqco.EqCoLoss(check_finite=check_finite, **settings)
            drawn = eqco.sampled_negatives(eqco.in_batch_negatives(second), 4, seed=0, step=0)
            for negatives in (None, torch.randn(5, 16), torch.randn(8, 5, 16), drawn):
                loss_fn(first, second, negatives).backward()
            eqco.NTXentLoss(check_finite=check_finite, **settings)(first, second).backward()
        assert first.grad.shape == second.grad.shape == (8, 16)
        assert learning.log_scale.grad.shape == ()
        with pytest.raises(InputError, match=r"count=33 in a FakeTensorMode.*Choose up to 32"):
            eqco.sampled_negatives(
                eqco.Negatives(torch.ones(40, 4)), 33, seed=0, step=0, num_queries=2
            )


def test_large_but_finite_values_are_not_mistaken_for_infinity():
    huge = torch.full((4, 8), 3e38)
    assert torch.isfinite(eqco.contrastive_loss(torch.ones(4, 8), torch.ones(4, 8), huge * 1e-20))
    many = torch.full((64, 8), 3e18)  # the squares of all together overflow, those of a row do not
    assert torch.isfinite(eqco.contrastive_loss(torch.ones(4, 8), torch.ones(4, 8), many))
    half = torch.full((4, 8), 6e4, dtype=torch.float16)
    assert torch.isfinite(eqco.contrastive_loss(half, half, half))


def test_finite_values_with_no_finite_answer_are_refused():
    first, second = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="queries holds 4 vectors of 4 that are too long"):
        eqco.contrastive_loss(first * 1e20, second)
    doubles = eqco.contrastive_loss(first.double() * 1e20, second)
    assert_close(doubles, eqco.contrastive_loss(first.double(), second))
    mixed = eqco.contrastive_loss(first * 1e20, second.double())
    assert_close(mixed, eqco.contrastive_loss(first, second.double()), rtol=1e-6, atol=0)
    with pytest.raises(InputError, match=r"loss of 4 queries of 4 is not finite.*dot similarities"):
        eqco.contrastive_loss(first * 1e25, second * 1e25, similarity="dot")
    learning = torch.nn.Parameter(torch.tensor(1e-39))
    with pytest.raises(InputError, match=r"cosine similarities and margin=1e\+38.*or give float64"):
        eqco.contrastive_loss(first, second, temperature=learning, margin=1e38)


def test_the_look_for_nan_can_be_left_out():
    loss = eqco.contrastive_loss(holding(math.nan, 1), PAIR[1], check_finite=False)
    assert torch.isnan(loss)


def test_tensors_on_another_device_are_refused():
    with pytest.raises(InputError, match="second are on meta but first on cpu"):
        eqco.NTXentLoss()(PAIR[0], PAIR[1].to("meta"))
    with pytest.raises(InputError, match="negatives are on meta but queries on cpu"):
        eqco.contrastive_loss(*PAIR, torch.ones(5, 8, device="meta"))
    far = [each.to("meta") for each in PAIR]
    with pytest.raises(InputError, match=r"negatives\.excluded are on cpu but queries on meta"):
        eqco.contrastive_loss(*far, eqco.Negatives(far[1], excluded=torch.arange(4)[:, None]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: eqco.Negatives(torch.ones(3)), r"keys of shape \(3,\)"),
        (lambda: eqco.Negatives([[1.0]]), "keys of list; a pool of negatives is a torch tensor"),
        (lambda: eqco.Contrast(*PAIR, torch.ones(3, 8)), r"wrap a tensor.*Negatives\(keys\)"),
        (lambda: eqco.Objective(temperature=0.2)([]), "no contrasts were given"),
        (lambda: eqco.KeyQueue(4, 4).enqueue([[1.0]]), "keys is a list; pass a torch tensor"),
        (lambda: eqco.KeyQueue(4, 4).enqueue(torch.ones(2, 4).int()), "keys is of type torch.int"),
        (lambda: eqco.KeyQueue(4, 8).enqueue(holding(math.nan, 1)), "keys holds 1 NaN"),
        (lambda: eqco.in_batch_negatives(), "nothing given as views"),
        (lambda: eqco.in_batch_negatives([[1.0]]), "list given as views"),
        (lambda: eqco.in_batch_negatives(PAIR[0], index=3), r"index=3; it must be a tensor \(n,\)"),
        (
            lambda: eqco.sampled_negatives(PAIR[0], 2, seed=0, step=0),
            r"a Tensor was given as negatives; wrap a tensor of keys as Negatives\(keys\)",
        ),
        (
            lambda: eqco.sampled_negatives(eqco.Negatives(PAIR[0]), 2, seed=0, step=0),
            "Give num_queries",
        ),
        (
            lambda: eqco.combine_negatives(
                eqco.Negatives(torch.ones(3, 2)), eqco.Negatives(torch.ones(3, 4))
            ),
            r"keys of shapes \(3, 2\) and \(3, 4\)",
        ),
        (
            lambda: eqco.combine_negatives(
                eqco.in_batch_negatives(torch.ones(3, 4)), eqco.in_batch_negatives(torch.ones(5, 4))
            ),
            "negatives for 3 and for 5 queries",
        ),
        (lambda: eqco.Negatives(torch.ones(3, 2), indices=torch.ones(3, 1)), "torch.int64"),
        (lambda: eqco.Negatives(torch.ones(3, 2), excluded=torch.ones(3).long()), "excluded of"),
        (
            lambda: eqco.Negatives(torch.ones(3, 2), indices=[[0]]),
            "indices is a list; give a torch",
        ),
        (
            lambda: eqco.Negatives(
                torch.ones(3, 2), torch.ones(2, 1).long(), mask=torch.ones(2, 3)
            ),
            "indices and mask were both given",
        ),
        (
            lambda: eqco.Negatives(torch.ones(3, 2), mask=torch.ones(1, 3, device="meta").bool()),
            "mask has no values",
        ),
        (
            lambda: eqco.combine_negatives(
                eqco.Negatives(torch.ones(3, 2), mask=torch.ones(2, 3).bool().tril()),
                eqco.Negatives(torch.ones(3, 2)),
            ),
            "mask has from 1 to 2 keys in a row",
        ),
        (
            lambda: eqco.combine_negatives(
                eqco.Negatives(torch.ones(3, 2), indices=torch.tensor([[3]])),
                eqco.Negatives(torch.ones(3, 2)),
            ),
            "indices holds row numbers from 3 to 3, but the 3 keys",
        ),
        (
            lambda: eqco.combine_negatives(
                eqco.Negatives(torch.ones(3, 2)), eqco.Negatives(torch.ones(3, 2, device="meta"))
            ),
            "second source are on meta but those of the first on cpu",
        ),
        (lambda: eqco.KeyQueue(0, 4), "capacity=0"),
        (lambda: eqco.KeyQueue(4, 4).negatives(), "the queue of 4 keys is empty"),
        (lambda: eqco.KeyQueue(4, 4).enqueue(torch.ones(2, 3)), r"keys of shape \(2, 3\)"),
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
    with pytest.raises(InputError, match=r"count=256.*of 256 keys offers 255.*Choose 1 to 255"):
        eqco.sampled_negatives(pool, 256, seed=0, step=0, index=index, num_queries=256)


def test_sources_are_put_together_as_negatives_alone():
    pool = eqco.in_batch_negatives(torch.ones(4, 8), index=torch.arange(4))
    with pytest.raises(InputError, match=r"a KeyQueue was given.*queue.negatives\(\)"):
        eqco.combine_negatives(pool, eqco.KeyQueue(4, dim=8))
