"""Bytes: what is said to be held is what is held."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

import eqco
from eqco.methods import CMCSettings, CPCSettings, PIRLSettings, SimCLRv2Settings
from eqco.planning import plan
from eqco.planning.counts import KeyCounts, whole_loss_bytes
from eqco.planning.footprint import (
    format_bytes,
    largest_queue,
    logits_bytes,
    loss_bytes,
    parse_bytes,
    queue_bytes,
)
from eqco.runtime.errors import InputError


def peak_bytes(call):
    """The most that tensors made by the call take together at any time."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        call()
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def loss_of_queue(n, k, dim):
    queries, positives, keys = (torch.randn(rows, dim) for rows in (n, n, k))
    queries.requires_grad_()

    def call():
        queries.grad = None
        eqco.contrastive_loss(queries, positives, keys, alpha=64).backward()

    return call


def loss_of_simo(n, dim, count):
    queries, keys = torch.randn(2, n, dim)
    queries = queries.clone().requires_grad_()
    rows = torch.arange(n)
    negatives = eqco.in_batch_negatives(keys, index=rows)
    if count < n - 1:
        negatives = eqco.sampled_negatives(
            negatives, count, seed=0, step=0, index=rows, num_queries=n
        )

    def call():
        queries.grad = None
        eqco.contrastive_loss(queries, keys, negatives, alpha=64).backward()

    return call


def loss_of_simclr(n, dim, memory=0, count=None):
    first, second = (torch.randn(n, dim, requires_grad=True) for _ in range(2))
    rows, queue = torch.arange(n), eqco.Negatives(torch.randn(memory, dim))

    def call():
        first.grad = second.grad = None
        contrasts = []
        for a, b in ((first, second), (second, first)):
            negatives = eqco.in_batch_negatives(b, a, index=rows)
            if count is not None:
                negatives = eqco.sampled_negatives(
                    negatives, count, seed=0, step=0, index=rows, num_queries=n
                )
            if memory:
                negatives = eqco.combine_negatives(negatives, queue)
            contrasts.append(eqco.Contrast(a, b, negatives, 0.5))
        eqco.Objective(temperature=0.2, alpha=64)(contrasts).backward()

    return call


def two_views(n, dim):
    return loss_bytes([n, n], 2 * n - 2, dim, pool=2 * n, offered=2 * n - 2, trained=2 * n)


def beside_a_queue(n, dim, memory, count=None):
    """Of SimCLR's contrasts, with all negatives of the batch or some, and a queue."""
    method = SimCLRv2Settings(count=count, queue_size=memory)
    batch = 2 * n - 2 if count is None else count
    return whole_loss_bytes(method, n, dim, KeyCounts(batch=batch, queue=memory))


def loss_of_cpc(n, dim, per_image):
    """Predictions among the patches of all images, 16 of each, in contrasts of several sizes."""
    keys = torch.randn(16 * n, dim, requires_grad=True)
    pairs = [torch.randn(2, n * each, dim).unbind() for each in per_image]
    pairs = [tuple(side.clone().requires_grad_() for side in pair) for pair in pairs]

    def call():
        keys.grad = None
        contrasts = []
        for queries, positives in pairs:
            queries.grad = positives.grad = None
            rows = torch.arange(len(queries))[:, None] % len(keys)
            own = eqco.Negatives(keys, excluded=rows)
            contrasts.append(eqco.Contrast(queries, positives, own))
        eqco.Objective(temperature=0.2, alpha=64)(contrasts).backward()

    return call


def loss_of_drawn_patches(n, dim, settings):
    """Predictions among patches of other images, some drawn for each in every step."""
    patches = settings.grid**2
    keys = torch.randn(patches * n, dim, requires_grad=True)
    sides = [
        [torch.randn(n * each, dim, requires_grad=True) for _ in range(2)]
        for each in settings.contrast_queries
    ]

    def call():
        keys.grad = None
        contrasts = []
        for queries, positives in sides:
            queries.grad = positives.grad = None
            image = torch.arange(n).repeat_interleave(len(queries) // n)
            own = image[:, None] * patches + torch.arange(patches)
            negatives = eqco.sampled_negatives(
                eqco.Negatives(keys, excluded=own), settings.count, seed=0, step=len(contrasts)
            )
            contrasts.append(eqco.Contrast(queries, positives, negatives))
        eqco.Objective(temperature=0.2, alpha=64)(contrasts).backward()

    return call


def loss_of_banks(n, rows, dim, settings):
    """Two kinds of queries, with draws from two banks (CMC) or the same draw from one (PIRL)."""
    bank, index = eqco.MemoryBank(rows, dim, num_views=settings.num_banks), torch.arange(n)
    queries = [torch.randn(n, dim, requires_grad=True) for _ in range(2)]

    def call():
        drawn = [
            bank.negatives(
                index, settings.count, seed=0, step=view, view=view, shared=settings.shared
            )
            for view in range(settings.num_banks)
        ]
        contrasts = []
        for each, negatives in zip(queries, (drawn[0], drawn[-1]), strict=True):
            each.grad = None
            contrasts.append(eqco.Contrast(each, bank.positives(index), negatives))
        eqco.Objective(temperature=0.07, alpha=64)(contrasts).backward()

    return call


def patches(n, dim, per_image):
    sizes = [n * each for each in per_image]
    return loss_bytes(sizes, 16 * n - 1, dim, pool=16 * n, offered=16 * n - 1, trained=16 * n)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (loss_of_queue(64, 20000, 32), loss_bytes([64], 20000, 32, pool=20000)),
        (loss_of_queue(256, 256, 128), loss_bytes([256], 256, 128, pool=256)),
        (loss_of_queue(256, 8192, 128), loss_bytes([256], 8192, 128, pool=8192)),
        (loss_of_simo(256, 128, 255), loss_bytes([256], 255, 128, pool=256, offered=255)),
        (loss_of_simo(256, 128, 16), loss_bytes([256], 16, 128, pool=256, offered=255)),
        (loss_of_simo(1024, 64, 1023), loss_bytes([1024], 1023, 64, pool=1024, offered=1023)),
        (loss_of_simo(1024, 64, 4), loss_bytes([1024], 4, 64, pool=1024, offered=1023)),
        (loss_of_simclr(256, 128), two_views(256, 128)),
        (loss_of_simclr(1100, 32), two_views(1100, 32)),
        # each keeps up to half of 64 MiB
        (loss_of_simclr(2000, 32), two_views(2000, 32)),
        (loss_of_simclr(2100, 32), two_views(2100, 32)),
        # keys of a queue want no gradient, and the pool of both is made for each contrast
        (loss_of_simclr(256, 32, 20_000), beside_a_queue(256, 32, 20_000)),
        # where few are drawn of the batch, the row numbers of all K as well
        (loss_of_simclr(256, 32, 20_000, 16), beside_a_queue(256, 32, 20_000, 16)),
        (loss_of_simclr(64, 128, 4096, 16), beside_a_queue(64, 128, 4096, 16)),
        # contrasts of one chunk, and of several that fit no eighth of 64 MiB
        (loss_of_cpc(64, 64, (8, 4) * 4), patches(64, 64, (8, 4) * 4)),
        (loss_of_cpc(160, 16, (11, 4) * 4), patches(160, 16, (11, 4) * 4)),
    ],
)
def test_the_loss_takes_what_is_said_at_most_and_not_much_less(call, said):
    held = peak_bytes(call)
    assert 0.5 * said <= held <= said


@pytest.mark.parametrize(
    ("n", "dim", "grid", "count"),
    [
        # all drawn keys gathered at once; some contrasts so, and others a few queries at a time
        (160, 16, 4, 16),
        (128, 64, 4, 16),
        (64, 64, 6, 16),
        # the products with all keys, by a mask
        (64, 64, 4, 200),
    ],
)
def test_the_loss_of_drawn_patches_takes_what_is_said(n, dim, grid, count):
    settings = CPCSettings(grid=grid, other_images_only=True, count=count)
    said = whole_loss_bytes(settings, n, dim, KeyCounts(batch=count))
    assert 0.5 * said <= peak_bytes(loss_of_drawn_patches(n, dim, settings)) <= said


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (300_000, CMCSettings(count=16384)),
        (50_000, PIRLSettings(count=32000)),
        (2000, CMCSettings(count=1000)),
        # a draw for each query: a mask of all rows, and the numbers of some
        (30_000, CMCSettings(count=4096, shared=False)),
        (50_000, PIRLSettings(count=1024, shared=False)),
    ],
)
def test_draws_from_banks_take_what_is_said_with_their_loss(rows, settings):
    n, dim = 256, 32
    said = whole_loss_bytes(settings, n, dim, KeyCounts(bank=settings.count), bank_rows=rows)
    held = peak_bytes(loss_of_banks(n, rows, dim, settings))
    assert 0.5 * said <= held <= said


def test_a_shared_draw_as_published_by_hand():
    """CMC: 16385 rows for each of two contrasts, and the numbers of all images while they are
    drawn. 256 queries compare two bytes for each of 16384 rows, which takes no more than copying
    them; beside it each query has four numbers.
    """
    copied, ordered = 16385 * 128 * 4, 1_281_167 * 8
    assert plan("cmc").loss_bytes == 2 * copied + ordered + 4 * 256 * 8


def test_what_is_kept_is_limited_in_bytes():
    """36 MB of exponentials in float32 are kept; 72 MB in float64 would be more than 64 MiB."""
    held = {}
    for dtype in (torch.float32, torch.float64):
        leaves = [torch.randn(n, 8, dtype=dtype, requires_grad=True) for n in (900, 900, 10_000)]

        def call(leaves=leaves):
            torch.autograd.grad(eqco.contrastive_loss(*leaves), leaves)

        held[dtype] = peak_bytes(call)
    kept = 900 * 10_000 * 4
    assert kept < held[torch.float32] < 1.5 * kept
    assert held[torch.float64] < 0.5 * kept


def test_a_queue_takes_what_its_buffer_takes():
    queue = eqco.KeyQueue(100, 24)
    assert queue_bytes(100, 24) == queue.keys.nbytes
    assert logits_bytes(8, 100) == (torch.zeros(8, 24) @ queue.keys.T).nbytes


@given(
    memory=st.integers(10**7, 10**9),
    contrasts=st.sampled_from([[8], [256], [256, 256]]),
    dim=st.sampled_from([32, 128]),
)
def test_the_largest_queue_fits_and_one_more_key_does_not(memory, contrasts, dim):
    k = largest_queue(memory, contrasts, dim)
    fits, exceeds = (
        queue_bytes(each, dim) + loss_bytes(contrasts, each, dim, pool=each) for each in (k, k + 1)
    )
    assert fits <= memory < exceeds


def test_too_little_memory_is_refused_with_the_least():
    with pytest.raises(InputError, match=r"--memory 1\.0 KB is too little: .* takes 789\.0 KB"):
        largest_queue(1000, [256], 128)


@pytest.mark.parametrize(
    ("text", "count"),
    [("512MB", 512_000_000), ("1 GiB", 2**30), ("0.5kb", 500), ("7 B", 7)],
)
def test_sizes_are_read_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["512", "MB", "5 apples", "-5MB", ""])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(InputError, match=r"is not a size.*such as 512MB"):
        parse_bytes(text)


def test_sizes_are_written_in_the_unit_that_suits():
    assert [format_bytes(n) for n in (0, 999, 1000, 2_500_000_000)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "2.5 GB",
    ]
