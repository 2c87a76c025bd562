"""Weighted kNN: a literal loop agrees, chunks change nothing, bad input is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from drawing import seeds
from hypothesis import given
from hypothesis import strategies as st

from eqco.data import open_source
from eqco.evaluation import (
    Features,
    extract_features,
    knn,
    knn_accuracy,
    knn_scores,
    pixel_features,
)
from eqco.runtime.errors import InputError


def features(seed, count, classes=3):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, 5, generator=generator)
    return Features(values, torch.randint(classes, (count,), generator=generator))


def scores_by_loop(query, train, neighbours, temperature, classes):
    cosines = [float(F.cosine_similarity(query, row, dim=0)) for row in train.values]
    nearest = sorted(range(len(cosines)), key=lambda i: -cosines[i])[:neighbours]
    scores = [0.0] * classes
    for i in nearest:
        scores[int(train.labels[i])] += math.exp((cosines[i] - cosines[nearest[0]]) / temperature)
    return scores


@given(seed=seeds, neighbours=st.integers(1, 12), temperature=st.floats(0.05, 1))
def test_votes_agree_with_a_literal_loop(seed, neighbours, temperature):
    train, test = features(seed, 12), features(seed + 1, 4)
    ours = knn_scores(
        test.values,
        train.values,
        train.labels,
        num_classes=3,
        neighbours=neighbours,
        temperature=temperature,
    )
    for row, query in zip(ours, test.values, strict=True):
        expected = scores_by_loop(query, train, neighbours, temperature, 3)
        assert row.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_chunks_change_nothing(monkeypatch):
    train, test = features(0, 50), features(1, 33)
    whole = knn_accuracy(test, train, neighbours=7)
    monkeypatch.setattr(knn, "CHUNK_ELEMENTS", 100)
    assert knn_accuracy(test, train, neighbours=7) == whole


def test_separable_features_are_classified_and_random_labels_are_not():
    labels = torch.arange(300) % 3
    values = F.one_hot(labels, 3).float() + 0.1 * torch.randn(300, 3)
    good = Features(values, labels)
    assert knn_accuracy(good, good, neighbours=20) == 1.0
    shuffled = Features(values, labels[torch.randperm(300)])
    assert knn_accuracy(good, shuffled, neighbours=20) < 0.6


@pytest.mark.parametrize("neighbours", [0, 13])
def test_more_neighbours_than_images_is_refused(neighbours):
    train = features(0, 12)
    with pytest.raises(InputError, match=f"neighbours={neighbours}, but there are 12"):
        knn_accuracy(train, train, neighbours=neighbours)


def test_features_come_in_the_order_of_the_images_and_pixels_are_features():
    split = open_source("groceries")["test"]
    few = split.subset(range(20))
    whole = pixel_features(few, size=16)
    assert whole.values.shape == (20, 3 * 16 * 16)
    assert torch.equal(whole.labels, few.labels)
    one = extract_features(lambda x: x.flatten(1), few.subset([7]), size=16)
    torch.testing.assert_close(one.values[0], whole.values[7])
