"""Two processes equal one, and so do four: every method, to rounding."""

from functools import cache

import pytest
import together
import torch
from together import CASES, ended, start, three_steps
from torch.testing import assert_close

COUNTS = (2, 4)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


@cache
def alone(name, dtype):
    """What one process holds."""
    return three_steps(CASES[name], dtype)


@pytest.fixture(scope="module")
def held(warm, tmp_path_factory):
    """(processes, rank) -> what that process holds after three steps of each case."""
    place = tmp_path_factory.mktemp("together")
    found = {}
    for count in COUNTS:
        for code, _, errors in ended(start(warm, [together.__file__, place], count)):
            assert code == 0, errors
        for rank in range(count):
            found[count, rank] = torch.load(place / f"{count}-{rank}.pt", weights_only=False)
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("count", "dtype"),
    [(2, torch.float64), (2, torch.float32), (4, torch.float64)],
    ids=["2, float64", "2, float32", "4, float64"],
)
def test_processes_hold_what_one_process_holds(held, count, dtype, name):
    """Parameters, key encoder, running statistics, queue and cursor, K, margin, rate, loss, f̂."""
    kinds = ["method", "diagnosed"]
    if dtype == torch.float64:  # gradients of steep losses differ by more in float32
        kinds.append("optimiser")
    for rank in range(count):
        for kind in kinds:
            theirs, ours = held[count, rank][name, str(dtype)][kind], alone(name, dtype)[kind]
            assert_close(theirs, ours, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("count", COUNTS)
def test_all_processes_hold_the_same_to_the_bit(held, count):
    for rank in range(1, count):
        for case, state in held[count, 0].items():
            assert_close(held[count, rank][case], state, rtol=0, atol=0)


@pytest.mark.parametrize("count", COUNTS)
def test_features_are_shared_out_and_complete(held, count):
    """95 images do not divide by the processes, and 3 are fewer than four of them."""
    for rank in range(count):
        for images, found in held[count, rank]["features"].items():
            assert_close(found, together.features(images))


def test_three_steps_move_the_weights():
    """Else the comparison above could not fail."""
    for name, recipe in CASES.items():
        after = alone(name, torch.float64)["method"]
        before = together.built(recipe, torch.float64).method.encoder.named_parameters()
        moved = {part: (after[f"encoder.{part}"] - value).abs().max() for part, value in before}
        first = next(part for part in moved if part.endswith("weight"))
        assert moved[first] > 1e-6, name  # far above what the comparison allows
