"""The probe: scikit-learn's minimum and predictions, found in any basis, without test images."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from eqco.evaluation import Features, probe
from eqco.evaluation.probe import (
    cross_entropy,
    fit_logistic,
    principal_axes,
    probe_accuracy,
    stratified_part,
)
from eqco.runtime.errors import InputError


def clusters(seed, count, classes=4, dim=12, distance=1.0, dtype=torch.float64):
    """Noisy points about a centre for each class, on axes of very different size."""
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(7), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    noise = torch.randn(count, dim, generator=generator, dtype=dtype)
    scale = torch.logspace(-2, 2, dim, dtype=dtype)
    return Features((distance * centres[labels] + noise) * scale, labels)


def standardise(test, train):
    scaler = StandardScaler().fit(train.values.numpy())
    return scaler.transform(test.values.numpy()), scaler.transform(train.values.numpy())


@pytest.mark.parametrize("penalty", [1.0, 0.01, 1e-4])
def test_the_minimum_is_that_of_scikit_learn(penalty):
    train = clusters(0, 500)
    _, values = standardise(train, train)
    theirs = LogisticRegression(C=1 / (len(values) * penalty), tol=1e-10, max_iter=10_000)
    theirs.fit(values, train.labels.numpy())
    ours = fit_logistic(
        torch.from_numpy(values), train.labels, num_classes=4, penalty=penalty, tolerance=1e-8
    )
    assert ours.converged
    torch.testing.assert_close(ours.weight, torch.from_numpy(theirs.coef_), rtol=1e-4, atol=1e-5)
    weight, bias = torch.from_numpy(theirs.coef_), torch.from_numpy(theirs.intercept_)
    loss, *_ = cross_entropy(torch.from_numpy(values), train.labels, weight, bias)
    assert ours.loss == pytest.approx(loss + penalty / 2 * float(weight.square().sum()), rel=1e-9)


@pytest.mark.parametrize(("count", "dim"), [(600, 12), (40, 200)])
def test_predictions_are_those_of_scikit_learn(count, dim):
    """Also with more numbers than images, where the probe works in the space they span."""
    train, test = clusters(1, count, dim=dim), clusters(2, 300, dim=dim)
    scaled_test, values = standardise(test, train)
    penalty = 0.01
    theirs = LogisticRegression(C=1 / (count * penalty), tol=1e-8, max_iter=10_000)
    theirs.fit(values, train.labels.numpy())
    ours = probe_accuracy(test, train, penalties=[penalty])
    agreeing = ours.scores.argmax(dim=1).numpy() == theirs.predict(scaled_test)
    assert agreeing.mean() >= 0.995
    assert ours.accuracy == pytest.approx(
        theirs.score(scaled_test, test.labels.numpy()), abs=1 - agreeing.mean() + 1e-12
    )


def test_the_gradient_is_that_of_autograd_in_any_chunks(monkeypatch):
    train = clusters(3, 50)
    weight = torch.randn(4, 12, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(train.values @ weight.T + bias, train.labels)
    loss.backward()
    monkeypatch.setattr(probe, "CHUNK_ELEMENTS", 16 * 7)
    with torch.no_grad():
        value, slope, shift = cross_entropy(train.values, train.labels, weight, bias)
    assert value == pytest.approx(loss.item())
    torch.testing.assert_close(slope, weight.grad)
    torch.testing.assert_close(shift, bias.grad)


@pytest.mark.parametrize(("count", "dim"), [(50, 8), (8, 50)])
def test_principal_axes_are_orthonormal_and_lose_nothing(count, dim):
    values = clusters(4, count, dim=dim).values
    axes, moment = principal_axes(values)
    identity = torch.eye(min(count, dim), dtype=torch.float64)
    torch.testing.assert_close(axes.T @ axes, identity)
    torch.testing.assert_close(values @ axes @ axes.T, values)
    torch.testing.assert_close((values @ axes).square().mean(dim=0), moment)


def test_the_scale_of_features_changes_nothing():
    train, test = clusters(5, 300, distance=0.5), clusters(6, 200, distance=0.5)
    once = probe_accuracy(test, train)
    factor = torch.logspace(-3, 3, 12, dtype=torch.float64)
    again = probe_accuracy(
        Features(test.values * factor, test.labels), Features(train.values * factor, train.labels)
    )
    assert again.accuracy == once.accuracy
    assert again.held_out == once.held_out


def test_the_penalty_is_chosen_on_train_alone():
    train, test = clusters(8, 300), clusters(9, 100)
    nonsense = Features(test.values, (test.labels + 1) % 4)
    one, other = probe_accuracy(test, train), probe_accuracy(nonsense, train)
    assert (one.penalty, one.held_out) == (other.penalty, other.held_out)
    assert one.held_out[one.penalty] == max(one.held_out.values())
    assert one.accuracy > 0.9
    assert other.accuracy < 0.1


def test_the_part_set_aside_has_each_class_and_leaves_each_class():
    labels = torch.tensor([0] * 50 + [1] * 2 + [2])
    mask = stratified_part(labels, 0.2, seed=0)
    assert labels[mask].bincount(minlength=3).tolist() == [10, 1, 0]


def test_what_cannot_be_fitted_is_refused():
    train = clusters(0, 60)
    single = Features(train.values[:2], torch.tensor([0, 1]))
    with pytest.raises(InputError, match="single image"):
        probe_accuracy(single, single)
    with pytest.raises(InputError, match=r"penalties=\(0.0,\)"):
        probe_accuracy(train, train, penalties=[0.0])
    with pytest.raises(InputError, match=r"held_out=1\.0"):
        probe_accuracy(train, train, held_out=1.0)
    unknown = Features(train.values, train.labels + 1)
    with pytest.raises(InputError, match=r"classes that train has no image of \(number 4\)"):
        probe_accuracy(unknown, train)
    named = Features(unknown.values, unknown.labels, ("ant", "bee", "cat", "dog", "eel"))
    with pytest.raises(InputError, match=r"classes that train has no image of \(eel\)"):
        probe_accuracy(named, train)
    broken = Features(
        train.values.clone().index_fill_(0, torch.tensor([3]), float("nan")), train.labels
    )
    with pytest.raises(InputError, match="1 of 60 train images are NaN"):
        probe_accuracy(train, broken)
