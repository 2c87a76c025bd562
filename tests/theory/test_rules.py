"""Eq. 5, Eq. 8 and the prior of Remark 1."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqco.runtime.errors import InputError
from eqco.theory import effective_alpha, eqco_margin, positive_prior, scaled_learning_rate

positive_numbers = st.floats(1e-3, 1e9)
counts = st.integers(1, 10**6)
temperatures = st.floats(0.01, 10.0)


def test_the_margin_by_hand():
    # log(65536/16) = log(2¹²) = 12·0.693147 = 8.31777, times 0.2 = 1.663553
    assert eqco_margin(65536, 16, 0.2) == pytest.approx(1.663553, abs=1e-6)


@given(alpha=positive_numbers, k=counts, temperature=temperatures)
def test_effective_alpha_undoes_the_margin(alpha, k, temperature):
    margin = eqco_margin(alpha, k, temperature)
    assert effective_alpha(margin, k, temperature) == pytest.approx(alpha, rel=1e-9)


@given(alpha=counts, temperature=temperatures)
def test_alpha_equal_to_k_needs_no_margin_at_all(alpha, temperature):
    assert eqco_margin(alpha, alpha, temperature) == 0.0


@given(alpha=positive_numbers, k=counts)
def test_the_prior_is_what_the_margin_says(alpha, k):
    # Remark 1: P⁻/P⁺ = e^(m/τ) and K·P⁻ + P⁺ = 1
    ratio = math.exp(eqco_margin(alpha, k, 0.2) / 0.2)
    assert positive_prior(alpha) == pytest.approx(1 / (1 + k * ratio), rel=1e-9)


def test_the_rates_of_table_1():
    assert [scaled_learning_rate(0.03, n) for n in (256, 512, 1024)] == [0.03, 0.06, 0.12]


def test_the_two_rates_of_simclr_meet_at_4096():
    """Its paper: 0.3·N/256, or 0.075·√N with LARS; 4.8 both at N = 4096."""
    root = [scaled_learning_rate(0.075, n, rule="square-root") for n in (256, 4096, 8192)]
    assert root == pytest.approx([1.2, 4.8, 0.075 * math.sqrt(8192)])
    assert scaled_learning_rate(0.3, 4096) == pytest.approx(4.8)


@given(base=st.floats(1e-4, 10), n=counts, factor=st.integers(2, 9))
def test_the_rate_is_linear_in_queries_or_their_root(base, n, factor):
    for rule, growth in (("linear", factor), ("square-root", math.sqrt(factor))):
        one = scaled_learning_rate(base, n, rule=rule)
        assert scaled_learning_rate(base, n * factor, rule=rule) == pytest.approx(one * growth)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: eqco_margin(0, 16, 0.2), "alpha=0; it must be a finite number greater than 0"),
        (lambda: eqco_margin(math.nan, 16, 0.2), "alpha=nan"),
        (lambda: eqco_margin(math.inf, 16, 0.2), "alpha=inf"),
        (lambda: eqco_margin(256, 0, 0.2), "num_negatives=0; a query needs at least 1"),
        (lambda: eqco_margin(256, 16, -0.1), "temperature=-0.1"),
        (lambda: effective_alpha(math.inf, 16, 0.2), "margin=inf"),
        (lambda: scaled_learning_rate(0.03, 0), "num_queries=0"),
        (lambda: scaled_learning_rate(0.0, 8), "base=0.0"),
        (lambda: scaled_learning_rate(0.03, 8, reference=0), "reference=0"),
        (lambda: scaled_learning_rate(0.03, 8, rule="cubic"), "'linear' and 'square-root'"),
        (lambda: positive_prior(-1), "alpha=-1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("margin", [709.7, 1e308])
def test_a_margin_that_imitates_more_than_a_number_holds_is_refused(margin):
    with pytest.raises(InputError, match="more negatives than a number can hold"):
        effective_alpha(margin, 65536, 1.0)
