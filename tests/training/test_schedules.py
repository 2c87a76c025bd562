"""The learning rate: cosine from step 0, warm-up multiplied onto it, drops."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqco.runtime.errors import InputError
from eqco.training.schedules import learning_rate_factor


def cosine(step, **settings):
    return learning_rate_factor(step, schedule="cosine", **settings)


def steps(step, **settings):
    return learning_rate_factor(step, schedule="steps", **settings)


def test_the_cosine_starts_at_1_and_ends_at_0():
    assert cosine(0, total_steps=7) == 1
    assert cosine(7, total_steps=7) == 0
    # (1 + cos 60°)/2 = (1 + 1/2)/2
    assert cosine(1, total_steps=3) == pytest.approx(0.75, abs=1e-15)


def test_the_warm_up_is_multiplied_onto_a_cosine_that_does_not_wait():
    # step 25 of 100: (1 + cos 45°)/2 = 0.853553; warm-up half done: 0.001 + 0.999/2 = 0.5005
    warm = cosine(25, total_steps=100, warmup_steps=50)
    assert warm == pytest.approx(0.5005 * (1 + math.sqrt(0.5)) / 2, rel=1e-12)
    assert cosine(0, total_steps=100, warmup_steps=50) == 0.001
    for step in (50, 51, 99):
        assert cosine(step, total_steps=100, warmup_steps=50) == cosine(step, total_steps=100)


def test_mocos_drops_are_at_their_steps():
    factors = [steps(step, total_steps=200, drops=(120, 160)) for step in (119, 120, 159, 160, 200)]
    assert factors == pytest.approx([1, 0.1, 0.1, 0.01, 0.01])
    assert steps(5, total_steps=10, drops=(5,), drop_factor=0.5) == 0.5


def test_steps_without_drops_are_a_constant_rate():
    assert {steps(step, total_steps=9) for step in range(10)} == {1.0}


@given(
    total=st.integers(1, 400),
    data=st.data(),
    schedule=st.sampled_from(["cosine", "steps"]),
)
def test_the_rate_rises_in_the_warm_up_only_and_stays_between_0_and_1(total, data, schedule):
    warmup = data.draw(st.integers(0, total))
    drops = ()
    if schedule == "steps" and total > 1:
        drops = tuple(sorted(data.draw(st.sets(st.integers(1, total - 1), max_size=3))))
    factors = [
        learning_rate_factor(
            step, schedule=schedule, total_steps=total, warmup_steps=warmup, drops=drops
        )
        for step in range(total + 1)
    ]
    assert all(0 <= factor <= 1 for factor in factors)
    after = factors[warmup:]
    assert all(later <= earlier for earlier, later in pairwise(after))


@given(total=st.integers(1, 10_000))
def test_the_cosine_is_symmetric_about_its_middle(total):
    for step in (0, total // 3, total // 2):
        both = cosine(step, total_steps=total) + cosine(total - step, total_steps=total)
        assert both == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("step", "settings", "message"),
    [
        (-1, {}, "step=-1; a training of total_steps=10 has 0 to that"),
        (11, {}, "step=11"),
        (0, {"total_steps": 0}, "total_steps=0; a training needs at least 1 step"),
        (0, {"warmup_steps": 11}, "warmup_steps=11 in a training of total_steps=10"),
        (0, {"warmup_steps": -1}, "warmup_steps=-1"),
        (0, {"schedule": "linear"}, "schedule='linear'; there are 'cosine' and 'steps'"),
        (0, {"drops": (3,)}, r"drops=\(3,\) with schedule='cosine', which has none"),
        (0, {"schedule": "steps", "drops": (5, 3)}, "each later than the one before"),
        (0, {"schedule": "steps", "drops": (3, 3)}, "each later than the one before"),
        (0, {"schedule": "steps", "drops": (0,)}, "they must be steps after the first"),
        (0, {"schedule": "steps", "drops": (10,)}, "the last one would never come"),
        (0, {"schedule": "steps", "drops": (3,), "drop_factor": 0.0}, "drop_factor=0.0"),
        (0, {"schedule": "steps", "drops": (3,), "drop_factor": 2.0}, "drop_factor=2.0"),
    ],
)
def test_what_does_not_fit_is_refused(step, settings, message):
    with pytest.raises(InputError, match=message):
        learning_rate_factor(step, **{"schedule": "cosine", "total_steps": 10, **settings})
