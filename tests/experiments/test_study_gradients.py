"""Bias and noise of the gradient: the estimates, and the gradients they are made of."""

import math

import pytest
import torch

from eqco.contrast import Contrast, Negatives, RunningNormaliser
from eqco.experiments.study_gradients import GradientMoments, gradient_of, summary

N, D = 8, 4


@pytest.fixture
def contrast():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(D, D, generator=generator, dtype=torch.float64, requires_grad=True)
    images, keys, others = torch.randn(3, N, D, generator=generator, dtype=torch.float64)
    return weight, Contrast(images @ weight, keys, Negatives(others))


def test_moments_of_draws_find_the_mean_and_the_variance_they_were_drawn_with():
    generator = torch.Generator().manual_seed(0)
    mean, reference = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([1.0, 2.0, 2.0])
    several = []
    for _ in range(2000):
        moments = GradientMoments(reference)
        for _ in range(4):
            moments.add(mean + torch.randn(3, generator=generator))
        several.append(moments)
    found = summary(several)
    assert found["length"] == pytest.approx(5 / 3, rel=0.01)
    assert found["noise"] == pytest.approx(math.sqrt(3) / 5, rel=0.02)
    assert found["direction"] == pytest.approx(11 / 15, abs=0.01)


def test_the_gradient_is_that_of_backward_through_the_network(contrast):
    weight, given = contrast
    found = gradient_of(given, None, 64.0, 0.2, [weight])
    queries = torch.nn.functional.normalize(given.queries, dim=1)
    keys = torch.nn.functional.normalize(given.positives, dim=1)
    others = torch.nn.functional.normalize(given.negatives.keys, dim=1)
    positive = (queries * keys).sum(1) / 0.2
    negative = (queries @ others.T / 0.2).exp().mean(1).log() + math.log(64)
    loss = torch.nn.functional.softplus(negative - positive).mean()
    (expected,) = torch.autograd.grad(loss, weight, retain_graph=True)
    torch.testing.assert_close(found, expected.flatten())


def test_normalisers_that_have_seen_all_keys_give_the_gradient_of_all_keys(contrast):
    weight, given = contrast
    normaliser = RunningNormaliser(N, temperature=0.2, alpha=64.0, decay=0.5)
    expected = gradient_of(given, None, 64.0, 0.2, [weight])
    for _ in range(3):
        found = gradient_of(given, normaliser, 64.0, 0.2, [weight])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
