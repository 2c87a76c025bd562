"""Draws have the promised distribution and depend on their own settings alone."""

import torch
from torch.testing import assert_close

from eqco.mutual_information import PairDraws
from eqco.runtime.seeds import random_source
from eqco.theory import gaussian_correlation


def draws(informations, **change):
    settings = {"dim": 4, "seed": 0, "num_pairs": 8, "purpose": "training", **change}
    return PairDraws(informations, **settings)


def test_pairs_have_the_correlation_of_their_information():
    x, y = draws([0.0, 1.0, 4.0]).pairs(100_000)
    for row, information in enumerate([0.0, 1.0, 4.0]):
        expected = gaussian_correlation(information, dim=4)
        assert_close(float((x[row] * y[row]).mean()), expected, rtol=0, atol=0.01)
        assert_close(float(y[row].var()), 1.0, rtol=0, atol=0.02)


def test_neighbours_do_not_change_what_is_drawn():
    ours, mine = draws([1.0, 2.0, 3.0]), draws([2.0])
    for _ in range(3):
        for together, alone in zip(ours.pairs(8), mine.pairs(8), strict=True):
            assert torch.equal(together[1], alone[0])


def test_each_setting_has_a_source_of_its_own():
    settings = [
        (0, 64, 2.0, "training"),
        (1, 64, 2.0, "training"),
        (0, 128, 2.0, "training"),
        (0, 64, 4.0, "training"),
        (0, 64, 2.0, "estimation"),
    ]
    first = {float(torch.randn(1, generator=random_source(*given))) for given in settings}
    assert len(first) == len(settings)


def test_two_and_two_point_zero_are_the_same_information():
    assert random_source(0, 64, 2, "weights").initial_seed() == (
        random_source(0, 64, 2.0, "weights").initial_seed()
    )
