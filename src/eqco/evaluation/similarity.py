"""Vectors searched by cosine: exact, and the same answers with faiss and without."""

import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.runtime.errors import InputError

__all__ = ["MOST_PAIRS", "VectorIndex", "group_pairs"]

# Two ways of computing a cosine in float32 differ by less than half of this.
SLACK = 1e-5
DIGITS = 9  # of a cosine in float64; equal vectors are equal in these
CHUNK_ELEMENTS = 2**24  # similarities held at once: 64 MiB of float32
MOST_PAIRS = 1_000_000


class VectorIndex:
    """Vectors (N, D) that are searched by cosine.

    Candidates come from faiss where it is installed, else from a product of matrices. Either gives
    all that rounding could let in; cosines in float64 then decide, of equal ones the place. So both
    ways have the same answers.

    Args:
        vectors: (N, D); they are given the length 1.
        use_faiss: None: where it is installed.

    >>> index = VectorIndex(torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    >>> [(place, round(cosine, 3)) for place, cosine in index.search(torch.tensor([1.0, 0.1]), 2)]
    [(0, 0.995), (2, 0.774)]
    """

    def __init__(self, vectors: Tensor, *, use_faiss: bool | None = None):
        if vectors.dim() != 2 or not len(vectors):
            raise InputError(f"vectors of shape {tuple(vectors.shape)}; they must be (N, D).")
        self.vectors = F.normalize(vectors.float(), dim=1)
        installed = importlib.util.find_spec("faiss") is not None
        self.faiss: Any = None
        if installed if use_faiss is None else use_faiss:
            with warnings.catch_warnings():  # of its bindings, at import
                warnings.simplefilter("ignore", DeprecationWarning)
                import faiss
            self.faiss = faiss.IndexFlatIP(vectors.shape[1])
            self.faiss.add(self.vectors.numpy())

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, query: Tensor, count: int) -> list[tuple[int, float]]:
        """The places of the nearest vectors and their cosines, falling; `query` is (D,)."""
        if count < 1:
            raise InputError(f"count={count}; it must be at least 1.")
        unit = F.normalize(query.float(), dim=0)
        places = self.candidates(unit, min(count, len(self)))
        cosines = exact_cosines(self.vectors[places], unit.expand(len(places), -1))
        order = sorted(zip((-cosines).tolist(), places.tolist(), strict=True))
        return [(place, -negative) for negative, place in order[:count]]

    def candidates(self, unit: Tensor, count: int) -> Tensor:
        """The places of all vectors that may be among the `count` nearest."""
        if self.faiss is not None:
            row = unit[None].numpy()
            least = float(self.faiss.search(row, count)[0][0, -1]) - SLACK
            return torch.from_numpy(self.faiss.range_search(row, least)[2])
        similarity = self.vectors @ unit
        least = float(similarity.topk(count).values[-1]) - SLACK
        return (similarity > least).nonzero()[:, 0]

    def pairs(self, least: float) -> list[tuple[int, int, float]]:
        """All pairs (i, j), i < j, whose cosine is at least that, with it; closest first."""
        found: list[tuple[int, int, float]] = []
        for rows, columns in self.close_pairs(least - SLACK):
            cosines = exact_cosines(self.vectors[rows], self.vectors[columns])
            kept = cosines >= least
            triples = (each[kept].tolist() for each in (rows, columns, cosines))
            found += zip(*triples, strict=True)
            if len(found) > MOST_PAIRS:
                raise InputError(
                    f"more than {MOST_PAIRS:,} pairs have a similarity of {least:g} or more; that "
                    f"is no sign of being alike. Raise --at-least."
                )
        return sorted(found, key=lambda pair: (-pair[2], pair[:2]))

    def close_pairs(self, least: float) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and columns, i < j, of the pairs above `least` in float32, a part at a time."""
        chunk = max(1, CHUNK_ELEMENTS // len(self))
        for start in range(0, len(self), chunk):
            part = self.vectors[start : start + chunk]
            if self.faiss is not None:
                limits, _, columns = self.faiss.range_search(part.numpy(), least)
                numbers = np.repeat(np.arange(len(part)), np.diff(limits.astype(np.int64)))
                rows, columns = torch.from_numpy(numbers) + start, torch.from_numpy(columns)
            else:
                rows, columns = (part @ self.vectors.T > least).nonzero().unbind(1)
                rows = rows + start
            later = columns > rows
            yield rows[later], columns[later]


def exact_cosines(first: Tensor, second: Tensor) -> Tensor:
    """Cosines of unit vectors row by row, (N,), in float64 and rounded to `DIGITS`."""
    return (first.double() * second.double()).sum(dim=1).round(decimals=DIGITS)


def group_pairs(pairs: list[tuple[int, int, float]]) -> list[list[tuple[int, float]]]:
    """Groups of which every member is paired with the first, as (place, cosine with the first).

    Pairs are taken as they come, closest first; no place is in two groups. So no chain of pairs
    joins what is not alike.

    >>> group_pairs([(0, 1, 0.999), (1, 2, 0.99), (3, 4, 0.99)])
    [[(0, 1.0), (1, 0.999)], [(3, 1.0), (4, 0.99)]]
    """
    partners: dict[int, dict[int, float]] = {}
    for one, other, cosine in pairs:
        partners.setdefault(one, {})[other] = cosine
        partners.setdefault(other, {})[one] = cosine
    groups, taken = [], set[int]()
    for one, other, _ in pairs:
        if one in taken or other in taken:
            continue
        near = sorted(partners[one].items(), key=lambda item: (-item[1], item[0]))
        members = [(place, cosine) for place, cosine in near if place not in taken]
        groups.append([(one, 1.0), *members])
        taken |= {one, *(place for place, _ in members)}
    return groups
