"""The memory bank: how rows move, which are drawn, and what it refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import eqco
from eqco.contrast import Contrast, NCEObjective, memory_bank
from eqco.contrast.nce import cosines
from eqco.contrast.sampled import after_allowed
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

ROWS, DIM = 20, 4
INDEX = torch.tensor([3, 19, 0, 7])


def bank(**settings):
    made = eqco.MemoryBank(ROWS, DIM, **settings).double()
    made.rows = F.normalize(made.rows, dim=2)  # drawn in float32
    return made


def keys(count=4, width=DIM, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator)


def test_a_visited_row_is_the_normalised_mixture_and_the_others_stay():
    made, new = bank(decay=0.75), keys()
    expected = made.rows[0].clone()
    for n, row in enumerate(INDEX.tolist()):
        mixed = 0.75 * expected[row] + 0.25 * new[n] / new[n].norm()
        expected[row] = mixed / mixed.norm()
    made.update(new, INDEX)
    assert_close(made.rows[0], expected, rtol=1e-13, atol=1e-13)


def test_two_views_have_rows_of_their_own():
    both, first, second = bank(num_views=2), bank(), bank()
    first.rows[0], second.rows[0] = both.rows[0], both.rows[1]
    new = keys(width=2 * DIM)
    for each, part in ((both, new), (first, new[:, :DIM]), (second, new[:, DIM:])):
        each.update(part, INDEX)
    assert_close(both.rows, torch.cat([first.rows, second.rows]))


def test_of_an_instance_that_comes_twice_the_last_key_counts():
    twice, once, new = bank(), bank(), keys()
    twice.update(new, torch.tensor([5, 3, 5, 3]))
    once.update(new[2:], torch.tensor([5, 3]))
    assert torch.equal(twice.rows, once.rows)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 6, ROWS - 1])
def test_a_query_meets_other_rows_each_once_and_never_its_own(count, shared):
    made = bank()
    drawn = made.negatives(INDEX, count, seed=1, step=2, shared=shared)
    assert drawn.num_negatives == count
    contrast = Contrast(keys(), made.positives(INDEX), drawn)
    _, found = cosines(contrast)
    every = F.normalize(contrast.queries, dim=1) @ made.rows[0].T
    for n, own in enumerate(INDEX.tolist()):
        nearest = (found[n][:, None] - every[n]).abs()
        assert nearest.min(dim=1).values.max() < 1e-12
        places = nearest.argmin(dim=1).tolist()
        assert len(set(places)) == count
        assert own not in places


def drawn_rows(made, index, *, step, shared):
    negatives = made.negatives(index, 6, seed=1, step=step, shared=shared)
    return cosines(Contrast(torch.ones(len(index), DIM).double(), keys(len(index)), negatives))[1]


@pytest.mark.parametrize("shared", [False, True])
def test_draws_are_a_function_of_seed_and_step(shared):
    first, again, other = (
        drawn_rows(bank(), INDEX, step=step, shared=shared) for step in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("shared", [False, True])
def test_a_process_draws_its_part_of_what_one_process_draws(shared, monkeypatch):
    whole = drawn_rows(bank(), INDEX, step=4, shared=shared)
    monkeypatch.setattr(processes, "world_size", lambda: 2)
    for rank, rows in enumerate((slice(0, 2), slice(2, 4))):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        assert_close(drawn_rows(bank(), INDEX[rows], step=4, shared=shared), whole[rows])


def test_the_candidate_left_out_of_a_shared_draw_is_the_excluded_or_the_last():
    candidates = torch.tensor([4, 9, 2, 7])
    excluded = torch.tensor([[9], [5], [7], [4]])
    assert after_allowed(candidates, excluded, 3).tolist() == [[1], [3], [3], [0]]


def test_saved_and_loaded_it_is_the_same():
    made, other = bank(seed=0), bank(seed=1)
    made.update(keys(), INDEX)
    assert not torch.equal(made.rows, other.rows)
    other.load_state_dict(made.state_dict())
    assert torch.equal(made.rows, other.rows)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: eqco.MemoryBank(1, 4), "num_instances=1.*at least 2"),
        (lambda: eqco.MemoryBank(8, 4, decay=1.0), r"decay=1\.0; .*less than 1"),
        (lambda: bank().positives(torch.tensor([20])), "index holds 20 to 20, but the bank's 20"),
        (lambda: bank().positives(torch.tensor([0.0])), "of type torch.int64"),
        (lambda: bank().update(keys(3), INDEX), r"shape \(3, 4\) for 4 instances"),
        (lambda: bank().negatives(INDEX, 20, seed=0, step=0), "offers 19 negatives"),
        (lambda: bank().negatives(INDEX, 3, seed=0, step=0, view=1), "view=1, .*num_views=1"),
        (lambda: bank(num_views=2).positives(INDEX, view=-1), "view=-1, .* from 0 to 1"),
        (lambda: bank().update(keys() * math.nan, INDEX), "keys holds 16 NaN and 0 infinite"),
        (lambda: bank().update(keys() / 0, INDEX), "keys holds 0 NaN and 16 infinite"),
        (lambda: bank().update(keys().long(), INDEX), r"type torch\.int64; .* keys\.float\(\)"),
        (
            lambda: eqco.MemoryBank(ROWS, DIM).update(keys(), INDEX),
            r"torch\.float64 would be rounded .* bank\.double\(\), or give keys\.float\(\)",
        ),
        (
            lambda: bank(num_views=2).load_state_dict(bank().state_dict()),
            "of num_views=1, num_instances=20, dim=4, and this one has num_views=2, .* Make it",
        ),
    ],
)
def test_what_no_bank_can_do_is_refused(act, message):
    with pytest.raises(InputError, match=message):
        act()


def test_what_is_refused_leaves_the_rows_as_they_are():
    made, before = bank(), bank().rows
    with pytest.raises(InputError):
        made.update(keys() * math.nan, INDEX)
    assert torch.equal(made.rows, before)


def test_with_several_processes_it_must_be_said_whose_keys_these_are(monkeypatch):
    made = bank()
    monkeypatch.setattr(processes, "world_size", lambda: 2)
    with pytest.raises(
        InputError, match=r"gather=None with 2 processes, whose banks .*gather=True"
    ):
        made.update(keys(), INDEX)
    one = bank()
    one.update(keys(), INDEX, gather=False)
    assert not torch.equal(one.rows, made.rows)


def test_gathering_takes_the_keys_of_all_processes(monkeypatch):
    """The other process has these two rows."""
    others = {torch.float64: keys(2, seed=1), torch.int64: torch.tensor([11, 5])}
    monkeypatch.setattr(processes, "world_size", lambda: 2)
    monkeypatch.setattr(
        processes, "gather_uneven", lambda rows: torch.cat([rows, others[rows.dtype]])
    )
    gathered, told = bank(), bank()
    gathered.update(keys(), INDEX, gather=True)
    told.update(
        torch.cat([keys(), keys(2, seed=1)]), torch.tensor([*INDEX.tolist(), 11, 5]), gather=False
    )
    assert torch.equal(gathered.rows, told.rows)


def test_a_bank_larger_than_memory_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr(memory_bank, "machine_memory", lambda: 16 * 10**9)
    with pytest.raises(
        InputError,
        match=r"2 × 1000000000000 rows .*1024000\.0 GB, .* has 16\.0 GB, .* 5\.3: .* Lower .*dim",
    ):
        eqco.MemoryBank(10**12, 128, num_views=2)


def test_a_bank_may_take_a_third_of_memory(monkeypatch):
    size = 2 * ROWS * DIM * 4  # bytes of two views in float32
    monkeypatch.setattr(memory_bank, "machine_memory", lambda: 3 * size)
    assert eqco.MemoryBank(ROWS, DIM, num_views=2).rows.nbytes == size
    monkeypatch.setattr(memory_bank, "machine_memory", lambda: 3 * size - 1)
    with pytest.raises(InputError, match=r"2 × 20 rows of dim=4 takes .* Lower .*dim"):
        eqco.MemoryBank(ROWS, DIM, num_views=2)


def test_the_banks_of_all_processes_of_a_machine_share_its_memory(monkeypatch):
    size = ROWS * DIM * 4
    monkeypatch.setattr(memory_bank, "machine_memory", lambda: 3 * 4 * size)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    eqco.MemoryBank(ROWS, DIM)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    with pytest.raises(InputError, match="GB in each of 5 processes, and this machine has"):
        eqco.MemoryBank(ROWS, DIM)


@pytest.mark.parametrize(
    ("limit", "memory"),
    [("12345678\n", 12345678), ("max\n", None), ("9223372036854771712\n", None)],
)
def test_the_limit_of_a_container_counts_where_it_is_lower(limit, memory, monkeypatch, tmp_path):
    monkeypatch.setattr(memory_bank, "CONTAINER_LIMITS", ())
    machine = memory_bank.machine_memory()
    file = tmp_path / "memory.max"
    file.write_text(limit)
    monkeypatch.setattr(memory_bank, "CONTAINER_LIMITS", (str(file), str(tmp_path / "none")))
    assert memory_bank.machine_memory() == (memory or machine)


def test_first_rows_are_unit_vectors_of_the_draw():
    drawn = torch.rand(2, ROWS, DIM, generator=generator_for("memory bank", 5)) * 2 - 1
    lengths = drawn.pow(2).sum(dim=2, keepdim=True).sqrt()
    assert_close(eqco.MemoryBank(ROWS, DIM, num_views=2, seed=5).rows, drawn / lengths)


def test_the_machine_tells_its_memory():
    assert memory_bank.machine_memory() > 10**8


def test_nce_before_its_normaliser_is_fixed_is_refused():
    made = bank()
    contrast = Contrast(keys(), made.positives(INDEX), made.negatives(INDEX, 3, seed=0, step=0))
    objective = NCEObjective(ROWS, 1, temperature=0.2).double()
    with pytest.raises(InputError, match=r"not fixed yet.*warm_up"):
        objective([contrast])
    objective.fix_normaliser([contrast])
    assert objective([contrast]).isfinite()
