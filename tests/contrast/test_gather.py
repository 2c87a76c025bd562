"""A loop of one's own with gather=True: two processes, and four, equal one with the whole batch."""

import gathering_together
import pytest
import torch
from gathering_together import cases, one_step
from together import ended, start
from torch.testing import assert_close

COUNTS = (2, 4)


@pytest.fixture(scope="module")
def held(warm, tmp_path_factory):
    """(processes, rank) -> what that process holds after one step of each case."""
    place = tmp_path_factory.mktemp("gathering")
    found = {}
    for count in COUNTS:
        for code, _, errors in ended(start(warm, [gathering_together.__file__, place], count)):
            assert code == 0, errors
        for rank in range(count):
            found[count, rank] = torch.load(place / f"{count}-{rank}.pt", weights_only=False)
    return found


@pytest.mark.end_to_end
@pytest.mark.parametrize("case", cases())
@pytest.mark.parametrize("count", COUNTS)
def test_processes_step_as_one_with_the_whole_batch(held, count, case):
    """Loss, gradient, and weights after a step of SGD."""
    alone = one_step(case)
    for rank in range(count):
        assert_close(held[count, rank][case], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.end_to_end
@pytest.mark.parametrize("count", COUNTS)
def test_cached_gradients_are_exchanged_once(held, count):
    assert held[count, 0]["exchanges"] == 1


@pytest.mark.parametrize("case", cases())
def test_a_step_moves_the_weights(case):
    """Else the comparison above could not fail."""
    _, gradient, _ = one_step(case)
    assert max(each.abs().max() for each in gradient.values()) > 1e-3
