"""Eq. 3, 4, 6, 7, 9, 10, 11, 14, 15."""

import math
import sys

import pytest
import torch
from drawing import random_cosines, seeds, unit_vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from eqco.runtime.errors import InputError
from eqco.theory import (
    approximate_gaussian_bound,
    best_critic_scale,
    eqco_margin,
    exact_gaussian_bound,
    expected_gradient_bound,
    gaussian_correlation,
    gaussian_information,
    gaussian_log_ratio,
    gaussian_pairs,
    gradient_bound,
    info_nce,
    info_nce_gradient,
    information_bound,
    is_guaranteed_bound,
    largest_overshoot,
    posterior,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(k=st.integers(1, 1000), alpha=st.floats(0.1, 1e6))
def test_collapse_reads_zero_whatever_k_and_alpha_are(k, alpha):
    same = torch.ones(1, dtype=torch.float64)
    margin = eqco_margin(alpha, k, 0.2)
    loss = info_nce(same, same.expand(1, k), temperature=0.2, margin=margin)
    assert information_bound(loss, alpha).abs().item() < 1e-9


@given(seed=seeds, k=st.integers(1, 30), margin=st.floats(-0.5, 0.5))
def test_eq_4_with_any_margin_uses_alpha_k_e_m_tau(seed, k, margin):
    positive, negative = random_cosines(seed, 4, k)
    loss = info_nce(positive, negative, temperature=0.2, margin=margin)
    printed = math.log(1 + k * math.exp(margin / 0.2)) - loss
    assert_close(information_bound(loss, k * math.exp(margin / 0.2)), printed)


@settings(max_examples=20)
@given(seed=seeds, k=st.integers(1, 20), share=st.floats(0.05, 1.0), sharpness=st.floats(0.1, 3))
def test_with_alpha_at_most_k_no_critic_reads_more_than_the_truth(seed, k, share, sharpness):
    """The guarantee of `is_guaranteed_bound`, for good and bad critics (within sampling error)."""
    correlation, dim = 0.9, 2
    x, y = gaussian_pairs(correlation, dim, 4000, generator(seed))
    others = torch.randn(4000, k, dim, dtype=torch.float64, generator=generator(seed + 1))
    positive = sharpness * gaussian_log_ratio(x, y, correlation)
    negative = sharpness * gaussian_log_ratio(x[:, None], others, correlation)
    alpha = share * k
    assert is_guaranteed_bound(alpha, k)
    loss = info_nce(positive, negative, temperature=1.0, margin=eqco_margin(alpha, k, 1.0))
    reading, error = information_bound(loss, alpha), loss.std() / math.sqrt(len(loss))
    assert reading.mean() < gaussian_information(correlation, dim) + 5 * error


@pytest.mark.parametrize(
    ("truth", "k", "alpha", "reading"), [(2, 4, 512, 2.8), (6, 64, 65536, 7.2)]
)
def test_with_alpha_far_above_k_the_true_ratio_reads_more_than_the_truth(truth, k, alpha, reading):
    correlation = gaussian_correlation(truth, 20)
    value = exact_gaussian_bound(
        correlation, 20, num_negatives=k, alpha=alpha, generator=generator()
    )
    assert value.item() == pytest.approx(reading, abs=0.1)
    assert not is_guaranteed_bound(alpha, k)
    assert truth < value < truth + largest_overshoot(alpha, k)


def log_ratios(truth, k, count=10_000):
    """True log-ratios of positive pairs, (N,), and of negative ones, (N, K)."""
    correlation = gaussian_correlation(truth, 20)
    x, y = gaussian_pairs(correlation, 20, count, generator())
    others = torch.randn(count, k, 20, dtype=torch.float64, generator=generator(1))
    ratios = gaussian_log_ratio(x[:, None], others, correlation)
    return gaussian_log_ratio(x, y, correlation), ratios


def reading(positive, negative, alpha, scale):
    margin = eqco_margin(alpha, negative.shape[1], 1.0)
    loss = info_nce(scale * positive, scale * negative, temperature=1.0, margin=margin)
    return information_bound(loss, alpha).mean().item()


@pytest.mark.parametrize(
    ("truth", "k", "alpha", "scale", "gain"),
    [(2, 4, 512, 3.0, 0.9), (6, 64, 65536, 3.1, 1.45), (2, 64, 8, 0.8, 0.035), (2, 64, 64, 1.0, 0)],
)
def test_with_a_margin_a_multiple_of_the_true_ratio_has_a_lower_loss(truth, k, alpha, scale, gain):
    """So L_opt is the optimum of Eq. 1 for α = K alone; no multiple passes the ceiling."""
    positive, negative = log_ratios(truth, k, 4000)
    best = best_critic_scale(positive, negative, alpha=alpha)
    assert best == pytest.approx(scale, rel=0.1)
    most = reading(positive, negative, alpha, best)
    assert most - reading(positive, negative, alpha, 1.0) == pytest.approx(gain, rel=0.1, abs=0.005)
    assert most < truth + largest_overshoot(alpha, k)


@given(seed=seeds, k=st.integers(1, 8), alpha=st.floats(0.1, 1e4))
def test_no_scale_of_a_grid_reads_more_than_the_best(seed, k, alpha):
    positive, negative = random_cosines(seed, 16, k)
    best = best_critic_scale(positive, negative, alpha=alpha)
    most = reading(positive, negative, alpha, best)
    grid = torch.linspace(0, 32, 65).tolist()
    # the search is off by at most 32/10000 in s, and |dL/ds| is at most a difference of cosines, 2
    off = 2 * 32 / 10_000
    assert all(reading(positive, negative, alpha, scale) <= most + off for scale in grid)


def test_the_best_scale_by_hand():
    # K = 1, α = 3, c_i − c_0 = −1 in three pairs of four, +1 in one: with z = e^s
    # 3·(3/z)/(1 + 3/z) = 3z/(1 + 3z), so 9/(z + 3) = 3z/(1 + 3z), z² − 6z − 3 = 0, z = 3 + √12
    positive = torch.tensor([1.0, 1, 1, -1], dtype=torch.float64)
    best = best_critic_scale(positive, torch.zeros(4, 1, dtype=torch.float64), alpha=3, largest=4)
    assert best == pytest.approx(math.log(3 + math.sqrt(12)), abs=1e-3)


def test_eq_3_some_pairs_are_less_likely_than_independent_ones():
    """Its last reason, P(k₀|q) ≥ P(k₀), fails for one in seven pairs at I = 2, d = 20.

    In each dimension the log-ratio less I/d is a quadratic form of two Gaussians with eigenvalues
    ±ρ/2, so the share is P(ρ/2·(χ²_d − χ'²_d) < −I), with independent χ².
    """
    correlation = gaussian_correlation(2.0, 20)
    ratio = gaussian_log_ratio(*gaussian_pairs(correlation, 20, 200_000, generator()), correlation)
    share = (ratio < 0).double().mean().item()
    assert share == pytest.approx(0.141, abs=0.004)
    first, second = (
        torch.randn(2, 200_000, 20, dtype=torch.float64, generator=generator(1)).square().sum(dim=2)
    )
    closed = (correlation / 2 * (first - second) < -2.0).double().mean().item()
    assert share == pytest.approx(closed, abs=0.004)


@given(truth=st.floats(0.1, 8.0), alpha=st.floats(0.5, 1e5))
def test_eq_3_last_line_holds_in_expectation(truth, alpha):
    """By Jensen: log(1 + αe^−r) is convex in r, and log(1 + αe^−I) ≥ log(1 + α) − I for I ≥ 0."""
    correlation = gaussian_correlation(truth, 20)
    value = approximate_gaussian_bound(
        correlation, 20, alpha=alpha, num_queries=5000, generator=generator()
    )
    # the deviation of r is ρ·√d, and that of log(1 + αe^−r) no larger
    error = 5 * correlation * math.sqrt(20 / 5000)
    ceiling = math.log1p(alpha) - math.log1p(alpha * math.exp(-truth))
    assert value.item() <= ceiling + error
    assert ceiling <= truth


def test_the_overshoot_is_log_of_one_plus_alpha_over_one_plus_k():
    # log(513/5) = log 102.6 = 4.6308
    assert largest_overshoot(512, 4) == pytest.approx(4.6308, abs=1e-4)
    assert largest_overshoot(4, 4) == largest_overshoot(1, 4) == 0


def test_eq_3_first_line_tends_to_its_approximation_as_k_grows():
    """Law of large numbers: at fixed α the exact value nears the K-free form from above."""
    correlation = gaussian_correlation(1.0, 20)
    limit = approximate_gaussian_bound(correlation, 20, alpha=64, generator=generator())
    gaps = [
        exact_gaussian_bound(
            correlation, 20, num_negatives=k, alpha=64, num_queries=5000, generator=generator(1)
        )
        - limit
        for k in (4, 32, 256)
    ]
    assert gaps[0] > gaps[1] > gaps[2] > -0.02
    assert abs(gaps[2]) < 0.05


def test_eq_6_is_the_bound_of_alpha_plain_negatives():
    correlation = gaussian_correlation(2.0, 20)
    mimicked = approximate_gaussian_bound(correlation, 20, alpha=256, generator=generator())
    physical = exact_gaussian_bound(
        correlation, 20, num_negatives=256, num_queries=5000, generator=generator(1)
    )
    assert mimicked.item() == pytest.approx(physical.item(), abs=0.1)


@given(seed=seeds, k=st.integers(1, 40), alpha=st.floats(0.5, 1e6), temperature=st.floats(0.05, 1))
def test_theorem_2_per_sample(seed, k, alpha, temperature):
    """Eq. 14: the norm of the closed-form gradient never exceeds the bound, nor the bound 2/τ."""
    queries, own, others = unit_vectors(seed, 4, 8), unit_vectors(seed + 1, 4, 8), None
    others = unit_vectors(seed + 2, k, 8)
    positive, negative = (queries * own).sum(dim=1), queries @ others.T
    setting = {"temperature": temperature, "margin": eqco_margin(alpha, k, temperature)}
    norm = info_nce_gradient(positive, negative, own, others, **setting).norm(dim=1)
    bound = gradient_bound(positive, negative, **setting)
    assert (norm <= bound * (1 + 1e-9)).all()
    assert (bound <= 2 / temperature * (1 + 1e-9)).all()
    missed = 1 - posterior(positive, negative, **setting)
    assert_close(bound, 2 / temperature * missed, rtol=1e-9, atol=1e-9)


@settings(max_examples=20)
@given(seed=seeds, k=st.integers(1, 32), alpha=st.floats(1, 1e5))
def test_theorem_2_in_expectation_over_draws_of_negatives(seed, k, alpha):
    """Eq. 7, by Jensen (Eq. 15): over draws from a finite population the mean norm is bounded."""
    population = unit_vectors(seed, 64, 8)
    query, own = unit_vectors(seed + 1, 1, 8), unit_vectors(seed + 2, 1, 8)
    draws = torch.randint(64, (800, k), generator=generator(seed))
    positive = (query * own).sum(dim=1)
    negative = (population @ query[0])[draws]
    norms = info_nce_gradient(
        positive.expand(800),
        negative,
        own.expand(800, 8),
        population[draws],
        temperature=0.2,
        margin=eqco_margin(alpha, k, 0.2),
    ).norm(dim=1)
    log_mean = torch.logsumexp(population @ query[0] / 0.2, 0) - math.log(64)
    bound = expected_gradient_bound(positive, log_mean[None], temperature=0.2, alpha=alpha)
    assert norms.mean() <= bound.item() + 5 * norms.std() / math.sqrt(800)


def test_the_bound_holds_for_saturated_queries_in_float32():
    """1 − posterior would round to 0 where the gradient is small but not zero."""
    positive, negative = torch.ones(1), -torch.ones(1, 1)
    keys = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
    norm = info_nce_gradient(positive, negative, *keys, temperature=0.07).norm()
    assert 0 < norm <= gradient_bound(positive, negative, temperature=0.07) * (1 + 1e-6)


def test_the_expected_bound_by_hand():
    # s_0 = 1, E[s_i] = 1, α = 3, τ = 0.5: 2/0.5 · (1 − 1/4) = 3
    bound = expected_gradient_bound(torch.zeros(1), torch.zeros(1), temperature=0.5, alpha=3)
    assert_close(bound, torch.tensor([3.0]))


@given(information=st.floats(0.0, 30.0), dim=st.integers(2, 50))
def test_eq_10_and_its_inverse(information, dim):
    correlation = gaussian_correlation(information, dim)
    assert 0 <= correlation < 1
    # near 1 the correlation has few digits of 1 − ρ² = e^(−2I/dim)
    rounding = dim * sys.float_info.epsilon * math.exp(2 * information / dim)
    assert gaussian_information(correlation, dim) == pytest.approx(information, abs=1e-6 + rounding)


def test_eq_10_by_hand():
    # −20/2 · log(1 − 0.25) = 10 · 0.287682
    assert gaussian_information(0.5, 20) == pytest.approx(2.87682, abs=1e-5)


def test_eq_9_gives_standard_gaussians_with_the_given_correlation():
    x, y = gaussian_pairs(0.7, 3, 200_000, generator())
    assert_close((x * y).mean(dim=0), torch.full((3,), 0.7, dtype=torch.float64), atol=0.01, rtol=0)
    assert_close(y.std(dim=0), torch.ones(3, dtype=torch.float64), atol=0.01, rtol=0)
    assert abs((x[:, 0] * y[:, 1]).mean().item()) < 0.01


@given(seed=seeds, correlation=st.floats(-0.95, 0.95))
def test_the_true_ratio_is_that_of_densities(seed, correlation):
    """Against torch's own Gaussian densities: log N(y; ρx, 1 − ρ²) − log N(y; 0, 1)."""
    x, y = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator(seed))
    given_x = torch.distributions.Normal(correlation * x, math.sqrt(1 - correlation**2))
    alone = torch.distributions.Normal(torch.zeros_like(x), 1.0)
    printed = (given_x.log_prob(y) - alone.log_prob(y)).sum(dim=1)
    assert_close(gaussian_log_ratio(x, y, correlation), printed, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_correlation(-1.0, 20), "information=-1.0"),
        (lambda: gaussian_correlation(math.nan, 20), "information=nan"),
        (lambda: gaussian_correlation(1.0, 0), "dim=0"),
        (lambda: gaussian_correlation(500.0, 1), "rounds to 1"),
        (lambda: gaussian_information(1.0, 20), "correlation=1.0"),
        (lambda: information_bound(torch.zeros(1), 0.0), "alpha=0.0"),
        (lambda: is_guaranteed_bound(4, 0), "num_negatives=0"),
        (lambda: exact_gaussian_bound(0.5, 20, num_negatives=0), "num_negatives=0"),
        (lambda: best_critic_scale(torch.ones(2), torch.ones(2, 3), alpha=0), "alpha=0"),
        (lambda: best_critic_scale(torch.ones(2), torch.ones(3, 3), alpha=1), "must be"),
        (lambda: gaussian_pairs(0.5, 0, 1, None), "dim=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, message):
    with pytest.raises(InputError, match=message):
        call()
