"""Ids and weights give each query a K of its own, and the margin log(α/K) that goes with it."""

import math

import pytest
import torch
from drawing import seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import eqco
from eqco.runtime.errors import InputError

DOUBLE = torch.float64


def drawn(seed, *shape):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def written_out(query, positive, keys, weights, *, temperature, alpha):
    """Eq. 1 of one query with weights w: α/Σw · Σ w e^{s/τ} in place of α/K · Σ e^{s/τ}."""
    query, positive = (v / v.norm() for v in (query, positive))
    total, weight = 0.0, 0.0
    for key, w in zip(keys, weights, strict=True):
        total = total + w * torch.exp(query @ (key / key.norm()) / temperature)
        weight += w
    own = torch.exp(query @ positive / temperature)
    if alpha == math.inf:
        return torch.log(total / own)
    return torch.log(1 + (1.0 if alpha is None else alpha / weight) * total / own)


def gradients(loss, leaves):
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


@settings(max_examples=60)
@given(
    seed=seeds,
    source=st.sampled_from(["batch", "tensor", "own", "excluded", "indices", "mask"]),
    kinds=st.sampled_from([2, 5, 30]),
    weighing=st.sampled_from(["none", "keys", "pairs"]),
    with_ids=st.booleans(),
    alpha=st.sampled_from([None, 40.0, math.inf]),
    temperature=st.sampled_from([0.02, 0.3]),
)
def test_every_source_is_eq_1_written_out_with_the_keys_that_are_left(
    seed, source, kinds, weighing, with_ids, alpha, temperature
):
    n, m, k = 6, 11, 4
    generator = torch.Generator().manual_seed(seed)
    queries, positives, pool = (drawn(seed + i, *s) for i, s in enumerate([(n, 5), (n, 5), (m, 5)]))
    leaves = [each.requires_grad_() for each in (queries, positives, pool)]
    ids = torch.randint(kinds, (n,), generator=generator)
    key_ids = torch.randint(kinds, (m,), generator=generator)
    places = torch.rand(n, m, generator=generator).argsort(dim=1)[:, :k]
    rows = [list(range(m))] * n
    arguments = {}
    match source:
        case "batch":
            keys, key_ids, size = positives, ids, n
            rows, negatives = [[j for j in range(n) if j != i] for i in range(n)], None
        case "tensor":
            keys, negatives, size = pool, pool, m
        case "own":
            rows, negatives, keys, size = places.tolist(), pool[places], pool, k
            arguments["key_ids"] = key_ids[places]
        case "excluded":
            rows = [[j for j in range(m) if j not in row] for row in places.tolist()]
            keys, negatives, size = pool, eqco.Negatives(pool, excluded=places), m
        case "indices":
            places[:, -1] = places[:, 0]  # counts twice
            rows, keys, size = places.tolist(), pool, m
            negatives = eqco.Negatives(pool, indices=places)
        case "mask":
            mask = torch.zeros(n, m, dtype=torch.bool).scatter_(1, places, True)
            rows = [row.nonzero()[:, 0].tolist() for row in mask]
            keys, negatives, size = pool, eqco.Negatives(pool, mask=mask), m
    log_weights = None
    if weighing == "pairs" or (weighing == "keys" and source == "own"):
        log_weights = drawn(seed + 3, n, size)
    elif weighing == "keys":
        log_weights = drawn(seed + 3, size)
    if with_ids and source != "batch":
        arguments.setdefault("key_ids", key_ids)
    if not with_ids:
        arguments = {}
    ours = eqco.contrastive_loss(
        queries, positives, negatives, temperature=temperature, alpha=alpha, reduction="none",
        ids=ids if with_ids else None, log_weights=log_weights, on_empty="skip", **arguments,
    )  # fmt: skip
    expected = []
    for i in range(n):
        weights = []
        for place, j in enumerate(rows[i]):
            w = 1.0
            if log_weights is not None:
                column = place if source == "own" else j
                w = (log_weights[i] if log_weights.dim() == 2 else log_weights)[column].exp().item()
            weights.append(0.0 if with_ids and key_ids[j] == ids[i] else w)
        left = sum(weights) > 0
        rest = written_out(
            queries[i], positives[i], [keys[j] for j in rows[i]], weights,
            temperature=temperature, alpha=alpha,
        ) if left else 0 * queries.sum()  # fmt: skip
        expected.append(rest)
    expected = torch.stack(expected)
    assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    upstream = torch.rand(n, dtype=DOUBLE, generator=generator)
    for mine, theirs in zip(
        gradients((ours * upstream).sum(), leaves),
        gradients((expected * upstream).sum(), leaves),
        strict=True,
    ):
        assert_close(mine, theirs, rtol=1e-7, atol=1e-8)


@given(seed=seeds, weight=st.floats(-20, 20))
def test_equal_weights_change_nothing(seed, weight):
    queries, positives, keys = drawn(seed, 5, 4), drawn(seed + 1, 5, 4), drawn(seed + 2, 9, 4)
    plain = eqco.contrastive_loss(queries, positives, keys, alpha=64)
    for shape in [(9,), (5, 9)]:
        weights = torch.full(shape, weight, dtype=DOUBLE)
        weighted = eqco.contrastive_loss(queries, positives, keys, alpha=64, log_weights=weights)
        assert_close(weighted, plain, rtol=1e-12, atol=1e-12)


@given(seed=seeds, alpha=st.sampled_from([None, 64.0]))
def test_a_weight_of_three_is_three_copies(seed, alpha):
    queries, positives, keys = drawn(seed, 5, 4), drawn(seed + 1, 5, 4), drawn(seed + 2, 9, 4)
    copies = torch.cat([keys, keys[:2], keys[:2]])
    weights = torch.tensor([3.0, 3.0] + 7 * [1.0], dtype=DOUBLE).log()
    weighted = eqco.contrastive_loss(queries, positives, keys, alpha=alpha, log_weights=weights)
    copied = eqco.contrastive_loss(queries, positives, copies, alpha=alpha)
    assert_close(weighted, copied, rtol=1e-12, atol=1e-12)


def test_ids_over_several_chunks_equal_leaving_the_keys_out():
    """4000 keys for 300 queries pass by in chunks; with learning τ, and gradient to keys."""
    queries, positives = drawn(0, 300, 8), drawn(1, 300, 8)
    keys = drawn(2, 4000, 8).requires_grad_()
    ids = torch.arange(300) % 2
    key_ids = torch.arange(4000) % 4
    found = []
    for rows in (None, [0, 1]):
        temperature = torch.tensor(0.1, dtype=DOUBLE, requires_grad=True)
        if rows is None:
            loss = eqco.contrastive_loss(
                queries, positives, keys, temperature=temperature, alpha=512, ids=ids,
                key_ids=key_ids, reduction="sum",
            )  # fmt: skip
        else:
            loss = sum(
                eqco.contrastive_loss(
                    queries[ids == i], positives[ids == i], keys[key_ids != i],
                    temperature=temperature, alpha=512, reduction="sum",
                )
                for i in rows
            )  # fmt: skip
        found.append([loss, *torch.autograd.grad(loss, [keys, temperature])])
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_distinct_ids_change_nothing():
    views = drawn(0, 12, 4), drawn(1, 12, 4)
    ids = torch.randperm(12)
    for loss_fn in (eqco.EqCoLoss(alpha=64), eqco.NTXentLoss(alpha=64)):
        assert_close(loss_fn(*views, ids=ids), loss_fn(*views), rtol=1e-12, atol=1e-12)


def test_two_views_of_a_duplicate_are_no_negatives():
    """With instances 0 and 1 the same, queries of 0 see the keys of 2 and 3 alone."""
    first, second = drawn(0, 4, 3), drawn(1, 4, 3)
    loss = eqco.NTXentLoss(alpha=64, reduction="none")(
        first, second, ids=torch.tensor([5, 5, 1, 2])
    )
    keys = torch.cat([first[2:], second[2:]])
    alone = eqco.contrastive_loss(first[:1], second[:1], keys, alpha=64)
    assert_close(loss[0], alone, rtol=1e-12, atol=1e-12)


def test_a_query_without_negatives_is_named_or_skipped_and_counted():
    queries, positives = drawn(0, 4, 3).requires_grad_(), drawn(1, 4, 3)
    negatives, key_ids = drawn(2, 2, 3), torch.tensor([7, 7])
    ids = torch.tensor([7, 1, 7, 2])
    given = {"alpha": 64, "ids": ids, "key_ids": key_ids}
    message = r"2 queries of 4 have no negatives: number 0, 2 \(id 7, 7\).*on_empty='skip'"
    with pytest.raises(InputError, match=message):
        eqco.contrastive_loss(queries, positives, negatives, **given)
    loss_fn = eqco.EqCoLoss(alpha=64, on_empty="skip")
    loss = loss_fn(queries, positives, negatives, ids=ids, key_ids=key_ids)
    rest = eqco.contrastive_loss(queries[[1, 3]], positives[[1, 3]], negatives, alpha=64)
    assert_close(loss, rest, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss, queries)
    assert gradient[[0, 2]].eq(0).all()
    assert loss_fn.skipped == 2
    loss_fn(queries, positives, negatives, ids=ids, key_ids=key_ids)
    assert loss_fn.skipped == 4


@pytest.mark.parametrize("alpha", [None, 64, math.inf])
def test_a_batch_of_one_id_is_refused_and_skipped_as_a_whole(alpha):
    views, ids = (drawn(0, 4, 3).requires_grad_(), drawn(1, 4, 3)), torch.ones(4).long()
    with pytest.raises(InputError, match="4 queries of 4 have no negatives"):
        eqco.contrastive_loss(*views, ids=ids, alpha=alpha)
    loss = eqco.contrastive_loss(*views, ids=ids, alpha=alpha, on_empty="skip")
    (gradient,) = torch.autograd.grad(loss, views[0])
    assert loss == 0
    assert gradient.eq(0).all()


PAIR = torch.ones(4, 8), torch.ones(4, 8)
KEYS = torch.ones(5, 8)


@pytest.mark.parametrize(
    ("negatives", "settings", "message"),
    [
        (None, {"ids": torch.arange(3)}, r"ids of shape \(3,\); it must be a torch tensor \(4,\)"),
        (None, {"ids": [1, 2, 3, 4]}, "ids is a list"),
        (None, {"ids": torch.ones(4)}, "ids is of type torch.float32.*whole numbers"),
        (None, {"key_ids": torch.arange(4)}, "key_ids were given without negatives"),
        (KEYS, {"ids": torch.arange(4)}, r"ids were given without key_ids.*\(5,\)"),
        (KEYS, {"key_ids": torch.arange(5)}, "key_ids were given without ids"),
        (KEYS, {"ids": torch.arange(4), "key_ids": torch.arange(4)}, r"key_ids of shape \(4,\)"),
        (KEYS, {"log_weights": torch.ones(4)}, r"log_weights of shape \(4,\).*\(5,\) or \(4, 5\)"),
        (KEYS, {"log_weights": torch.arange(5)}, "log_weights is of type torch.int64"),
        (KEYS, {"log_weights": torch.full((5,), -math.inf)}, "log_weights is −∞ everywhere"),
        (KEYS, {"log_weights": torch.full((5,), math.nan)}, "5 values among 5 that are NaN"),
        (KEYS, {"log_weights": torch.ones(5, requires_grad=True)}, r"log_weights.detach\(\)"),
        (None, {"on_empty": "drop"}, "on_empty='drop'; there are 'refuse', 'skip'"),
        (eqco.Negatives(KEYS), {"gather": True}, r"in_batch_negatives\(keys, gather=True\)"),
    ],
)
def test_bad_ids_and_weights_are_refused(negatives, settings, message):
    with pytest.raises(InputError, match=message):
        eqco.contrastive_loss(*PAIR, negatives, **settings)


def test_gather_changes_nothing_in_one_process():
    views = drawn(0, 6, 4), drawn(1, 6, 4)
    ids = torch.tensor([0, 0, 1, 2, 3, 4])
    for kind in (eqco.EqCoLoss, eqco.NTXentLoss):
        alone, gathering = kind(alpha=64), kind(alpha=64, gather=True)
        assert_close(gathering(*views), alone(*views))
        assert_close(gathering(*views, ids=ids), alone(*views, ids=ids))


def test_half_precision_takes_ids():
    queries, positives = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(8) // 2
    exact = eqco.contrastive_loss(queries.double(), positives.double(), ids=ids, alpha=64)
    half = eqco.contrastive_loss(queries.bfloat16(), positives.bfloat16(), ids=ids, alpha=64)
    assert_close(half.double(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
def test_barred_keys_of_each_query_leave_the_gradient_of_the_temperature(temperature, dtype):
    """Own keys (N, K, D), one of them barred by its id or by −∞, equal those without it."""
    given = [drawn(i, *s).to(dtype) for i, s in enumerate([(4, 5), (4, 5), (4, 3, 5)])]
    ids, key_ids = torch.arange(4), torch.arange(4)[:, None].expand(4, 3) + torch.tensor([1, 0, 2])
    log_weights = torch.tensor([0, -torch.inf, 0], dtype=dtype).expand(4, 3)
    found = []
    for keys, barring in (
        (given[2][:, [0, 2]], {}),
        (given[2], {"ids": ids, "key_ids": key_ids}),
        (given[2], {"log_weights": log_weights}),
    ):
        tau = torch.tensor(temperature, dtype=dtype, requires_grad=True)
        loss = eqco.contrastive_loss(*given[:2], keys, temperature=tau, alpha=64, **barring)
        found.append((loss.detach(), *torch.autograd.grad(loss, [tau])))
    for mine in found[1:]:
        assert_close(mine, found[0], rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=0)


def test_keys_of_float64_give_a_margin_of_float64():
    queries, positives, pool = drawn(0, 4, 5).float(), drawn(1, 4, 5).float(), drawn(2, 10, 5)
    given = {"ids": torch.arange(4), "key_ids": torch.arange(10) + 4, "alpha": 1000}
    mine = eqco.contrastive_loss(queries, positives, pool, **given)
    theirs = eqco.contrastive_loss(queries.double(), positives.double(), pool, **given)
    assert_close(mine, theirs, rtol=1e-14, atol=0)
