"""Which keys each query is scored against: in-batch, sampled, queue, and their combination."""

import copy
import math
from collections import Counter

import pytest
import torch
from drawing import seeds, unit_vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

import eqco
from eqco.contrast import streaming
from eqco.contrast.negatives import key_indices, row_counts
from eqco.contrast.sampled import ONE_BY_ONE, chosen_places, distinct_places, many_distinct_places
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for


def drawn(n, count, *, seed=0, step=0, index=None, views=1, shared=False):
    index = torch.arange(n) if index is None else index
    keys = [unit_vectors(v, n, 4) for v in range(views)]
    pool = eqco.in_batch_negatives(*keys, index=index)
    negatives = eqco.sampled_negatives(
        pool, count, seed=seed, step=step, index=index, num_queries=n, shared=shared
    )
    # numbers in the pool, also where the drawn keys have become the pool
    place = {tuple(key): number for number, key in enumerate(pool.keys.tolist())}
    numbers = torch.tensor([place[tuple(key)] for key in negatives.keys.tolist()])
    return numbers[key_indices(negatives, len(index))]


@given(n=st.integers(2, 20), views=st.integers(1, 2))
def test_in_batch_leaves_out_only_the_own_instance(n, views):
    index = torch.arange(n)
    pool = eqco.in_batch_negatives(*[unit_vectors(v, n, 4) for v in range(views)], index=index)
    found = key_indices(pool, n)
    assert pool.num_negatives == views * (n - 1) == found.shape[1]
    for query, row in enumerate(found.tolist()):
        assert sorted(row) == [j for j in range(views * n) if j % n != query]


@given(
    seed=seeds,
    n=st.integers(2, 60),
    views=st.integers(1, 2),
    share=st.floats(0.01, 1),
    shared=st.booleans(),
)
def test_a_draw_is_distinct_and_never_the_own_instance(seed, n, views, share, shared):
    count = max(1, int(share * views * (n - 1)))
    indices = drawn(n, count, seed=seed, views=views, shared=shared)
    assert indices.shape == (n, count)
    assert all(len(set(row)) == count for row in indices.tolist())
    assert ((indices % n) != torch.arange(n)[:, None]).all()


@given(seed=seeds, step=st.integers(0, 1000), shared=st.booleans())
def test_a_draw_depends_on_seed_and_step_alone(seed, step, shared):
    again = [drawn(30, 8, seed=seed, step=step, shared=shared) for _ in range(2)]
    assert torch.equal(*again)
    assert not torch.equal(again[0], drawn(30, 8, seed=seed, step=step + 1, shared=shared))
    assert not torch.equal(again[0], drawn(30, 8, seed=seed + 1, step=step, shared=shared))


@given(processes=st.sampled_from([1, 2, 3, 6]), shared=st.booleans())
def test_the_number_of_processes_never_changes_what_is_drawn(processes, shared):
    whole = drawn(12, 5, shared=shared)
    parts = [drawn(12, 5, index=part, shared=shared) for part in torch.arange(12).chunk(processes)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_shared_draw_is_one_draw_and_separate_draws_are_not():
    together = drawn(20, 6, shared=True)
    assert len(set(together.flatten().tolist())) == 7  # six, and one more for those who are drawn
    assert len(set(drawn(20, 6).flatten().tolist())) > 12


@pytest.mark.parametrize("count", [3, ONE_BY_ONE + 1])
def test_every_key_is_drawn_equally_often(count):
    """Both ways of drawing: counts of 40 keys within five standard deviations of the mean."""
    rows = 4000
    places = distinct_places(rows, 40, count, torch.Generator().manual_seed(0))
    seen = Counter(places.flatten().tolist())
    probability = count / 40
    spread = (rows * probability * (1 - probability)) ** 0.5
    assert len(seen) == 40
    assert all(abs(seen[j] - rows * probability) < 5 * spread for j in range(40))


def test_pairs_are_drawn_equally_often():
    places = distinct_places(20_000, 5, 2, torch.Generator().manual_seed(0))
    pairs = Counter(tuple(sorted(row)) for row in places.tolist())
    assert len(pairs) == 10
    assert all(abs(count - 2000) < 5 * 2000**0.5 for count in pairs.values())


@settings(max_examples=30)
@given(
    capacity=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=8),
)
def test_the_queue_is_a_list_that_forgets_its_oldest(capacity, sizes):
    queue, model, number = eqco.KeyQueue(capacity, 1), [], 0
    for size in sizes:
        batch = list(range(number, number + size))
        number += size
        queue.enqueue(torch.tensor(batch, dtype=torch.float32)[:, None])
        held = sorted(queue.negatives().keys[:, 0].int().tolist())
        if size > capacity:
            assert len(set(held)) == capacity
            assert set(held) <= set(batch)
            model = held  # a random choice of the batch; the order inside it is free
        else:
            model = [*model, *batch][-capacity:]
            recent = model if len(model) < capacity else None
            assert set(batch) <= set(held)
            assert len(held) == len(model)
            assert recent is None or held == sorted(recent)
        assert queue.negatives().num_negatives == len(model)


@given(capacity=st.integers(1, 12), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_with_batches_that_fit_the_queue_holds_exactly_the_last_keys(capacity, sizes):
    queue, model, number = eqco.KeyQueue(capacity, 1), [], 0
    for size in sizes:
        size = min(size, capacity)
        batch = list(range(number, number + size))
        number += size
        queue.enqueue(torch.tensor(batch, dtype=torch.float32)[:, None])
        model = [*model, *batch][-capacity:]
        assert sorted(queue.negatives().keys[:, 0].int().tolist()) == model


def test_the_choice_of_a_large_batch_changes_from_batch_to_batch():
    queue = eqco.KeyQueue(4, 1)
    batch, held = torch.arange(64.0)[:, None], []
    for _ in range(3):
        queue.enqueue(batch)
        held.append(tuple(sorted(queue.keys[:, 0].tolist())))
    assert len(set(held)) == 3


@given(before=st.lists(st.integers(1, 9), max_size=5), after=st.integers(1, 9))
def test_a_saved_and_loaded_queue_continues_like_one_never_saved(before, after):
    queue = eqco.KeyQueue(7, 2, seed=3)
    for i, size in enumerate(before):
        queue.enqueue(torch.full((size, 2), float(i)))
    loaded = eqco.KeyQueue(7, 2, seed=3)
    loaded.load_state_dict(copy.deepcopy(queue.state_dict()))
    for each in (queue, loaded):
        each.enqueue(torch.arange(float(after * 2)).view(after, 2))
    assert torch.equal(queue.negatives().keys, loaded.negatives().keys)
    assert_same_state(queue.state_dict(), loaded.state_dict())


def assert_same_state(first, second):
    assert first.keys() == second.keys() == {"keys", "cursor", "filled", "batches"}
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_reading_changes_nothing_and_keys_carry_no_gradient():
    queue = eqco.KeyQueue(5, 2)
    queue.enqueue(torch.ones(3, 2, requires_grad=True))
    state = copy.deepcopy(queue.state_dict())
    for _ in range(3):
        negatives = queue.negatives()
    assert not negatives.keys.requires_grad
    assert_same_state(queue.state_dict(), state)


@given(seed=seeds, sampled=st.booleans(), queued=st.integers(1, 9))
def test_combined_sources_have_both_and_k_is_the_sum(seed, sampled, queued):
    n, index = 6, torch.arange(6)
    queries, keys = unit_vectors(seed, n, 4), unit_vectors(seed + 1, n, 4)
    batch = eqco.in_batch_negatives(keys, index=index)
    if sampled:
        batch = eqco.sampled_negatives(batch, 3, seed=seed, step=0, index=index, num_queries=n)
    queue = eqco.KeyQueue(12, 4, dtype=torch.float64)
    queue.enqueue(unit_vectors(seed + 2, queued, 4))
    both = eqco.combine_negatives(batch, queue.negatives())
    assert both.num_negatives == batch.num_negatives + queued
    each = torch.stack(
        [torch.cat([batch.keys[row], queue.negatives().keys]) for row in key_indices(batch, n)]
    )
    ours = eqco.contrastive_loss(queries, keys, both, alpha=64)
    assert_close(ours, eqco.contrastive_loss(queries, keys, each, alpha=64), rtol=1e-6, atol=1e-6)
    swapped = eqco.combine_negatives(queue.negatives(), batch)
    assert_close(ours, eqco.contrastive_loss(queries, keys, swapped, alpha=64))


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("drawn", [None, 5])
@pytest.mark.parametrize("with_ids", [False, True])
def test_keys_beside_a_batch_that_want_no_gradient_leave_the_others_as_it_is(
    similarity, drawn, with_ids, monkeypatch
):
    """Four chunks of keys, whose exponentials are kept (cosine) or made anew: the gradient of the
    batch in the first two is as if all keys had one, and none is made for the last two.
    """
    monkeypatch.setattr(streaming, "WHOLE_ELEMENTS", 0)
    monkeypatch.setattr(streaming, "CHUNK_ELEMENTS", 0)  # chunks of 64
    n, ids = 70, torch.arange(70) // 2
    found = []
    for wants in (False, True):
        queries, keys = (unit_vectors(seed, n, 4).requires_grad_() for seed in (0, 1))
        batch = eqco.in_batch_negatives(keys, ids=ids if with_ids else None)
        if drawn is not None:
            batch = eqco.sampled_negatives(batch, drawn, seed=0, step=0)
        memory = eqco.Negatives(
            unit_vectors(2, 150, 4).requires_grad_(wants),
            ids=torch.arange(150) if with_ids else None,
        )
        both = eqco.combine_negatives(batch, memory)
        both.keys.retain_grad()
        eqco.contrastive_loss(
            queries, keys, both, alpha=64, similarity=similarity, ids=ids if with_ids else None
        ).backward()
        found.append((queries.grad, keys.grad))
        assert bool(both.keys.grad[128:].any()) is wants
    assert_close(*found, rtol=1e-12, atol=1e-15)


def test_one_process_need_not_number_its_queries():
    keys = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    everyone = torch.arange(8)
    pool = eqco.in_batch_negatives(keys)
    assert_close(pool.excluded, eqco.in_batch_negatives(keys, index=everyone).excluded)
    drawn = eqco.sampled_negatives(pool, 3, seed=1, step=2)
    given = eqco.sampled_negatives(pool, 3, seed=1, step=2, index=everyone, num_queries=8)
    assert torch.equal(drawn.indices, given.indices)


@pytest.mark.parametrize("count", [2, 8])
def test_a_queue_refuses_the_state_of_a_larger_one_and_stays_as_it_was(count):
    large, small = eqco.KeyQueue(8, 2), eqco.KeyQueue(4, 2)
    large.enqueue(torch.ones(count, 2))
    small.enqueue(torch.zeros(3, 2))
    with pytest.raises(
        InputError, match="capacity=8 and dim=2, and this one has capacity=4 and dim=2"
    ):
        small.load_state_dict(large.state_dict())
    assert small.negatives().num_negatives == 3
    assert small.cursor == 3


def test_exclusions_are_of_the_queries_that_draw():
    pool = eqco.in_batch_negatives(torch.ones(8, 4), index=torch.tensor([0, 1], dtype=torch.int32))
    with pytest.raises(InputError, match="excludes keys for 2 queries, but 8 draw from it"):
        eqco.sampled_negatives(pool, 3, seed=0, step=0, num_queries=8)


@given(seed=seeds, n=st.integers(3, 12), views=st.integers(1, 2), size=st.floats(0, 1))
def test_a_shared_draw_hands_over_the_drawn_keys_and_gives_eq_1(seed, n, views, size):
    queries, *keys = (unit_vectors(seed + v, n, 4) for v in range(views + 1))
    pool = eqco.in_batch_negatives(*keys)
    count = max(1, int(size * pool.num_negatives))
    drawn = eqco.sampled_negatives(pool, count, seed=seed, step=0, shared=True)
    assert drawn.num_negatives == count
    assert len(drawn.keys) == count + views
    order = torch.randperm(len(pool.keys), generator=generator_for("negatives", seed, 0)).tolist()
    first = [[i for i in order if i % n != query][:count] for query in range(n)]
    given = eqco.Negatives(pool.keys, indices=torch.tensor(first))
    ours, theirs = (
        eqco.contrastive_loss(queries, keys[0], each, alpha=64) for each in (drawn, given)
    )
    assert_close(ours, theirs)


def test_a_shared_draw_of_a_queue_is_a_smaller_pool():
    pool = eqco.Negatives(torch.arange(50.0)[:, None])
    drawn = eqco.sampled_negatives(pool, 7, seed=0, step=0, num_queries=3, shared=True)
    assert (drawn.indices, drawn.excluded, len(drawn.keys.unique())) == (None, None, 7)


def test_draws_are_those_of_every_version():
    """Recorded trainings depend on them."""
    places = distinct_places(2, 300, 5, generator_for("negatives", 1, 2))
    assert places.tolist() == [[225, 107, 126, 140, 84], [17, 131, 40, 34, 161]]
    chosen = chosen_places(2, 36, 33, generator_for("negatives", 1, 2))
    assert (~chosen).nonzero()[:, 1].view(2, 3).tolist() == [[2, 8, 28], [0, 12, 20]]


@settings(max_examples=40)
@given(seed=seeds, size=st.integers(34, 700), part=st.floats(0, 1))
def test_large_draws_are_distinct_at_any_count(seed, size, part):
    count = ONE_BY_ONE + 1 + int(part * (size - ONE_BY_ONE - 1))
    generator = torch.Generator().manual_seed(seed)
    chosen = chosen_places(6, size, count, generator)
    assert chosen.shape == (6, size)
    assert chosen.sum(dim=1).tolist() == [count] * 6
    if 4 * count < 3 * size:
        places = distinct_places(6, size, count, generator)
        assert places.shape == (6, count)
        assert places.min() >= 0
        assert places.max() < size
        assert all(len(row.unique()) == count for row in places)


def test_sets_of_every_large_draw_are_equally_likely():
    """All ways of drawing many, on sets small enough to count."""
    rows = 20_000
    for draw, count in (
        (many_distinct_places, 2),
        (many_distinct_places, 4),
        (chosen_places, 2),
        (chosen_places, 4),
    ):
        places = draw(rows, 5, count, torch.Generator().manual_seed(0))
        if places.dtype == torch.bool:
            places = places.nonzero()[:, 1].view(rows, count)
        sets = Counter(tuple(sorted(row)) for row in places.tolist())
        expected = rows / math.comb(5, count)
        assert len(sets) == math.comb(5, count)
        assert all(abs(seen - expected) < 5 * expected**0.5 for seen in sets.values())


@pytest.mark.parametrize("count", [40, 4000])
def test_a_large_draw_never_holds_a_ranking_of_the_pool(count):
    """64 queries of 100 000 keys: a ranking takes 25 MB and more."""
    pool = eqco.Negatives(torch.zeros(100_000, 1))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        eqco.sampled_negatives(pool, count, seed=0, step=0, num_queries=64)
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert max(event.nbytes() for event in events) <= 17 * 2**20


def test_draws_work_under_another_default_device():
    pool = eqco.in_batch_negatives(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)))
    calls = [
        lambda count=count, shared=shared: eqco.sampled_negatives(
            pool, count, seed=0, step=0, shared=shared
        )
        for count in (3, 33, 40)
        for shared in (False, True)
    ]
    usual = [call() for call in calls]
    torch.set_default_device("meta")
    try:
        moved = [call() for call in calls]
        queue = eqco.KeyQueue(4, 2)
    finally:
        torch.set_default_device(None)
    assert queue.keys.device.type == "meta"
    for one, other in zip(usual, moved, strict=True):
        assert torch.equal(key_indices(one, 50), key_indices(other, 50))


def test_negatives_are_equal_to_themselves_alone():
    first, second = (eqco.Negatives(torch.ones(3, 2)) for _ in range(2))
    assert first == first
    assert first != second
    assert len({first, second}) == 2
    contrasts = [eqco.Contrast(torch.ones(1, 2), torch.ones(1, 2), first) for _ in range(2)]
    assert contrasts[0] != contrasts[1]


@given(seed=seeds, n=st.integers(36, 60), views=st.integers(1, 2), learns=st.booleans())
def test_a_draw_of_many_is_a_mask_and_gives_eq_1(seed, n, views, learns):
    queries, *keys = (unit_vectors(seed + v, n, 4).requires_grad_(learns) for v in range(views + 1))
    pool = eqco.in_batch_negatives(*keys)
    drawn = eqco.sampled_negatives(pool, 34, seed=seed, step=0)
    assert drawn.indices is None
    assert drawn.num_negatives == 34
    assert not drawn.mask.gather(1, pool.excluded).any()
    each = pool.keys[key_indices(drawn, n)]
    for temperature in (0.2, torch.tensor(0.2, dtype=torch.float64)):
        wanted = [queries, *keys] if learns else []
        found = []
        for negatives in (drawn, each):
            loss = eqco.contrastive_loss(
                queries, keys[0], negatives, temperature=temperature, alpha=64
            )
            found.append(
                [loss, *(torch.autograd.grad(loss, wanted, retain_graph=True) if learns else ())]
            )
        assert_close(found[0], found[1])


@pytest.mark.parametrize("width", [1, 255, 256, 300, 8192 * 3 + 1])
def test_flags_are_counted(width):
    mask = torch.rand(5, width, generator=torch.Generator().manual_seed(0)) < 0.7
    assert torch.equal(row_counts(mask), mask.sum(dim=1))
    assert row_counts(torch.ones_like(mask)).tolist() == [width] * 5


def test_a_mask_that_is_none_is_refused():
    keys = torch.ones(5, 4)
    with pytest.raises(InputError, match=r"it must be \(N, 5\) of type torch.bool"):
        eqco.Negatives(keys, mask=torch.ones(2, 4, dtype=torch.bool))
    uneven = eqco.Negatives(keys, mask=torch.eye(5).bool() | (torch.arange(5) == 0))
    with pytest.raises(InputError, match=r"from 1 to 2 keys in a row"):
        eqco.contrastive_loss(keys, keys, uneven)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("count", [3, 700])
def test_keys_gathered_in_blocks_give_the_loss_and_gradients_of_eq_1(
    count, learned, similarity, monkeypatch
):
    """Few indices of a pool beyond one chunk, some of them twice."""
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(streaming, "CHUNK_ELEMENTS", 64)
    monkeypatch.setattr(streaming, "WHOLE_ELEMENTS", 64)
    monkeypatch.setattr(streaming, "GATHERED_ELEMENTS", 1000)
    size = 40 * count
    queries, positives = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)
    keys = torch.randn(size, 8, generator=generator, dtype=torch.float64)
    indices = torch.randint(size, (5, count), generator=generator)
    indices[:, 0] = indices[:, 1]
    assert streaming.gathering_pays(64, size, count)
    found = []
    for gathered in (True, False):
        wanted = [each.clone().requires_grad_() for each in (queries, positives, keys)]
        temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        negatives = eqco.Negatives(wanted[2], indices) if gathered else wanted[2][indices]
        loss = eqco.contrastive_loss(
            *wanted[:2],
            negatives,
            temperature=temperature if learned else 0.5,
            alpha=64,
            similarity=similarity,
        )
        found.append(
            [loss, *torch.autograd.grad(loss, [*wanted, *([temperature] if learned else [])])]
        )
    assert_close(found[0], found[1])
