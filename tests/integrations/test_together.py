"""Losses with other libraries' calls: two processes that gather step as one with all rows."""

import losses_together
import pytest
import torch
from losses_together import cases, two_steps
from together import ended, start
from torch.testing import assert_close

for package in ("sentence_transformers", "open_clip", "lightly"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.fixture(scope="module")
def held(warm, tmp_path_factory):
    place = tmp_path_factory.mktemp("losses")
    for name in ("sentence_transformers", "open_clip", "lightly"):
        warm.load(f"eqco.integrations.{name}")
    for code, _, errors in ended(start(warm, [losses_together.__file__, place], 2)):
        assert code == 0, errors
    return [torch.load(place / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.end_to_end
@pytest.mark.parametrize("case", cases())
def test_two_processes_step_as_one_with_all_rows(held, case):
    alone = two_steps(case)
    for rank in range(2):
        assert_close(held[rank][case], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", cases())
def test_steps_move_the_weights_and_differ(case):
    """Else the comparison above could not fail."""
    losses, weights = two_steps(case)
    assert losses[0] != losses[1]
    before = cases()[case][0]().state_dict()
    assert any((weights[name] - before[name]).abs().max() > 1e-3 for name in before)
