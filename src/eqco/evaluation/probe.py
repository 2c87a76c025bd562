"""A logistic regression on frozen features: what a linear classifier can read, in seconds.

Paper: this is not the paper's protocol (`eqco.evaluation.linear`), which trains on random crops by
SGD. It uses one fixed view of each image, and finds the optimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.evaluation.features import Features, check_pair
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["PENALTIES", "LinearMap", "ProbeResult", "fit_logistic", "probe_accuracy"]

# Strong to weak, so that each fit starts from the one before.
PENALTIES = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
# Features and scores worked on at once while fitting: 4 MiB of float32, for the cache.
CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True)
class LinearMap:
    """Scores weight·x + bias: weight (C, D), bias (C,), and how the fit ended."""

    weight: Tensor
    bias: Tensor
    loss: float  # mean cross-entropy with the penalty
    converged: bool

    def __call__(self, values: Tensor) -> Tensor:
        """Scores of each class, (N, C)."""
        return torch.addmm(self.bias, values, self.weight.T)


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What the probe found on the test images."""

    scores: Tensor  # (N, C), not normalised
    accuracy: float  # share of test images whose class has the highest score
    penalty: float  # λ, chosen on a part of train
    held_out: dict[float, float]  # λ -> accuracy on that part
    converged: bool


def probe_accuracy(
    test: Features,
    train: Features,
    *,
    penalties: Sequence[float] = PENALTIES,
    held_out: float = 0.2,
    seed: int = 0,
) -> ProbeResult:
    """Logistic regression on `train`, tested on `test`. A stand-in for the linear protocol.

    Features are standardised by the mean and deviation of train. The penalty is the one that does
    best on a part of train that the others are fitted without; then all of train is fitted with it.
    Test images are used once, at the end.

    Args:
        test: features to classify.
        train: features to learn from.
        penalties: λ to choose from, of the mean cross-entropy + λ/2 ‖weight‖².
        held_out: share of each class of train on which λ is chosen.
        seed: of that part.

    >>> values = torch.tensor([[0.0], [0.2], [0.3], [0.8], [0.9], [1.0]])
    >>> features = Features(values, torch.tensor([0, 0, 0, 1, 1, 1]))
    >>> probe_accuracy(features, features, held_out=0.4).accuracy
    1.0
    """
    num_classes = check_pair(test, train)
    if not penalties or min(penalties) <= 0:
        raise InputError(f"penalties={tuple(penalties)}; give one or more numbers above 0.")
    mean, scale = train.values.mean(dim=0), train.values.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    values = (train.values - mean) / scale
    basis, spread = principal_axes(values)
    values = values @ basis
    found: dict[float, float] = {}
    penalties = sorted(penalties, reverse=True)
    if len(penalties) > 1:
        aside = stratified_part(train.labels, held_out, seed)
        known, held_out_values = values[~aside], values[aside]
        start = None
        for penalty in penalties:
            start = fit_logistic(
                known,
                train.labels[~aside],
                num_classes=num_classes,
                penalty=penalty,
                start=start,
                spread=spread,
            )
            right = start(held_out_values).argmax(dim=1) == train.labels[aside]
            found[penalty] = float(right.double().mean())
    best = max(penalties, key=lambda penalty: found.get(penalty, 0.0))
    classifier = fit_logistic(
        values, train.labels, num_classes=num_classes, penalty=best, spread=spread
    )
    scores = classifier(((test.values - mean) / scale) @ basis)
    return ProbeResult(
        scores=scores,
        accuracy=float((scores.argmax(dim=1) == test.labels).double().mean()),
        penalty=best,
        held_out=found,
        converged=classifier.converged,
    )


def fit_logistic(
    values: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    penalty: float,
    start: LinearMap | None = None,
    spread: Tensor | None = None,
    max_steps: int = 500,
    tolerance: float = 1e-4,
) -> LinearMap:
    r"""The minimum of the penalised cross-entropy, by L-BFGS.

    .. math:: \frac{1}{N} \sum_i -\log \text{softmax}(W x_i + b)_{y_i}
              + \frac{\lambda}{2} \|W\|^2

    This is scikit-learn's `LogisticRegression` with C = 1/(N λ). The search runs over weights
    scaled by `spread`, which makes the valley round when features differ much in size; the minimum
    is the same.

    Args:
        values: features, (N, D).
        labels: their classes, (N,).
        num_classes: C.
        penalty: λ; the bias is free of it.
        start: where to begin; at zero if None.
        spread: mean square of each feature, (D,); measured if None.
        max_steps: of L-BFGS; `converged` says if they sufficed.
        tolerance: the largest entry of the gradient at the end.
    """
    if spread is None:
        spread = values.square().mean(dim=0)
    # Böhning's bound: the Hessian is at most half the features' second moment, plus λ
    rescale = (spread / 2 + penalty).rsqrt()
    free = torch.zeros(num_classes, len(rescale) + 1, dtype=values.dtype, device=values.device)
    if start is not None:
        free[:, :-1], free[:, -1] = start.weight / rescale, start.bias
    free.requires_grad_()
    optimiser = torch.optim.LBFGS(
        [free],
        max_iter=max_steps,
        max_eval=2 * max_steps,
        history_size=20,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    @torch.no_grad()
    def closure() -> float:
        weight = free[:, :-1] * rescale
        loss, slope, shift = cross_entropy(values, labels, weight, free[:, -1])
        slope += penalty * weight
        free.grad = torch.cat([slope * rescale, shift[:, None]], dim=1)
        return loss + 0.5 * penalty * float(weight.square().sum())

    optimiser.step(closure)
    loss = closure()
    assert free.grad is not None
    result = free.detach()
    return LinearMap(
        weight=result[:, :-1] * rescale,
        bias=result[:, -1].clone(),
        loss=loss,
        converged=float(free.grad.abs().max()) <= tolerance,
    )


def cross_entropy(
    values: Tensor, labels: Tensor, weight: Tensor, bias: Tensor
) -> tuple[float, Tensor, Tensor]:
    """Mean cross-entropy with its gradients by weight and bias, a part of the images at a time.

    Scores are kept class by class, (C, n): with few classes several times faster than (n, C).
    """
    loss = 0.0
    slope, shift = torch.zeros_like(weight), torch.zeros_like(bias)
    rows = max(1, CHUNK_ELEMENTS // sum(weight.shape))
    for part, truth in zip(values.split(rows), labels.split(rows), strict=True):
        log_share = F.log_softmax(torch.addmm(bias[:, None], weight, part.T), dim=0)
        loss -= float(log_share.gather(0, truth[None]).sum(dtype=torch.float64))
        error = log_share.exp_()
        error.scatter_add_(0, truth[None], error.new_full((1, len(truth)), -1.0))
        slope.addmm_(error, part)
        shift += error.sum(dim=1)
    count = len(values)
    return loss / count, slope / count, shift / count


def principal_axes(values: Tensor) -> tuple[Tensor, Tensor]:
    """A basis of the space the features span, (D, R), and their mean square along each axis, (R,).

    A penalty on ‖weight‖² does not see a rotation, and weights outside that space would be zero:
    the regression has the same answer in this basis, with at most N numbers for each image, and
    features that are uncorrelated.
    """
    count, dim = values.shape
    if dim <= count:
        moment, axes = torch.linalg.eigh(values.T @ values / count)
        return axes, moment.clamp(min=0)
    span = torch.linalg.qr(values.T).Q  # few images of many numbers
    axes, moment = principal_axes(values @ span)
    return span @ axes, moment


def stratified_part(labels: Tensor, share: float, seed: int) -> Tensor:
    """A mask of about that share of each class, at least one image and never all of a class."""
    if not 0 < share < 1:
        raise InputError(f"held_out={share}; it must lie between 0 and 1.")
    mask = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    generator = generator_for("held out", seed)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        take = min(max(1, round(share * len(members))), len(members) - 1)
        order = torch.randperm(len(members), generator=generator, device="cpu").to(labels.device)
        mask[members[order[:take]]] = True
    if not mask.any():
        raise InputError(
            "every class of train has a single image, so that none can be set aside to choose the "
            "penalty on. Give more images, or one penalty."
        )
    return mask
