"""Weighted kNN: a literal loop agrees, chunks change nothing, bad input is refused."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drawing import seeds
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from eqco.data import open_source
from eqco.encoders import Pixels
from eqco.evaluation import (
    Features,
    extract_features,
    knn,
    knn_accuracy,
    knn_scores,
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
    whole = extract_features(Pixels(16), few, size=16)
    assert whole.values.shape == (20, 3 * 16 * 16)
    assert torch.equal(whole.labels, few.labels)
    one = extract_features(Pixels(16), few.subset([7]), size=16)
    torch.testing.assert_close(one.values[0], whole.values[7])


@pytest.mark.parametrize(("neighbours", "temperature"), [(1, 0.07), (20, 0.07), (200, 0.5)])
def test_predictions_are_those_of_scikit_learn(neighbours, temperature):
    centres = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))

    def drawn(seed, count):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(5, (count,), generator=generator)
        return Features(centres[labels] + 2 * torch.randn(count, 16, generator=generator), labels)

    train, test = drawn(1, 600), drawn(2, 300)
    theirs = KNeighborsClassifier(
        neighbours,
        metric="cosine",
        algorithm="brute",
        weights=lambda distance: np.exp((1 - distance) / temperature),
    ).fit(train.values.numpy(), train.labels.numpy())
    ours = knn.knn_predictions(test, train, neighbours=neighbours, temperature=temperature)
    assert ours.argmax(dim=1).tolist() == theirs.predict(test.values.numpy()).tolist()
    shares = ours / ours.sum(dim=1, keepdim=True)
    torch.testing.assert_close(
        shares.double(),
        torch.from_numpy(theirs.predict_proba(test.values.numpy())).double(),
        rtol=1e-3,
        atol=1e-4,
    )


def test_equal_references_share_the_places_and_change_no_vote():
    """Every reference three times over: three times the neighbours give three times the votes."""
    train, test = features(3, 20), features(4, 10)
    many = Features(train.values.repeat(3, 1), train.labels.repeat(3))
    once = knn.knn_predictions(test, train, neighbours=5)
    torch.testing.assert_close(knn.knn_predictions(test, many, neighbours=15), 3 * once)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: Features(f.values * float("nan"), f.labels), "12 of 12 test images are NaN"),
        (lambda f: Features(f.values[:, :3], f.labels), "have 3 numbers each and train features 5"),
        (lambda f: Features(f.values, f.labels + 5), "classes that train has no image of"),
        (lambda f: Features(f.values, f.labels * 0 - 1), "the test images have no labels"),
        (lambda f: Features(f.values[:0], f.labels[:0]), "there are no test images"),
        (lambda f: Features(f.values, f.labels[:3]), "with 3 labels"),
    ],
)
def test_features_that_cannot_be_compared_are_refused(change, message):
    train = features(0, 12)
    with pytest.raises(InputError, match=message):
        knn_accuracy(change(train), train, neighbours=3)


def test_a_temperature_of_zero_is_refused():
    train = features(0, 12)
    with pytest.raises(InputError, match="temperature=0"):
        knn_accuracy(train, train, neighbours=3, temperature=0.0)


def test_a_part_of_the_images_gives_its_rows_and_progress_counts_images():
    split = open_source("groceries")["test"].subset(range(20))
    done = []
    whole = extract_features(
        lambda x: x.flatten(1), split, size=16, batch_size=8, advance=done.append
    )
    part = extract_features(lambda x: x.flatten(1), split.subset(range(5, 15)), size=16)
    torch.testing.assert_close(part.values, whole.values[5:15])
    assert done == [8, 8, 4]
