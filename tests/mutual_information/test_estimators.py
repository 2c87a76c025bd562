"""Each estimator against its literal formula and its guarantee."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from eqco.mutual_information import EqCo, InfoNCE, MultiLabelCPC, named_estimators
from eqco.runtime.errors import InputError
from eqco.theory import gaussian_correlation, gaussian_log_ratio, gaussian_pairs

EVERY = [InfoNCE(), EqCo(alpha=512), MultiLabelCPC(alpha=512), MultiLabelCPC(alpha=7)]


def random_logits(seed, num_critics=3, num_pairs=6):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_critics, num_pairs, num_pairs)
    return 2 * torch.randn(shape, dtype=torch.float64, generator=generator)


def in_batch(estimator, logits):
    return estimator.value(logits, torch.arange(logits.shape[-1]))


def positive_first(logits):
    """The scores of each query in another order: its positive, then its negatives."""
    own = torch.eye(logits.shape[-1], dtype=torch.bool)
    negative = logits[:, ~own].view(len(logits), len(own), len(own) - 1)
    return torch.cat([logits[:, own][..., None], negative], dim=2)


def first_column(scores):
    return torch.zeros(scores.shape[1], dtype=torch.long)


@pytest.mark.parametrize("estimator", EVERY)
def test_the_place_of_the_positive_does_not_matter(estimator):
    logits = random_logits(6)
    scores = positive_first(logits)
    assert_close(in_batch(estimator, logits), estimator.value(scores, first_column(scores)))


@pytest.mark.parametrize("estimator", [InfoNCE(), EqCo(alpha=512)])
def test_the_gradient_is_the_posterior_less_one_on_the_positive(estimator):
    """Eq. 13, per score: −N dL/ds = posterior − 1 on the query's own key."""
    logits = random_logits(0).requires_grad_()
    (gradient,) = torch.autograd.grad(-6 * in_batch(estimator, logits).sum(), logits)
    own = torch.eye(6).double()
    with torch.no_grad():
        ratio = estimator.alpha_at(5) / 5
        weights = torch.where(own > 0, 1 / ratio, 1.0) * logits.exp()
        assert_close(gradient, weights / weights.sum(-1, keepdim=True) - own)


def test_infonce_is_the_literal_loop():
    logits = random_logits(1)
    for critic, value in zip(logits, in_batch(InfoNCE(), logits), strict=True):
        total = 0.0
        for i in range(6):
            total += critic[i, i] - torch.log(sum(torch.exp(critic[i, j]) for j in range(6)))
        assert_close(value, math.log(6) + total / 6)


def test_eqco_at_alpha_equal_to_k_is_infonce_to_the_bit():
    logits = random_logits(2)
    assert torch.equal(in_batch(EqCo(alpha=5), logits), in_batch(InfoNCE(), logits))


def test_multi_label_cpc_is_the_literal_double_sum():
    scores = positive_first(random_logits(3))
    positive, negative = scores[..., 0], scores[..., 1:]
    n, m = 6, 6
    for alpha in (1.0, 5.0, 17.0):
        w = m / (1 + alpha)
        values = MultiLabelCPC(alpha=alpha).value(scores, first_column(scores))
        for b in range(len(positive)):
            own = sum(torch.exp(positive[b, j]) for j in range(n))
            rest = sum(torch.exp(negative[b, j, k]) for j in range(n) for k in range(m - 1))
            bottom = w * own + (m - w) / (m - 1) * rest
            terms = [torch.log(n * m * torch.exp(positive[b, i]) / bottom) for i in range(n)]
            assert_close(values[b], sum(terms) / n)


@pytest.mark.parametrize("estimator", EVERY)
def test_equal_scores_read_zero(estimator):
    """A collapsed critic knows nothing: log(1+α) − log(1+α) and log(nm) − log(nm)."""
    scores = torch.zeros(1, 4, 10).double()
    assert_close(estimator.value(scores, first_column(scores)), torch.zeros(1).double())


@pytest.mark.parametrize("estimator", EVERY)
@given(seed=st.integers(0, 2**31), scale=st.floats(0.1, 50.0))
@settings(max_examples=30, deadline=None)
def test_no_scores_pass_the_ceiling(estimator, seed, scale):
    ceiling = math.log1p(estimator.alpha_at(5))
    assert bool((in_batch(estimator, scale * random_logits(seed)) <= ceiling + 1e-9).all())


def true_ratio_value(estimator, information, num_negatives, num_queries, batches):
    """Mean and standard error with the true ratio, each query's negatives drawn for it alone."""
    generator = torch.Generator().manual_seed(5)
    correlation = gaussian_correlation(information, dim=5)
    x, y = gaussian_pairs(correlation, 5, batches * num_queries, generator)
    others = torch.randn(len(x), num_negatives, 5, dtype=torch.float64, generator=generator)
    keys = torch.cat([y[:, None], others], dim=1)
    scores = gaussian_log_ratio(x[:, None], keys, correlation).view(batches, num_queries, -1)
    values = estimator.value(scores, first_column(scores))
    return float(values.mean()), float(values.std() / math.sqrt(batches))


@pytest.mark.parametrize(
    "estimator",
    [InfoNCE(), EqCo(alpha=3), EqCo(alpha=1), MultiLabelCPC(alpha=3), MultiLabelCPC(alpha=24)],
)
def test_a_bound_stays_below_the_truth(estimator):
    """K = 3, n = 8; the two ends of the valid weights of multi-label CPC are α = K and α = nK."""
    if isinstance(estimator, MultiLabelCPC):
        estimator = MultiLabelCPC(estimator.alpha, separate_queries=8)
    assert estimator.kind(3) == "bound"
    assert estimator.overshoot(3) == 0
    value, error = true_ratio_value(estimator, 2.0, 3, num_queries=8, batches=20_000)
    assert value < 2.0 - 3 * error


def test_an_estimate_can_exceed_the_truth_but_not_by_more_than_it_says():
    for estimator in (EqCo(alpha=4096), MultiLabelCPC(alpha=4096, separate_queries=8)):
        assert estimator.kind(3) == "estimate"
        value, error = true_ratio_value(estimator, 2.0, 3, num_queries=8, batches=20_000)
        assert 2.0 + 3 * error < value < 2.0 + estimator.overshoot(3)


def test_overshoot_of_eqco_by_hand():
    """log((1+512)/(1+63)) = log 8.015625 = 2.0814."""
    assert_close(EqCo(alpha=512).overshoot(63), math.log(513 / 64))
    assert EqCo(alpha=63).overshoot(63) == 0


def test_overshoot_of_multi_label_cpc_by_hand():
    """n = 2, K = 3: valid for 3 ≤ α ≤ 6. α = 13: log(14/7). α = 1: w = 2, (m−w)/(m−1) = 2/3."""
    assert_close(MultiLabelCPC(13, separate_queries=2).overshoot(3), math.log(2))
    assert_close(MultiLabelCPC(1, separate_queries=2).overshoot(3), math.log(3 / 2))
    for alpha in (3, 6):
        assert MultiLabelCPC(alpha, separate_queries=2).kind(3) == "bound"


def test_an_unknown_estimator_is_answered_with_those_that_exist():
    with pytest.raises(InputError, match=r"'dcl'. There are: infonce, eqco, ml-cpc"):
        named_estimators(["infonce", "dcl"], alpha=512)


@pytest.mark.parametrize("alpha", [0, -1.0, math.nan, math.inf])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(InputError, match=r"alpha=.*greater than 0"):
        named_estimators(["infonce"], alpha=alpha)
    for make in (EqCo, MultiLabelCPC):
        with pytest.raises(InputError, match=r"alpha=.*greater than 0"):
            make(alpha)
