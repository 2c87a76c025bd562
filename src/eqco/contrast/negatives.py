"""The two values that say which keys each query is scored against."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from eqco.contrast.vectors import without_autocast
from eqco.runtime.errors import InputError

__all__ = ["Contrast", "Negatives", "combine_negatives"]

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


@dataclass(frozen=True, eq=False, repr=False)
class Negatives:
    """The keys that queries are pushed away from.

    Args:
        keys: a pool of keys, (M, D).
        indices: the keys each query is scored against, (N, K); None: the whole pool but for what
            is excluded.
        excluded: the keys that are no negatives of a query, distinct in each row, (N, E); None:
            there are none. Used only where `indices` and `mask` are None.
        mask: in place of `indices` where these are many: True for the keys each query is scored
            against, as many in each row, (N, M).
        ids: what each key is an instance of, (M,); a loss that is given `ids` of the queries
            compares them, one that is not makes no use of these.

    >>> pool = torch.eye(4)
    >>> Negatives(pool).num_negatives
    4
    >>> Negatives(pool, excluded=torch.tensor([[0], [1]]))
    Negatives(K=3 of a pool of 4 keys, dim=4)
    """

    keys: Tensor
    indices: Tensor | None = None
    excluded: Tensor | None = None
    mask: Tensor | None = None
    ids: Tensor | None = None
    num_masked: int = field(init=False, default=0)
    # the first keys that the loss gives gradient to; None: all, if `keys` wants it
    num_trained: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.keys, Tensor) or self.keys.dim() != 2:
            given = getattr(self.keys, "shape", None)
            shown = type(self.keys).__name__ if given is None else f"shape {tuple(given)}"
            raise InputError(f"keys of {shown}; a pool of negatives is a torch tensor (M, D).")
        for name in ("indices", "excluded", "mask"):
            places = getattr(self, name)
            if places is not None and not isinstance(places, Tensor):
                raise InputError(f"{name} is a {type(places).__name__}; give a torch tensor.")
        for name, places in (("indices", self.indices), ("excluded", self.excluded)):
            if places is not None and (places.dim() != 2 or places.dtype != torch.int64):
                raise InputError(
                    f"{name} of shape {tuple(places.shape)} and type {places.dtype}; it must be "
                    f"(N, places) of type torch.int64: row numbers of the {len(self.keys)} keys."
                )
        if self.ids is not None:
            check_ids("ids", self.ids, (len(self.keys),), self.keys, "keys")
        if self.mask is not None:
            # once, so that neither a compiled loss nor one on an accelerator has to read values
            object.__setattr__(self, "num_masked", self.count_mask(self.mask))

    def count_mask(self, mask: Tensor) -> int:
        """K by the first row of a mask; one that does not fit the keys is refused."""
        size = len(self.keys)
        if self.indices is not None:
            raise InputError("indices and mask were both given; each says K by itself. Give one.")
        if mask.dtype != torch.bool or mask.dim() != 2 or mask.shape[1] != size or not len(mask):
            raise InputError(
                f"mask of shape {tuple(mask.shape)} and type {mask.dtype}; it must be (N, {size}) "
                f"of type torch.bool: one value for each key."
            )
        if mask.is_meta or isinstance(mask, FakeTensor):
            raise InputError(
                "mask has no values (it is on meta or in a FakeTensorMode), and K is counted from "
                "them. Give indices there."
            )
        return int(mask[0].sum())

    def __repr__(self) -> str:
        pool, dim = self.keys.shape
        return f"Negatives(K={self.num_negatives} of a pool of {pool} keys, dim={dim})"

    @property
    def num_negatives(self) -> int:
        """K, counted: the negatives that each query really has."""
        if self.mask is not None:
            return self.num_masked
        if self.indices is not None:
            return self.indices.shape[1]
        return len(self.keys) - (0 if self.excluded is None else self.excluded.shape[1])


@dataclass(frozen=True, eq=False)
class Contrast:
    """What a method ends at: queries, their positives, their negatives.

    Args:
        queries: (N, D).
        positives: row n is the positive key of query n, (N, D).
        negatives: the keys that queries are pushed away from.
        weight: what its mean loss is multiplied by in the total.
        index: the place of each query's instance in the data set, (N,), where it is known.
        memory: keys that a remembered normaliser takes in beside the negatives.
        independent: whether negatives are drawn independently of the query; if not, f̂ is no bound.
    """

    queries: Tensor
    positives: Tensor
    negatives: Negatives
    weight: float = 1.0
    index: Tensor | None = None
    memory: Negatives | None = None
    independent: bool = True

    def __post_init__(self) -> None:
        require_negatives(self.negatives)


def combine_negatives(first: Negatives, second: Negatives) -> Negatives:
    """Two sources as one: every query has the negatives of both, and K is the sum.

    The loss gives no gradient to the keys of the second where these want none: nor to their rows of
    the result's `keys`.

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
    rows = {
        len(each)
        for source in (first, second)
        for each in (source.indices, source.excluded, source.mask)
        if each is not None
    }
    if len(rows) > 1:
        raise InputError(
            f"negatives for {' and for '.join(map(str, sorted(rows)))} queries; both must be for "
            f"the same ones."
        )
    check_device("keys of the second source", second.keys, first.keys, "those of the first")
    if (first.ids is None) != (second.ids is None):
        which = "second" if second.ids is None else "first"
        raise InputError(
            f"the {which} source has no ids, and the other has. Give those of a batch by "
            f"in_batch_negatives(keys, ids=ids), and of other keys by Negatives(keys, ids=ids); a "
            f"queue keeps them with KeyQueue(…, with_ids=True)."
        )
    for source in (first, second):
        if source.keys.device.type == "cpu" and has_values(source.keys):
            check_places(source)  # a row number out of range would name a key of the other source
    with without_autocast(first.keys):  # whose torch.cat takes no float16 on the CPU
        keys = torch.cat([first.keys, second.keys])
    ids = None
    if first.ids is not None and second.ids is not None:
        ids = torch.cat([first.ids, second.ids])
    shift = len(first.keys)
    if all(each.indices is None and each.mask is None for each in (first, second)):
        places = [first.excluded, None if second.excluded is None else second.excluded + shift]
        given = [place for place in places if place is not None]
        combined = Negatives(keys, excluded=torch.cat(given, dim=1) if given else None, ids=ids)
    else:
        (num_queries,) = rows
        indices = [key_indices(first, num_queries), key_indices(second, num_queries) + shift]
        combined = Negatives(keys, indices=torch.cat(indices, dim=1), ids=ids)
    if keys.requires_grad and not second.keys.requires_grad:
        trained = shift if first.num_trained is None else first.num_trained
        object.__setattr__(combined, "num_trained", trained)
    return combined


def require_negatives(given: object) -> None:
    """Refuse what is not `Negatives`, and say how it becomes one."""
    if not isinstance(given, Negatives):
        raise InputError(
            f"a {type(given).__name__} was given as negatives; wrap a tensor of keys as "
            f"Negatives(keys), and take those of a queue by queue.negatives()."
        )


def has_values(tensor: Tensor) -> bool:
    """Whether numbers can be read: not on meta, in a FakeTensorMode or inside torch.compile."""
    return not (tensor.is_meta or torch.compiler.is_compiling() or isinstance(tensor, FakeTensor))


def check_places(negatives: Negatives) -> None:
    """Refuse row numbers that no key has, and keys excluded twice, which would be miscounted."""
    size = len(negatives.keys)
    for name, places in (("indices", negatives.indices), ("excluded", negatives.excluded)):
        if places is not None and places.numel():
            low, high = int(places.min()), int(places.max())
            if low < 0 or high >= size:
                raise InputError(
                    f"negatives.{name} holds row numbers from {low} to {high}, but the {size} keys "
                    f"have the numbers 0 to {size - 1}."
                )
    if negatives.mask is not None:
        fewest, most = (int(each) for each in row_counts(negatives.mask).aminmax())
        if fewest < most:
            raise InputError(
                f"negatives.mask has from {fewest} to {most} keys in a row; all queries must have "
                f"the same number."
            )
    excluded = negatives.excluded
    if excluded is not None and excluded.shape[1] > 1:
        ordered = excluded.sort(dim=1).values
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
            raise InputError("negatives.excluded names a key twice in one row; name each once.")


def check_ids(
    name: str, ids: Tensor, shape: tuple[int, ...], like: Tensor, others: str = "queries"
) -> Tensor:
    """Ids as int64; what is not one whole number for each query or key is refused."""
    wanted = f"a torch tensor {shape} of whole numbers, one for each "
    wanted += "query" if name == "ids" and others == "queries" else "key"
    if not isinstance(ids, Tensor):
        raise InputError(f"{name} is a {type(ids).__name__}; it must be {wanted}.")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"{name} is of type {ids.dtype}; it must be {wanted}.")
    if tuple(ids.shape) != shape:
        raise InputError(f"{name} of shape {tuple(ids.shape)}; it must be {wanted}.")
    check_device(name, ids, like, others)
    return ids.detach().long()


def check_device(name: str, tensor: Tensor, other: Tensor, others: str = "queries") -> None:
    """Refuse tensors that live on another device than the queries, or than `others`."""
    if tensor.device != other.device:
        raise InputError(
            f"{name} are on {tensor.device} but {others} on {other.device}; move them together."
        )


def key_indices(negatives: Negatives, num_queries: int) -> Tensor:
    """The keys each query is scored against, written out, (N, K)."""
    if negatives.indices is not None:
        return negatives.indices
    if negatives.mask is not None:
        return negatives.mask.nonzero()[:, 1].view(num_queries, -1)
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


def row_counts(mask: Tensor) -> Tensor:
    """How many are True in each row, (N,)."""
    # eight flags side by side are added as one int64, 32 times at the most: each fits its byte
    spare = -mask.shape[1] % 256
    padded = F.pad(mask, (0, spare)) if spare else mask
    flags = padded.contiguous().view(torch.int64).view(len(mask), -1, 32).sum(dim=2)
    return flags.view(torch.uint8).sum(dim=1, dtype=torch.int64)


def uncompiled(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Keep a function out of torch.compile's graphs.

    torch.compiler.disable is called only inside a compiled function, since it imports the compiler,
    which takes seconds.
    """

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        if not torch.compiler.is_compiling():
            return function(*args, **kwargs)
        outside: Callable[Given, Returned] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return outside(*args, **kwargs)

    return call
