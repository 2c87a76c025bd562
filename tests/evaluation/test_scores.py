"""Accuracies, intervals and confusions: by hand, by definition, by resampling images."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from drawing import seeds
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, top_k_accuracy_score

from eqco.evaluation.features import Features
from eqco.evaluation.maps import feature_map
from eqco.evaluation.scores import (
    class_scores,
    confusion,
    hits,
    interval_of_mean,
    share_interval,
    top_k,
)
from eqco.runtime.errors import InputError


@given(seed=seeds, k=st.integers(1, 6))
def test_top_k_and_confusions_are_those_of_scikit_learn(seed, k):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(50, 7, generator=generator)
    labels = torch.cat([torch.arange(7), torch.randint(7, (43,), generator=generator)])
    theirs = top_k_accuracy_score(labels.numpy(), scores.numpy(), k=k)
    assert top_k(scores, labels, k).value == pytest.approx(theirs)
    table = confusion_matrix(labels.numpy(), scores.argmax(dim=1).numpy())
    assert confusion(scores, labels).tolist() == table.tolist()


def test_equal_scores_count_as_the_argmax_does():
    scores = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    for labels in (torch.tensor([0, 1]), torch.tensor([1, 2])):
        assert torch.equal(hits(scores, labels), scores.argmax(dim=1) == labels)


@given(images=st.integers(2, 5000), share=st.floats(0, 1))
def test_the_interval_of_a_share_is_wilsons(images, share):
    right = round(share * images)
    found = share_interval(right, images)
    theirs = scipy.stats.binomtest(right, images).proportion_ci(0.95, method="wilson")
    assert found.value == right / images
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_the_interval_of_many_images_is_that_of_drawing_them_with_replacement():
    truth = (torch.arange(661) < 255).double()
    generator = torch.Generator().manual_seed(1)
    drawn = truth[torch.randint(661, (10_000, 661), generator=generator)].mean(dim=1)
    low, high = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    found = share_interval(255, 661)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1.5 / 661)


def test_none_and_all_right_are_no_points():
    """z² / (n + z²) of 6 images is 3.84 / 9.84."""
    none, every = share_interval(0, 6), share_interval(6, 6)
    assert (none.low, every.high) == (0, 1)
    assert none.high == pytest.approx(1.959964**2 / (6 + 1.959964**2))
    assert every.low == pytest.approx(1 - none.high)


def test_one_image_has_no_interval():
    with pytest.raises(InputError, match="1 test image; an accuracy with an interval needs"):
        share_interval(1, 1)


def test_a_class_says_what_it_is_taken_for():
    table = torch.tensor([[3, 0, 1], [0, 0, 0], [2, 2, 0]])
    first, last = class_scores(table, ("apple", "pear", "plum"))
    assert (first.name, first.images, first.accuracy) == ("apple", 4, 0.75)
    assert (first.mistaken_for, first.mistakes) == ("plum", 1)
    assert (last.name, last.accuracy, last.mistaken_for) == ("plum", 0.0, "apple")


def test_a_map_keeps_neighbours_together_and_is_repeatable():
    labels = torch.arange(90) % 3
    values = 10 * torch.eye(3)[labels] + torch.randn(90, 3, generator=torch.Generator())
    placed = feature_map(Features(values, labels), images=60)
    assert placed.places.shape == (60, 2)
    assert torch.equal(placed.labels, labels[placed.numbers])
    distance = torch.cdist(placed.places, placed.places).fill_diagonal_(float("inf"))
    assert (placed.labels[distance.argmin(dim=1)] == placed.labels).float().mean() > 0.95
    again = feature_map(Features(values, labels), images=60)
    assert torch.equal(again.places, placed.places)
    with pytest.raises(InputError, match="needs at least 5"):
        feature_map(Features(values[:4], labels[:4]))


@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=13))
def test_the_interval_of_a_mean_is_students(values):
    """Beside scipy's quantiles; those here have four digits."""
    scale = np.std(values, ddof=1) / math.sqrt(len(values))
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * scale
    low, high = interval_of_mean(values)
    assert (low + high) / 2 == pytest.approx(np.mean(values), abs=1e-9)
    assert (high - low) / 2 == pytest.approx(half, rel=2e-4, abs=1e-9)


def test_the_interval_of_many_values_is_never_too_narrow():
    values = list(range(40))
    half = scipy.stats.t.ppf(0.975, 39) * np.std(values, ddof=1) / math.sqrt(40)
    low, high = interval_of_mean(values)
    assert half < (high - low) / 2 < 1.1 * half


def test_one_value_has_no_interval():
    with pytest.raises(InputError, match="at least 2"):
        interval_of_mean([1.0])
