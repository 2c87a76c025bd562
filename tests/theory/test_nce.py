"""NCE as the memory banks published it: the formula with loops, a value by hand, the first Z."""

import math

import pytest
import torch
from torch.testing import assert_close

from eqco.runtime.errors import InputError
from eqco.theory import first_log_normaliser, noise_contrastive


def similarities(seed=0, num_queries=5, num_negatives=7):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(num_queries, 1 + num_negatives, dtype=torch.float64, generator=generator)
    return 2 * drawn[:, 0] - 1, 2 * drawn[:, 1:] - 1


def published_nce(positive, negative, temperature, normaliser, num_instances):
    """CMC's formula, pair by pair."""
    noise = negative.shape[1] / num_instances
    losses = []
    for n in range(len(positive)):
        p = math.exp(positive[n] / temperature) / normaliser
        loss = -math.log(p / (p + noise))
        for k in range(negative.shape[1]):
            p = math.exp(negative[n, k] / temperature) / normaliser
            loss -= math.log(noise / (p + noise))
        losses.append(loss)
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
@pytest.mark.parametrize("normaliser", [3.0, 4000.0])
def test_it_is_the_published_formula(temperature, normaliser):
    pair = similarities()
    ours = noise_contrastive(
        *pair, temperature=temperature, log_normaliser=math.log(normaliser), num_instances=50
    )
    assert_close(ours, published_nce(*pair, temperature, normaliser, 50), rtol=1e-12, atol=1e-12)


def test_it_stays_finite_at_any_temperature():
    pair = similarities()
    loss = noise_contrastive(*pair, temperature=1e-4, log_normaliser=0.0, num_instances=50)
    assert loss.isfinite().all()


def test_the_first_normaliser_is_the_mean_over_all_pairs_times_the_instances():
    positive, negative = similarities()
    pairs = [*positive.tolist(), *negative.flatten().tolist()]
    by_hand = 50 * sum(math.exp(each / 0.2) for each in pairs) / len(pairs)
    found = first_log_normaliser(positive, negative, temperature=0.2, num_instances=50)
    assert float(found.exp()) == pytest.approx(by_hand, rel=1e-12)


def test_with_the_true_normaliser_and_many_noise_draws_its_gradient_is_that_of_softmax():
    """The claim that NCE stands on: as K/n grows, dL/ds becomes that of the full softmax."""
    scores = similarities(3, 1, 9)
    every = torch.cat([scores[0][:, None], scores[1]], dim=1).requires_grad_()
    normaliser = every.exp().sum().log().item()
    copies = 4000  # of each of the ten instances, as noise
    loss = noise_contrastive(
        every[:, 0],
        every.repeat(1, copies),
        temperature=1.0,
        log_normaliser=normaliser,
        num_instances=10,
    ).sum()
    (found,) = torch.autograd.grad(loss, every)
    softmax = every.detach().softmax(dim=1)
    softmax[:, 0] -= 1
    assert_close(found, softmax, rtol=1e-2, atol=1e-3)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"must be \(N,\) and \(N, K\)"):
        noise_contrastive(
            torch.zeros(2), torch.zeros(3, 4), temperature=1.0, log_normaliser=0.0, num_instances=9
        )
