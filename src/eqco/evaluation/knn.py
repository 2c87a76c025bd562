"""Weighted k-nearest-neighbour classification on frozen features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.evaluation.features import Features, check_pair
from eqco.runtime.errors import InputError

__all__ = ["knn_accuracy", "knn_predictions", "knn_scores", "nearest", "usual_neighbours"]

# Similarities held at once: 64 MiB of float32.
CHUNK_ELEMENTS = 2**24


def nearest(queries: Tensor, references: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """The nearest references by cosine, exact, a part of the queries at a time.

    Queries (N, D) and references (M, D) give the cosines, falling, and the numbers of the nearest
    k ≤ M references: both (N, k). Which of several at the same distance come last is not defined.

    >>> cosine, place = nearest(torch.tensor([[2.0, 1.0]]), torch.eye(2), 2)
    >>> place
    tensor([[0, 1]])
    """
    if not 1 <= neighbours <= len(references):
        raise InputError(
            f"neighbours={neighbours}, but there are {len(references)} reference images. "
            f"Choose 1 to {len(references)}."
        )
    references = F.normalize(references.float(), dim=1)
    cosines = references.new_empty(len(queries), neighbours)
    places = torch.empty_like(cosines, dtype=torch.long)
    chunk = max(1, CHUNK_ELEMENTS // len(references))
    similarity = references.new_empty(min(chunk, len(queries)), len(references))
    for start in range(0, len(queries), chunk):
        part = F.normalize(queries[start : start + chunk].float(), dim=1)
        rows = slice(start, start + len(part))
        torch.mm(part, references.T, out=similarity[: len(part)])
        cosines[rows], places[rows] = similarity[: len(part)].topk(neighbours, dim=1)
    return cosines, places


def knn_scores(
    queries: Tensor,
    references: Tensor,
    labels: Tensor,
    *,
    num_classes: int,
    neighbours: int = 200,
    temperature: float = 0.07,
) -> Tensor:
    r"""Votes for each class by the nearest references (Wu et al., 2018), exact.

    .. math:: s_c = \sum_{i \in N_k} e^{\cos(q, x_i)/\tau} [y_i = c]

    Queries (N, D) and references (M, D) with labels (M,) give scores (N, C), scaled so that the
    nearest neighbour votes with weight 1; k is `neighbours` ≤ M, τ `temperature`.

    >>> references, labels = torch.eye(3), torch.tensor([0, 1, 1])
    >>> knn_scores(references[:1], references, labels, num_classes=2, neighbours=1)
    tensor([[1., 0.]])
    """
    if not temperature > 0:
        raise InputError(f"temperature={temperature}; it must be greater than 0.")
    cosine, place = nearest(queries, references, neighbours)
    weight = torch.exp((cosine - cosine[:, :1]) / temperature)
    scores = torch.zeros(len(queries), num_classes, device=weight.device)
    return scores.scatter_add_(1, labels[place], weight)


def knn_predictions(
    test: Features, train: Features, *, neighbours: int = 200, temperature: float = 0.07
) -> Tensor:
    """Votes of the train images for each class of each test image, (N, C); checked features."""
    return knn_scores(
        test.values,
        train.values,
        train.labels,
        num_classes=check_pair(test, train),
        neighbours=neighbours,
        temperature=temperature,
    )


def knn_accuracy(
    test: Features, train: Features, *, neighbours: int = 200, temperature: float = 0.07
) -> float:
    """Share of test images whose class the neighbours vote for, between 0 and 1."""
    scores = knn_predictions(test, train, neighbours=neighbours, temperature=temperature)
    return float((scores.argmax(dim=1) == test.labels).float().mean())


def usual_neighbours(images: int) -> int:
    """k of kNN where none is given: 200 as is published for large data, 20 below 5000 images.

    >>> usual_neighbours(50_000), usual_neighbours(675), usual_neighbours(7)
    (200, 20, 7)
    """
    return 200 if images >= 5000 else min(20, images)
