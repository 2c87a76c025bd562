"""On random embeddings K moves plain InfoNCE and leaves EqCo alone."""

import pytest
import torch

from eqco.experiments.rule import rule_against_k, swing
from eqco.report.rule import plot_rule

COUNTS = [16, 64, 256, 1024]


@pytest.fixture(scope="module")
def sides():
    points = rule_against_k(COUNTS, alpha=256, temperature=0.2, num_queries=64)
    return [[p for p in points if p.with_eqco == side] for side in (False, True)]


@pytest.mark.parametrize("quantity", ["loss", "information", "gradient_norm"])
def test_eqco_is_steady_where_plain_info_nce_is_not(sides, quantity):
    plain, with_eqco = sides
    assert swing(with_eqco, quantity) < 1.1 < swing(plain, quantity)


def test_both_agree_where_k_is_alpha(sides):
    plain, with_eqco = (side[COUNTS.index(256)] for side in sides)
    assert plain.loss == pytest.approx(with_eqco.loss, rel=1e-12)
    assert plain.gradient_norm == pytest.approx(with_eqco.gradient_norm, rel=1e-12)


def test_norms_stay_below_theorem_2_and_readings_say_what_they_are(sides):
    for point in [*sides[0], *sides[1]]:
        assert point.gradient_norm <= point.gradient_bound
    assert {point.kind for point in sides[0]} == {"bound"}
    assert [p.kind for p in sides[1]] == ["estimate", "estimate", "bound", "bound"]


def test_the_same_seed_gives_the_same_numbers():
    state = torch.get_rng_state()
    first = rule_against_k([4], alpha=64, temperature=0.2, num_queries=8)
    assert first == rule_against_k([4], alpha=64, temperature=0.2, num_queries=8)
    assert first != rule_against_k([4], alpha=64, temperature=0.2, num_queries=8, seed=1)
    assert torch.equal(state, torch.get_rng_state())


def test_the_picture_is_written(sides, tmp_path):
    path = plot_rule([*sides[0], *sides[1]], 256, tmp_path / "deep" / "rule.png")
    assert path.read_bytes().startswith(b"\x89PNG")
