"""Dual temperature: InfoNCE whose queries weigh as they would at another temperature."""

import math

import pytest
import torch
from drawing import seeds
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.testing import assert_close

from eqco.contrast import Contrast, Negatives, Objective
from eqco.recipes import Recipe, with_settings
from eqco.runtime.errors import InputError


def drawn(seed, n=5, k=4, dim=6):
    generator = torch.Generator().manual_seed(seed)
    sizes = (n, dim), (n, dim), (k, dim)
    return [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]


def published(queries, positives, keys, tau, tau_2):
    """− sg[(1 − p(τ₂)) / (1 − p(τ))] · log p(τ), query by query."""
    total = 0.0
    keys = normalize(keys, dim=1)
    for query, positive in zip(normalize(queries, dim=1), normalize(positives, dim=1), strict=True):

        def probability(t, query=query, positive=positive):
            own = torch.exp(query @ positive / t)
            return own / (own + sum(torch.exp(query @ key / t) for key in keys))

        with torch.no_grad():
            weight = (1 - probability(tau_2)) / (1 - probability(tau))
        total = total - weight * torch.log(probability(tau))
    return total / len(queries)


@given(seed=seeds, tau=st.floats(0.1, 1.0), times=st.floats(0.5, 20.0))
def test_it_is_the_published_loss_with_its_gradient(seed, tau, times):
    queries, positives, keys = (each.requires_grad_() for each in drawn(seed))
    contrast = Contrast(queries, positives, Negatives(keys))
    ours = Objective(temperature=tau, second_temperature=times * tau)([contrast])
    theirs = published(queries, positives, keys, tau, times * tau)
    assert_close(ours, theirs)
    leaves = queries, positives, keys
    for own, other in zip(
        torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True
    ):
        assert_close(own, other)


def test_equal_temperatures_are_plain():
    contrast = Contrast(*drawn(0)[:2], Negatives(drawn(0)[2]))
    same = Objective(temperature=0.2, alpha=64, second_temperature=0.2)([contrast])
    assert_close(same, Objective(temperature=0.2, alpha=64)([contrast]))


def test_a_higher_temperature_weighs_an_easy_query_more():
    """Cosines 1 and 0, K = 1: p = 1/(1 + e^(−1/τ)), so that 1 − p is 0.1192 at τ = ½ and 0.2689
    at τ₂ = 1; the loss at τ is log(1 + e^−2) = 0.12693, and 0.12693 · 0.26894/0.11920 = 0.28637.
    """
    query, other = torch.eye(2, dtype=torch.float64)
    contrast = Contrast(query[None], query[None], Negatives(other[None]))
    loss = Objective(temperature=0.5, second_temperature=1.0)([contrast])
    assert loss.item() == pytest.approx(0.28637, abs=1e-5)


def test_a_loss_of_nothing_stays_finite():
    """Its weight is that of no gradient."""
    query = torch.eye(2)[:1]
    contrast = Contrast(query.requires_grad_(), query, Negatives(-query.detach()))
    loss = Objective(temperature=1e-3, second_temperature=1e-2)([contrast])
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(query.grad).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"second_temperature": 0.0}, "second_temperature=0.0; it must be a finite number"),
        ({"second_temperature": 1.0, "alpha": math.inf}, "they are two losses"),
        ({"second_temperature": 1.0, "normaliser": "instance"}, "they are two losses"),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        with_settings(Recipe(), **settings)


def test_recipes_without_it_are_written_as_before():
    from eqco.recipes import recipe_from_dict, recipe_to_dict

    assert "second_temperature" not in recipe_to_dict(Recipe())["objective"]
    dual = with_settings(Recipe(), second_temperature=2.0)
    assert recipe_from_dict(recipe_to_dict(dual)) == dual
