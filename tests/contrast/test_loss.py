"""contrastive_loss is Eq. 1 with the margin of Eq. 5, by whichever path it is computed."""

import math

import pytest
import torch
import torch.nn.functional as F
from drawing import seeds, unit_vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

import eqco
from eqco.contrast.streaming import KEPT_BYTES, streamed_loss
from eqco.runtime.errors import InputError

TAU = 0.2


def vectors(seed, *shape):
    """Vectors of any length, so that the scaling to length one is part of what is tested."""
    generator = torch.Generator().manual_seed(seed + 7)
    lengths = 0.5 + torch.rand(*shape[:-1], 1, dtype=torch.float64, generator=generator)
    return unit_vectors(seed, *shape) * lengths


def reference(queries, positives, negatives, *, temperature=TAU, alpha=None, margin=0.0):
    """Eq. 1 on cosines through `info_nce`, for keys of each query's own, (N, K, D)."""
    q, k0, k = (F.normalize(t, dim=-1) for t in (queries, positives, negatives))
    if alpha is not None:
        margin = eqco.eqco_margin(alpha, k.shape[1], temperature)
    similarities = (q * k0).sum(dim=1), torch.einsum("nd,nkd->nk", q, k)
    return eqco.info_nce(*similarities, temperature=temperature, margin=margin)


@given(
    seed=seeds,
    n=st.integers(1, 9),
    k=st.integers(1, 40),
    alpha=st.one_of(st.none(), st.floats(0.5, 1e9)),
    temperature=st.floats(0.02, 2.0),
)
def test_shared_negatives_give_eq_1(seed, n, k, alpha, temperature):
    queries, positives = vectors(seed, n, 6), vectors(seed + 1, n, 6)
    keys = vectors(seed + 2, k, 6)
    ours = eqco.contrastive_loss(
        queries, positives, keys, temperature=temperature, alpha=alpha, reduction="none"
    )
    expected = reference(
        queries, positives, keys.expand(n, k, 6), temperature=temperature, alpha=alpha
    )
    assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@given(seed=seeds, n=st.integers(2, 12), alpha=st.one_of(st.none(), st.floats(1, 1e6)))
def test_no_negatives_means_the_other_positives_of_the_batch(seed, n, alpha):
    queries, positives = vectors(seed, n, 6), vectors(seed + 1, n, 6)
    others = torch.stack([torch.cat([positives[:i], positives[i + 1 :]]) for i in range(n)])
    ours = eqco.contrastive_loss(queries, positives, alpha=alpha, reduction="none")
    assert_close(ours, reference(queries, positives, others, alpha=alpha), rtol=1e-10, atol=1e-10)


@given(seed=seeds, n=st.integers(1, 6), k=st.integers(1, 9), alpha=st.floats(1, 1e6))
def test_negatives_of_each_query_give_eq_1(seed, n, k, alpha):
    queries, positives = vectors(seed, n, 6), vectors(seed + 1, n, 6)
    others = vectors(seed + 2, n, k, 6)
    ours = eqco.contrastive_loss(queries, positives, others, alpha=alpha, reduction="none")
    assert_close(ours, reference(queries, positives, others, alpha=alpha), rtol=1e-10, atol=1e-10)


@given(seed=seeds, k=st.integers(1, 9), m=st.sampled_from([12, 4000]))
def test_chosen_indices_give_eq_1_and_repeated_ones_count_twice(seed, k, m):
    """Small pools take the product with all keys, large ones gather: the same value."""
    queries, positives, pool = vectors(seed, 5, 6), vectors(seed + 1, 5, 6), vectors(seed + 2, m, 6)
    indices = torch.randint(m, (5, k), generator=torch.Generator().manual_seed(seed))
    ours = eqco.contrastive_loss(
        queries, positives, eqco.Negatives(pool, indices=indices), alpha=64, reduction="none"
    )
    expected = reference(queries, positives, pool[indices], alpha=64)
    assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@given(
    seed=seeds,
    chunk=st.integers(1, 30),
    chosen_by=st.sampled_from(["all", "indices", "excluded"]),
    decoupled=st.booleans(),
    unit=st.booleans(),
)
def test_streaming_and_direct_agree_in_value_and_every_gradient(
    seed, chunk, chosen_by, decoupled, unit
):
    n, m = 5, 23
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(n, m, generator=generator).argsort(dim=1)
    places = {
        "all": {},
        "indices": {"indices": order[:, :7]},
        "excluded": {"excluded": order[:, :3]},
    }
    upstream = torch.rand(n, dtype=torch.float64, generator=generator)
    found = []
    for size in (chunk, m):
        given_tensors = [
            vectors(seed + i, *shape).requires_grad_()
            for i, shape in enumerate([(n, 6), (n, 6), (m, 6)])
        ]
        given_tensors.append(torch.tensor(0.3, dtype=torch.float64, requires_grad=True))
        loss = streamed_loss(
            *given_tensors, offset=1.3, margin=0.1, decoupled=decoupled, unit=unit, chunk=size,
            **places[chosen_by],
        )  # fmt: skip
        found.append([loss, *torch.autograd.grad(loss, given_tensors, upstream)])
    for streamed, direct in zip(*found, strict=True):
        assert_close(streamed, direct, rtol=1e-12, atol=1e-12)


@given(
    seed=seeds,
    chunk=st.sampled_from([3, 23]),
    temperature=st.sampled_from([0.02, 0.03, 0.5]),
    decoupled=st.booleans(),
    chosen_by=st.sampled_from(["all", "indices", "excluded"]),
    kept=st.booleans(),
)
def test_a_known_temperature_gives_the_gradients_of_a_learned_one(
    seed, chunk, temperature, decoupled, chosen_by, kept
):
    """Cosines over a known temperature from 1/40 on are not shifted before exp; others are. Where
    they are not, the exponentials of all chunks are kept for the keys, or made anew.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(5, 23, generator=generator).argsort(dim=1)
    places = {
        "all": {},
        "indices": {"indices": order[:, :7]},
        "excluded": {"excluded": order[:, :3]},
    }
    found = []
    for each in (temperature, torch.tensor(temperature, dtype=torch.float64)):
        leaves = [vectors(seed + i, n, 6).requires_grad_() for i, n in enumerate((5, 5, 23))]
        loss = streamed_loss(
            *leaves, each, offset=1.3, margin=0.1, decoupled=decoupled, unit=True, chunk=chunk,
            kept_bytes=KEPT_BYTES if kept else 0, **places[chosen_by],
        )  # fmt: skip
        found.append([loss, *torch.autograd.grad(loss.sum(), leaves)])
    for known, learned in zip(*found, strict=True):
        assert_close(known, learned, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("key_type", [torch.float64, torch.float32, torch.bfloat16, torch.half])
@pytest.mark.parametrize(
    "chosen_by", ["all", "indices", "excluded", "mask", "ids", "ids, excluded", "ids, mask"]
)
@pytest.mark.parametrize("kept", [True, False])
def test_chunks_give_the_plain_gradients_for_all_choices_and_types(key_type, chosen_by, kept):
    """Eight chunks, whose exponentials are kept for the keys or made anew, beside autograd of Eq. 1
    on all similarities, in which each key counts as often as it is a negative.
    """
    n, m = 5, 23
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(n, m, generator=generator).argsort(dim=1)
    drawn = torch.randint(m, (n, 9), generator=generator)
    ids, key_ids = torch.arange(n), torch.arange(m) % 7
    ways = {
        "indices": ({"indices": drawn}, F.one_hot(drawn, m).sum(dim=1)),
        "excluded": ({"excluded": order[:, :3]}, order.argsort(dim=1) >= 3),
        "mask": ({"mask": order < 11}, order < 11),
        "ids": ({"ids": ids, "key_ids": key_ids}, ids[:, None] != key_ids),
    }
    places, counts = {}, torch.ones(n, m, dtype=torch.float64)
    for way in chosen_by.split(", ") if chosen_by != "all" else ():
        places |= ways[way][0]
        counts = counts * ways[way][1]
    exact = key_type == torch.float64
    types = [key_type if exact else torch.float32] * 2 + [key_type]
    leaves = [
        vectors(i, rows, 6).to(dtype).requires_grad_()
        for i, (rows, dtype) in enumerate(zip((n, n, m), types, strict=True))
    ]
    streamed = streamed_loss(
        *leaves, TAU, offset=1.3, margin=0.1, decoupled=False, unit=True, chunk=3,
        kept_bytes=KEPT_BYTES if kept else 0, **places,
    )  # fmt: skip
    q, k0, k = (F.normalize(each.double(), dim=1) for each in leaves)
    gap = (counts.log() + q @ k.T / TAU).logsumexp(dim=1)
    plain = F.softplus(gap - ((q * k0).sum(dim=1) - 0.1) / TAU + 1.3)
    close = {"rtol": 1e-10, "atol": 1e-12} if exact else {"rtol": 1e-4, "atol": 1e-5}
    assert_close(streamed.double(), plain, **close)
    ours, theirs = (torch.autograd.grad(each.sum(), leaves) for each in (streamed, plain))
    for gradient, expected in zip(ours, theirs, strict=True):
        rounding = torch.finfo(gradient.dtype).eps
        assert gradient.dtype == expected.dtype
        assert_close(gradient, expected, rtol=max(close["rtol"], 2 * rounding), atol=close["atol"])


@pytest.mark.parametrize("alpha", [None, 3.0, 65536.0, math.inf])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("form", ["in-batch", "shared", "chunks", "each", "indices", "excluded"])
def test_gradcheck_for_queries_positives_negatives_and_temperature(
    form, similarity, alpha, monkeypatch
):
    if form == "chunks":
        monkeypatch.setattr("eqco.contrast.streaming.CHUNK_ELEMENTS", 1)
        monkeypatch.setattr("eqco.contrast.streaming.WHOLE_ELEMENTS", 1)
    pool = (4, 5, 3) if form == "each" else ((70, 3) if form == "chunks" else (6, 3))
    inputs = [vectors(i, *shape).requires_grad_() for i, shape in enumerate([(4, 3), (4, 3), pool])]
    inputs.append(torch.tensor(0.5, dtype=torch.float64, requires_grad=True))
    places = torch.tensor([[0, 1], [3, 2], [5, 0], [1, 4]])

    def loss(queries, positives, keys, temperature):
        negatives = {
            "in-batch": None,
            "indices": lambda: eqco.Negatives(keys, indices=places),
            "excluded": lambda: eqco.Negatives(keys, excluded=places),
        }.get(form, lambda: keys)
        total = eqco.contrastive_loss(
            queries,
            positives,
            negatives() if negatives else None,
            temperature=temperature,
            alpha=alpha,
            similarity=similarity,
            reduction="none",
        )
        return total if negatives else total + 0 * keys.sum()

    assert gradcheck(loss, inputs)


def test_gradcheck_of_a_handmade_margin():
    inputs = [
        vectors(i, *shape).requires_grad_() for i, shape in enumerate([(4, 3), (4, 3), (6, 3)])
    ]
    inputs.append(torch.tensor(0.5, dtype=torch.float64, requires_grad=True))

    def loss(queries, positives, keys, temperature):
        return eqco.contrastive_loss(
            queries, positives, keys, temperature=temperature, margin=0.3, reduction="none"
        )

    assert gradcheck(loss, inputs)


@given(seed=seeds, k=st.integers(1, 64))
def test_alpha_equal_to_k_is_plain_info_nce_to_the_bit(seed, k):
    queries, positives, keys = (vectors(seed + i, s, 6).float() for i, s in enumerate((5, 5, k)))
    plain = eqco.contrastive_loss(queries, positives, keys, reduction="none")
    mimicked = eqco.contrastive_loss(queries, positives, keys, alpha=k, reduction="none")
    assert torch.equal(plain, mimicked)


@given(n=st.integers(2, 40), alpha=st.floats(1, 1e9))
def test_equal_embeddings_give_log_one_plus_alpha_for_every_k(n, alpha):
    same = torch.ones(n, 4, dtype=torch.float64)
    loss = eqco.contrastive_loss(same, same, alpha=alpha)
    assert loss.item() == pytest.approx(math.log1p(alpha), rel=1e-9)


@given(seed=seeds, k=st.integers(1, 20), copies=st.integers(2, 5), alpha=st.floats(1, 1e6))
def test_repeating_each_negative_changes_nothing(seed, k, copies, alpha):
    queries, positives, keys = (vectors(seed + i, s, 6) for i, s in enumerate((5, 5, k)))
    once = eqco.contrastive_loss(queries, positives, keys, alpha=alpha)
    many = eqco.contrastive_loss(queries, positives, keys.repeat(copies, 1), alpha=alpha)
    assert_close(once, many, rtol=1e-10, atol=1e-10)


@given(seed=seeds, k=st.integers(1, 20))
def test_infinite_alpha_is_the_limit_of_the_loss_less_its_offset(seed, k):
    queries, positives, keys = (vectors(seed + i, s, 6) for i, s in enumerate((5, 5, k)))
    decoupled = eqco.contrastive_loss(queries, positives, keys, alpha=math.inf)
    near = eqco.contrastive_loss(queries, positives, keys, alpha=1e12) - math.log(1e12 / k)
    assert_close(near, decoupled, rtol=0, atol=1e-5)
    far = eqco.contrastive_loss(queries, positives, keys, alpha=10.0) - math.log(10.0 / k)
    assert (far - decoupled).abs() > (near - decoupled).abs()


@given(seed=seeds, margin=st.floats(-0.5, 0.5))
def test_a_handmade_margin_imitates_its_effective_alpha(seed, margin):
    queries, positives, keys = (vectors(seed + i, s, 6) for i, s in enumerate((5, 5, 9)))
    by_margin = eqco.contrastive_loss(queries, positives, keys, margin=margin)
    alpha = eqco.effective_alpha(margin, 9, TAU)
    by_alpha = eqco.contrastive_loss(queries, positives, keys, alpha=alpha)
    assert_close(by_margin, by_alpha, rtol=1e-9, atol=1e-9)


def test_the_gradient_to_a_unit_query_is_the_closed_form_made_tangent():
    queries, positives, keys = (unit_vectors(i, s, 6) for i, s in enumerate((5, 5, 9)))
    queries.requires_grad_()
    eqco.contrastive_loss(queries, positives, keys, alpha=256, reduction="sum").backward()
    closed = eqco.info_nce_gradient(
        (queries * positives).sum(dim=1).detach(),
        (queries @ keys.T).detach(),
        positives,
        keys,
        temperature=TAU,
        margin=eqco.eqco_margin(256, 9, TAU),
    )
    unit = queries.detach()
    tangent = closed - unit * (closed * unit).sum(dim=1, keepdim=True)
    assert_close(queries.grad, tangent, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("alpha", [None, 1e9, math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_input_is_computed_in_float32_and_finite(dtype, alpha, temperature):
    near, far = torch.eye(4, 8), -torch.eye(4, 8)
    for positives, keys in ((near, far), (far, near)):
        queries = near.to(dtype).requires_grad_()
        loss = eqco.contrastive_loss(
            queries, positives.to(dtype), keys.to(dtype), temperature=temperature, alpha=alpha
        )
        loss.backward()
        assert loss.dtype == torch.float32
        assert torch.isfinite(loss)
        assert queries.grad.dtype == dtype
        assert torch.isfinite(queries.grad).all()


def test_autocast_changes_nothing():
    queries, positives, keys = (vectors(i, s, 64).float() for i, s in enumerate((8, 8, 40)))
    each = vectors(3, 8, 5, 64).float()
    for negatives in (None, keys, each):
        leaf = queries.clone().requires_grad_()
        eqco.contrastive_loss(leaf, positives, negatives, alpha=65536).backward()
        inside = queries.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = eqco.contrastive_loss(inside, positives, negatives, alpha=65536)
        loss.backward()
        assert torch.equal(leaf.grad, inside.grad)


def test_mixed_types_are_computed_in_the_better_one():
    queries, keys = vectors(0, 4, 6), vectors(1, 9, 6)
    positives = vectors(2, 4, 6)
    mixed = eqco.contrastive_loss(queries, positives.float().double(), keys.float(), alpha=8)
    exact = eqco.contrastive_loss(
        queries, positives.float().double(), keys.float().double(), alpha=8
    )
    assert mixed.dtype == torch.float64
    assert_close(mixed, exact, rtol=1e-12, atol=1e-12)


@settings(max_examples=10)
@given(seed=seeds, n=st.integers(2, 9), alpha=st.one_of(st.none(), st.floats(1, 1e6)))
def test_nt_xent_is_both_views_as_queries_and_keys(seed, n, alpha):
    views = vectors(seed, n, 6), vectors(seed + 1, n, 6)
    ours = eqco.NTXentLoss(temperature=0.1, alpha=alpha)(*views)
    both = torch.cat(views)
    losses = []
    for i in range(2 * n):
        others = torch.stack([both[j] for j in range(2 * n) if j % n != i % n])
        row = both[i : i + 1], both[(i + n) % (2 * n)][None], others[None]
        losses.append(reference(*row, temperature=0.1, alpha=alpha))
    assert_close(ours, torch.cat(losses).mean(), rtol=1e-10, atol=1e-10)


def test_a_module_holds_the_settings_and_a_learning_temperature_learns():
    temperature = torch.nn.Parameter(torch.tensor([0.2]))
    loss_fn = eqco.EqCoLoss(temperature=temperature, alpha=256)
    assert [name for name, _ in loss_fn.named_parameters()] == ["temperature"]
    loss_fn(*(vectors(i, 6, 4).float() for i in range(2))).backward()
    assert temperature.grad.shape == (1,)
    assert temperature.grad.abs() > 0
    assert "alpha=256" in repr(loss_fn)


def test_a_second_derivative_is_refused_and_not_quietly_wrong():
    queries = vectors(0, 6, 4).requires_grad_()
    loss = eqco.contrastive_loss(queries, vectors(1, 6, 4))
    with pytest.raises(RuntimeError, match=r"differentiable once.*eqco.info_nce"):
        torch.autograd.grad(loss, queries, create_graph=True)


def test_reductions_agree():
    pair = vectors(0, 6, 4), vectors(1, 6, 4)
    each = eqco.contrastive_loss(*pair, reduction="none")
    assert each.shape == (6,)
    assert_close(eqco.contrastive_loss(*pair, reduction="mean"), each.mean())
    assert_close(eqco.contrastive_loss(*pair, reduction="sum"), each.sum())


def test_the_objective_is_the_weighted_sum_of_its_contrasts():
    pools = eqco.Negatives(vectors(2, 9, 4)), eqco.Negatives(vectors(3, 5, 4))
    contrasts = [
        eqco.Contrast(vectors(0, 6, 4), vectors(1, 6, 4), pool, weight)
        for pool, weight in zip(pools, (0.25, 0.75), strict=True)
    ]
    total = eqco.Objective(temperature=0.1, alpha=64)(contrasts)
    parts = [
        eqco.contrastive_loss(c.queries, c.positives, c.negatives, temperature=0.1, alpha=64)
        for c in contrasts
    ]
    assert_close(total, 0.25 * parts[0] + 0.75 * parts[1])


@pytest.mark.end_to_end
@pytest.mark.parametrize("num_negatives", [None, "both views", 20, 700])
def test_torch_compile_gives_the_same_in_one_graph(num_negatives, monkeypatch):
    monkeypatch.setattr("eqco.contrast.streaming.CHUNK_ELEMENTS", 1024)
    queries, positives = vectors(0, 8, 16).float(), vectors(1, 8, 16).float()
    keys = vectors(2, num_negatives, 16).float() if isinstance(num_negatives, int) else None
    symmetric = eqco.NTXentLoss(temperature=0.1, alpha=4096)

    def loss(q, p, k):
        if num_negatives == "both views":
            return symmetric(q, p)
        return eqco.contrastive_loss(q, p, k, alpha=4096, temperature=0.1)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = []
    for function in (loss, compiled):
        leaf = queries.clone().requires_grad_()
        value = function(leaf, positives, keys)
        value.backward()
        found.append((value.detach(), leaf.grad))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1])


@pytest.mark.end_to_end
def test_a_temperature_that_moves_stays_in_one_graph():
    queries, positives = vectors(0, 8, 16).float(), vectors(1, 8, 16).float()

    def loss(temperature):
        return eqco.contrastive_loss(queries, positives, alpha=64, temperature=temperature)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for temperature in (0.1, 0.2, 0.3, 0.25):
        assert_close(compiled(temperature), loss(temperature))


def test_a_key_repeated_more_often_than_two_bytes_can_count():
    queries, positives = vectors(0, 2, 4), vectors(1, 2, 4)
    key = vectors(2, 1, 4)
    often = eqco.Negatives(key, indices=torch.zeros(2, 40_000, dtype=torch.int64))
    once = eqco.contrastive_loss(queries, positives, key, alpha=64)
    assert_close(eqco.contrastive_loss(queries, positives, often, alpha=64), once)


def test_shapes_can_be_worked_out_without_values():
    queries = torch.ones(4, 8, device="meta")
    assert eqco.contrastive_loss(queries, queries, reduction="none").shape == (4,)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("setting", [{}, {"alpha": 64}, {"alpha": math.inf}, {"margin": 0.3}])
@pytest.mark.parametrize("temperature", [0.2, 0.004])
def test_a_small_batch_as_its_own_pool_is_streamed_to_the_same(
    similarity, setting, temperature, monkeypatch
):
    """Two ways to compute one loss: all similarities at once, and the pass over chunks of keys."""
    found = []
    for elements in (2**14, 0):
        monkeypatch.setattr("eqco.contrast.loss.SMALL_ELEMENTS", elements)
        given = {"temperature": temperature, "similarity": similarity, **setting}
        first, second = (vectors(seed, 6, 16).requires_grad_() for seed in (0, 1))
        one_way = eqco.contrastive_loss(first, second, reduction="none", **given)
        symmetric = eqco.NTXentLoss(reduction="none", **given)(first, second)
        (one_way @ vectors(2, 6) + symmetric @ vectors(3, 12)).backward()
        found.append((one_way.detach(), symmetric.detach(), first.grad, second.grad))
    for small, streamed in zip(*found, strict=True):
        assert_close(small, streamed, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("elements", [2**14, 0])
def test_vectors_no_longer_than_1e_12_count_as_zero(elements, monkeypatch):
    """Cosine 0 with all others, and no gradient, whichever way the loss is computed."""
    monkeypatch.setattr("eqco.contrast.loss.SMALL_ELEMENTS", elements)
    directions = vectors(0, 6, 8)
    directions = directions / directions.norm(dim=1, keepdim=True)
    others = vectors(1, 6, 8)
    queue, of_each = vectors(2, 5, 8), vectors(3, 6, 4, 8)
    for length, counts in ((1e-13, False), (9e-13, False), (0.0, False), (2e-12, True)):
        short = directions.clone()
        short[0] *= length
        for negatives in (None, queue, of_each, "both views"):
            leaf, pool = short.clone().requires_grad_(), others.clone().requires_grad_()
            values = []
            zeroed = short.clone()
            zeroed[0] = 0.0
            for keys in (leaf, zeroed):
                if negatives == "both views":
                    values.append(eqco.NTXentLoss()(keys, pool))
                else:
                    values.append(eqco.contrastive_loss(pool, keys, negatives))
            sum(values).backward()
            assert torch.equal(values[0].detach(), values[1].detach()) != counts
            assert bool(leaf.grad[0].any()) == counts
            assert torch.isfinite(leaf.grad).all()
            assert leaf.grad[1:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_under_autocast_are_what_they_are_without(dtype):
    first, second = vectors(0, 8, 16).to(dtype), vectors(1, 8, 16).to(dtype)
    for call in (
        lambda: eqco.NTXentLoss(alpha=64)(first, second),
        lambda: eqco.contrastive_loss(first, second, eqco.in_batch_negatives(first, second)),
        lambda: eqco.contrastive_loss(
            first, second, eqco.combine_negatives(eqco.Negatives(first), eqco.Negatives(second))
        ),
    ):
        plain = call()
        for autocast in (torch.float16, torch.bfloat16):
            with torch.autocast("cpu", dtype=autocast):
                assert torch.equal(call(), plain)


def sharpening_batch():
    """Positives equal to their queries: the lower τ, the lower the loss."""
    same = torch.eye(8)
    return same, same


@pytest.mark.parametrize("loss_type", [eqco.EqCoLoss, eqco.NTXentLoss])
@pytest.mark.parametrize(
    "optimiser",
    [
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.0),
    ],
)
def test_a_learning_temperature_stays_within_its_limits_and_comes_back(loss_type, optimiser):
    temperature = eqco.LearnableTemperature(initial=0.5, minimum=0.2, maximum=0.8)
    loss_fn = loss_type(temperature=temperature)
    (parameter,) = loss_fn.parameters()
    steps, seen = optimiser([parameter]), []
    first, second = sharpening_batch()
    for positives in [second] * 300 + [second.roll(1, 0)] * 300:
        steps.zero_grad()
        loss_fn(first, positives).backward()
        steps.step()
        seen.append(float(temperature().detach()))
    assert all(0.2 * (1 - 1e-6) <= value <= 0.8 * (1 + 1e-6) for value in seen)
    # positives that are not alike ask for the highest τ, and the way back from the limit is open
    assert (seen[299], seen[-1]) == pytest.approx((0.2, 0.8))


def test_a_parameter_without_limits_is_refused_once_it_is_not_positive():
    first, second = sharpening_batch()
    temperature = torch.nn.Parameter(torch.tensor(0.5))
    loss_fn = eqco.EqCoLoss(temperature=temperature)
    steps = torch.optim.SGD([temperature], lr=1.0)

    def learn():
        for _ in range(300):
            steps.zero_grad()
            loss_fn(first, second).backward()
            steps.step()

    with pytest.raises(InputError, match=r"temperature=-.*greater than 0.*LearnableTemperature"):
        learn()
    # also where the embeddings are not on the CPU, and are not looked at
    temperature.data.fill_(-0.1)
    for each in (loss_fn, eqco.NTXentLoss(temperature=temperature)):
        with pytest.raises(InputError, match=r"temperature=-0\.1"):
            each(first.to("meta"), second.to("meta"))


def test_the_gradient_at_a_limit_is_stopped_outwards_alone():
    for initial, direction in ((0.01, -1.0), (1.0, 1.0)):
        temperature = eqco.LearnableTemperature(initial=initial)
        tau = temperature()
        # descent on +τ lowers τ, so that at the lower limit it is stopped, and at the upper not
        (-direction * tau).backward()
        assert temperature.log_scale.grad == 0.0
        temperature.log_scale.grad = None
        (direction * temperature()).backward()
        # dτ/ds = −τ
        assert_close(temperature.log_scale.grad, torch.tensor(-direction * initial))


def test_the_limits_of_a_temperature_are_in_order():
    for limits in ({"initial": 0.001}, {"initial": 2.0}, {"minimum": 0.0}, {"maximum": math.inf}):
        with pytest.raises(InputError, match="minimum ≤ initial ≤ maximum"):
            eqco.LearnableTemperature(**limits)
    loss_fn = eqco.EqCoLoss(temperature=eqco.LearnableTemperature())
    assert set(loss_fn.state_dict()) == {"temperature.log_scale"}
