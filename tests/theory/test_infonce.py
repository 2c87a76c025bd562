"""Eq. 1, 2, 12 and 13."""

import math

import pytest
import torch
from drawing import random_cosines, seeds, unit_vectors
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from eqco.runtime.errors import InputError
from eqco.theory import eqco_margin, gradient_bound, info_nce, info_nce_gradient, posterior


def eq1_transcribed(positive, negative, temperature, margin):
    """Eq. 1 as printed: exponentials, a sum, a quotient, a logarithm."""
    losses = []
    for own, others in zip(positive.tolist(), negative.tolist(), strict=True):
        numerator = math.exp((own - margin) / temperature)
        denominator = numerator
        for other in others:
            denominator += math.exp(other / temperature)
        losses.append(-math.log(numerator / denominator))
    return torch.tensor(losses, dtype=torch.float64)


@given(
    seed=seeds,
    k=st.integers(1, 40),
    temperature=st.floats(0.05, 2.0),
    margin=st.floats(-1.0, 1.0),
)
def test_eq_1_agrees_with_its_literal_transcription(seed, k, temperature, margin):
    positive, negative = random_cosines(seed, num_queries=3, num_negatives=k)
    ours = info_nce(positive, negative, temperature=temperature, margin=margin)
    printed = eq1_transcribed(positive, negative, temperature, margin)
    assert_close(ours, printed, rtol=1e-9, atol=1e-9)


@given(seed=seeds, k=st.integers(1, 64), alpha=st.floats(1.0, 1e6))
def test_eq_12_is_eq_1_with_the_margin_of_eq_5(seed, k, alpha):
    positive, negative = random_cosines(seed, num_queries=4, num_negatives=k)
    s0, s = torch.exp(positive / 0.2), torch.exp(negative / 0.2)
    printed = -torch.log(s0 / (s0 + alpha / k * s.sum(dim=1)))
    ours = info_nce(positive, negative, temperature=0.2, margin=eqco_margin(alpha, k, 0.2))
    assert_close(ours, printed, rtol=1e-9, atol=1e-9)


def test_a_value_worked_out_by_hand():
    # (1 − 0)/0.5 = 2: L = −log(e²/(e² + 2)) = log(1 + 2e⁻²) = log(1.27067) = 0.23955
    loss = info_nce(torch.tensor([1.0]), torch.zeros(1, 2), temperature=0.5)
    assert_close(loss, torch.tensor([math.log(1 + 2 * math.exp(-2))]))


def test_equal_cosines_give_log_one_plus_alpha():
    same = torch.full((1,), 0.5, dtype=torch.float64)
    for k in (1, 4, 500):
        margin = eqco_margin(256, k, 0.2)
        loss = info_nce(same, same.expand(1, k), temperature=0.2, margin=margin)
        assert_close(loss, torch.tensor([math.log(257)], dtype=torch.float64))


@given(seed=seeds, k=st.integers(1, 64), copies=st.integers(2, 5), alpha=st.floats(1.0, 1e6))
def test_eqco_ignores_repeated_negatives(seed, k, copies, alpha):
    positive, negative = random_cosines(seed, num_queries=4, num_negatives=k)
    once = info_nce(positive, negative, temperature=0.2, margin=eqco_margin(alpha, k, 0.2))
    many = info_nce(
        positive,
        negative.repeat(1, copies),
        temperature=0.2,
        margin=eqco_margin(alpha, k * copies, 0.2),
    )
    assert_close(many, once, rtol=1e-9, atol=1e-9)


@given(seed=seeds, k=st.integers(1, 64), copies=st.integers(2, 5))
def test_plain_info_nce_does_not_ignore_them(seed, k, copies):
    positive, negative = random_cosines(seed, num_queries=4, num_negatives=k)
    once = info_nce(positive, negative, temperature=0.2)
    many = info_nce(positive, negative.repeat(1, copies), temperature=0.2)
    assert (many > once).all()


@given(seed=seeds, k=st.integers(1, 16))
def test_alpha_to_infinity_tends_to_the_decoupled_loss(seed, k):
    positive, negative = random_cosines(seed, num_queries=4, num_negatives=k)
    decoupled = torch.logsumexp(negative / 0.2, dim=1) - positive / 0.2
    distances = []
    for alpha in (1e3, 1e6, 1e9):
        margin = eqco_margin(alpha, k, 0.2)
        loss = info_nce(positive, negative, temperature=0.2, margin=margin)
        distances.append((loss - math.log(alpha / k) - decoupled).abs().max())
    # softplus(x) − x ≤ e^−x, and x ≥ log(α/K) − 2/τ
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] <= k / 1e9 * math.exp(2 / 0.2) * 1.01


def test_extreme_temperatures_stay_finite_in_float32():
    positive, negative = torch.tensor([-1.0, 1.0]), torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    loss = info_nce(positive, negative, temperature=0.01, margin=eqco_margin(1e9, 2, 0.01))
    assert torch.isfinite(loss).all()


@given(seed=seeds, k=st.integers(1, 40), margin=st.floats(-0.5, 0.5))
def test_eq_2_is_bayes_rule_and_eq_1_its_negative_logarithm(seed, k, margin):
    positive, negative = random_cosines(seed, num_queries=3, num_negatives=k)
    prior_ratio = math.exp(-margin / 0.2)
    ratio0, ratio = torch.exp(positive / 0.2), torch.exp(negative / 0.2)
    printed = prior_ratio * ratio0 / (prior_ratio * ratio0 + ratio.sum(dim=1))
    ours = posterior(positive, negative, temperature=0.2, margin=margin)
    assert_close(ours, printed, rtol=1e-9, atol=1e-12)
    loss = info_nce(positive, negative, temperature=0.2, margin=margin)
    assert_close(-torch.log(ours), loss, rtol=1e-7, atol=1e-9)


def test_eq_2_by_hand():
    # equal ratios, P⁺/P⁻ = e^(−m/τ) = 1/2, K = 3: 0.5 / (0.5 + 3) = 1/7
    margin = 0.2 * math.log(2)
    probability = posterior(torch.zeros(1), torch.zeros(1, 3), temperature=0.2, margin=margin)
    assert_close(probability, torch.tensor([1 / 7]))


@given(seed=seeds, k=st.integers(1, 30), alpha=st.floats(0.5, 1e6))
def test_eq_13_with_s_i_in_the_second_sum_is_what_autograd_finds(seed, k, alpha):
    queries = unit_vectors(seed, 4, 8).requires_grad_()
    own, others = unit_vectors(seed + 1, 4, 8), unit_vectors(seed + 2, k, 8)
    setting = {"temperature": 0.2, "margin": eqco_margin(alpha, k, 0.2)}
    positive, negative = (queries * own).sum(dim=1), queries @ others.T
    info_nce(positive, negative, **setting).sum().backward()
    closed = info_nce_gradient(positive.detach(), negative.detach(), own, others, **setting)
    assert_close(closed, queries.grad, rtol=1e-9, atol=1e-12)


def test_eq_13_as_printed_is_not_the_gradient():
    """The misprint, kept as a fact: s_0 in the second sum does not agree with autograd."""
    queries = unit_vectors(0, 4, 8).requires_grad_()
    own, others = unit_vectors(1, 4, 8), unit_vectors(2, 5, 8)
    positive, negative = (queries * own).sum(dim=1), queries @ others.T
    info_nce(positive, negative, temperature=0.2).sum().backward()
    s0, s = torch.exp(positive / 0.2), torch.exp(negative / 0.2)
    share = (s0 / (s0 + s.sum(dim=1)))[:, None]
    printed = (-(1 - share) * own + share * others.sum(dim=0)) / 0.2
    assert (printed - queries.grad).abs().max() > 0.1


def test_the_gradient_takes_keys_of_each_query():
    own, others = unit_vectors(1, 4, 8), unit_vectors(2, 4, 5, 8)
    queries = unit_vectors(0, 4, 8)
    positive = (queries * own).sum(dim=1)
    negative = (others @ queries[:, :, None])[:, :, 0]
    whole = info_nce_gradient(positive, negative, own, others, temperature=0.2)
    for n in range(4):
        row = slice(n, n + 1)
        single = info_nce_gradient(
            positive[row], negative[row], own[row], others[n], temperature=0.2
        )
        assert_close(whole[row], single)


@pytest.mark.parametrize("function", [info_nce, posterior, gradient_bound])
@pytest.mark.parametrize(
    ("positive", "negative", "temperature", "message"),
    [
        (torch.zeros(4, 1), torch.zeros(4, 3), 0.2, r"shape \(4, 1\).*must be \(N,\) and \(N, K\)"),
        (torch.zeros(4), torch.zeros(3), 0.2, r"\(3,\) with the negatives"),
        (torch.zeros(4), torch.zeros(3, 4), 0.2, r"\(3, 4\) with the negatives"),
        (torch.zeros(4), torch.zeros(4, 0), 0.2, "at least 1 negative"),
        (torch.zeros(4), torch.zeros(4, 3), 0.0, "temperature=0.0"),
        (torch.zeros(4), torch.zeros(4, 3), -1.0, "temperature=-1.0"),
    ],
)
def test_shapes_that_would_spread_are_refused(function, positive, negative, temperature, message):
    with pytest.raises(InputError, match=message):
        function(positive, negative, temperature=temperature)


def test_eq_1_is_exact_in_float64_where_the_loss_is_large():
    odds = torch.tensor([15.0, 25.0, 39.0, 41.0, 700.0], dtype=torch.float64)
    found = info_nce(torch.zeros_like(odds), odds[:, None], temperature=1.0)
    exact = [value + math.log1p(math.exp(-value)) for value in odds.tolist()]
    assert_close(found, torch.tensor(exact, dtype=torch.float64), rtol=1e-15, atol=0)
