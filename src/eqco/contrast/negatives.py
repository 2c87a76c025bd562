"""The two values that say who is compared with whom."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eqco.contrast.streaming import without_autocast
from eqco.runtime.errors import InputError

__all__ = ["Contrast", "Negatives", "combine_negatives"]


@dataclass(frozen=True)
class Negatives:
    """The keys that queries are pushed away from.

    Args:
        keys: a pool of keys, (M, D).
        columns: the keys each query meets, (N, K); None: each query meets the whole pool but for
            what is excluded.
        excluded: the keys a query may never meet, distinct in each row, (N, E); None: there are
            none. Used only where `columns` is None.

    >>> pool = torch.eye(4)
    >>> Negatives(pool).num_negatives
    4
    >>> Negatives(pool, excluded=torch.tensor([[0], [1]])).num_negatives
    3
    """

    keys: Tensor
    columns: Tensor | None = None
    excluded: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.keys, Tensor) or self.keys.dim() != 2:
            given = getattr(self.keys, "shape", None)
            shown = type(self.keys).__name__ if given is None else f"shape {tuple(given)}"
            raise InputError(f"keys of {shown}; a pool of negatives is a torch tensor (M, D).")
        for name, places in (("columns", self.columns), ("excluded", self.excluded)):
            if places is not None and (places.dim() != 2 or places.dtype != torch.int64):
                raise InputError(
                    f"{name} of shape {tuple(places.shape)} and type {places.dtype}; it must be "
                    f"(N, places) of type torch.int64: row numbers of the {len(self.keys)} keys."
                )

    @property
    def num_negatives(self) -> int:
        """K, counted: the negatives that each query really meets."""
        if self.columns is not None:
            return self.columns.shape[1]
        return len(self.keys) - (0 if self.excluded is None else self.excluded.shape[1])


@dataclass(frozen=True)
class Contrast:
    """What a method ends at: queries, their positives, their negatives.

    Args:
        queries: (N, D).
        positives: row n is the positive key of query n, (N, D).
        negatives: the keys that queries are pushed away from.
        weight: what its mean loss is multiplied by in the total.
    """

    queries: Tensor
    positives: Tensor
    negatives: Negatives
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_negatives(self.negatives)


def combine_negatives(first: Negatives, second: Negatives) -> Negatives:
    """Two sources as one: every query meets the negatives of both, and K is the sum.

    >>> batch = Negatives(torch.eye(4), excluded=torch.arange(4)[:, None])
    >>> queue = Negatives(torch.eye(4)[:2])
    >>> combine_negatives(batch, queue).num_negatives
    5
    """
    for source in (first, second):
        require_negatives(source)
    if first.keys.shape[1] != second.keys.shape[1]:
        raise InputError(
            f"keys of shapes {tuple(first.keys.shape)} and {tuple(second.keys.shape)}; both must "
            f"have the same D."
        )
    rows = {len(p) for n in (first, second) for p in (n.columns, n.excluded) if p is not None}
    if len(rows) > 1:
        raise InputError(
            f"negatives for {' and for '.join(map(str, sorted(rows)))} queries; both must be for "
            f"the same ones."
        )
    with without_autocast(first.keys):  # whose torch.cat takes no float16 on the CPU
        keys = torch.cat([first.keys, second.keys])
    shift = len(first.keys)
    if first.columns is None and second.columns is None:
        places = [first.excluded, None if second.excluded is None else second.excluded + shift]
        given = [place for place in places if place is not None]
        return Negatives(keys, excluded=torch.cat(given, dim=1) if given else None)
    (num_queries,) = rows
    columns = [met_columns(first, num_queries), met_columns(second, num_queries) + shift]
    return Negatives(keys, columns=torch.cat(columns, dim=1))


def require_negatives(given: object) -> None:
    """Refuse what is not `Negatives`, and say how it becomes one."""
    if not isinstance(given, Negatives):
        raise InputError(
            f"a {type(given).__name__} was given as negatives; wrap a tensor of keys as "
            f"Negatives(keys), and take those of a queue by queue.negatives()."
        )


def met_columns(negatives: Negatives, num_queries: int) -> Tensor:
    """The keys each query meets, written out, (N, K)."""
    if negatives.columns is not None:
        return negatives.columns
    everyone = torch.arange(negatives.num_negatives, device=negatives.keys.device)
    return skip_excluded(everyone.expand(num_queries, -1), negatives.excluded)


def skip_excluded(places: Tensor, excluded: Tensor | None) -> Tensor:
    """Turn the p-th allowed key into its row number, (N, K): step over what is excluded.

    >>> skip_excluded(torch.tensor([[0, 1, 2]]), excluded=torch.tensor([[3, 1]]))
    tensor([[0, 2, 4]])
    """
    if excluded is None:
        return places
    for hole in excluded.sort(dim=1).values.unbind(dim=1):
        places = places + (places >= hole[:, None])
    return places
