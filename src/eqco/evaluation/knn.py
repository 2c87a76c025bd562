"""Weighted k-nearest-neighbour classification on frozen features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.evaluation.features import Features
from eqco.runtime.errors import InputError

__all__ = ["knn_accuracy", "knn_scores"]

# Similarities held at once: 64 MiB of float32.
CHUNK_ELEMENTS = 2**24


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

    Args:
        queries: features to classify, (N, D).
        references: features with known labels, (M, D).
        labels: their classes, (M,).
        num_classes: C.
        neighbours: k ≤ M.
        temperature: τ of the votes.

    Returns:
        Scores, (N, C), scaled so that the nearest neighbour votes with weight 1.

    >>> references, labels = torch.eye(3), torch.tensor([0, 1, 1])
    >>> knn_scores(references[:1], references, labels, num_classes=2, neighbours=1)
    tensor([[1., 0.]])
    """
    if not 1 <= neighbours <= len(references):
        raise InputError(
            f"neighbours={neighbours}, but there are {len(references)} reference images. "
            f"Choose 1 to {len(references)}."
        )
    references = F.normalize(references.float(), dim=1)
    scores = torch.zeros(len(queries), num_classes, device=references.device)
    chunk = max(1, CHUNK_ELEMENTS // len(references))
    for start in range(0, len(queries), chunk):
        part = F.normalize(queries[start : start + chunk].float(), dim=1)
        cosine, place = (part @ references.T).topk(neighbours, dim=1)
        weight = torch.exp((cosine - cosine[:, :1]) / temperature)
        scores[start : start + chunk].scatter_add_(1, labels[place], weight)
    return scores


def knn_accuracy(
    test: Features, train: Features, *, neighbours: int = 200, temperature: float = 0.07
) -> float:
    """Share of test images whose class the neighbours vote for, between 0 and 1."""
    num_classes = int(torch.cat([train.labels, test.labels]).max()) + 1
    scores = knn_scores(
        test.values,
        train.values,
        train.labels,
        num_classes=num_classes,
        neighbours=neighbours,
        temperature=temperature,
    )
    return float((scores.argmax(dim=1) == test.labels).float().mean())
