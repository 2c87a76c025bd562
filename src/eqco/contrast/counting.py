"""K of each query: how many negatives are left to it, or how much they weigh."""

import torch
from torch import Tensor

from eqco.contrast.negatives import has_values
from eqco.contrast.streaming import CHUNK_ELEMENTS, Choice, key_counts, logits
from eqco.runtime.errors import InputError

__all__ = ["check_log_weight_values", "check_log_weights", "log_counts", "name_empty"]


def check_log_weights(
    log_weights: Tensor, per_key: tuple[int, ...], per_pair: tuple[int, ...], like: Tensor
) -> Tensor:
    """log_weights in the type to compute in; those that weigh nothing sensible are refused."""
    shapes = " or ".join(map(str, dict.fromkeys([per_key, per_pair])))
    if not isinstance(log_weights, Tensor) or not log_weights.is_floating_point():
        kind = getattr(log_weights, "dtype", type(log_weights).__name__)
        raise InputError(
            f"log_weights is of type {kind}; it must be a floating-point tensor {shapes}."
        )
    if tuple(log_weights.shape) not in (per_key, per_pair):
        raise InputError(
            f"log_weights of shape {tuple(log_weights.shape)}; it must be {shapes}: one for each "
            f"key of the pool, or for each pair of query and key."
        )
    if log_weights.requires_grad:
        raise InputError(
            "log_weights requires a gradient, and gets none here. Give log_weights.detach()."
        )
    if log_weights.device != like.device:
        raise InputError(
            f"log_weights are on {log_weights.device} but queries on {like.device}; move them "
            f"together."
        )
    return log_weights


def check_log_weight_values(log_weights: Tensor) -> None:
    """Refuse NaN and +∞, and −∞ only."""
    bad = int((log_weights.isnan() | (log_weights == torch.inf)).sum())
    if bad:
        raise InputError(
            f"log_weights holds {bad} values among {log_weights.numel()} that are NaN or +∞; each "
            f"must be a finite number, or −∞ for a key that is no negative."
        )
    if bool((log_weights == -torch.inf).all()):
        raise InputError(
            "log_weights is −∞ everywhere, so no key is a negative of any query. Give finite "
            "numbers, such as 0 for a weight of 1."
        )


def log_counts(num_queries: int, num_keys: int, choice: Choice, dtype: torch.dtype) -> Tensor:
    """log K of each query, (N,): of the number of its negatives, or of the sum of their weights;
    −∞ for a query that has none.
    """
    if choice.log_weights is None:
        return counts(num_queries, num_keys, choice).to(dtype).log()
    device = choice.log_weights.device
    total = torch.full((num_queries,), -torch.inf, dtype=dtype, device=device)
    chunk = num_keys if torch.compiler.is_compiling() else max(1, CHUNK_ELEMENTS // num_queries)
    times = key_counts(choice.chosen, total, num_keys)
    # weights of all keys are the exponentials of logits of queries that are zero
    nothing = torch.zeros(num_queries, 1, dtype=dtype, device=device)
    for start in range(0, num_keys, chunk):
        size = min(chunk, num_keys - start)
        part, count = logits(nothing, nothing.new_zeros(size, 1), start, times, choice, False)
        if count is not None:
            part = part + count.to(dtype).log()
        total = torch.logaddexp(total, part.logsumexp(dim=1))
    return total


def counts(num_queries: int, num_keys: int, choice: Choice) -> Tensor:
    """How many negatives each query has, (N,), where ids bar some."""
    ids, key_ids = choice.ids, choice.key_ids
    assert ids is not None
    assert key_ids is not None
    if choice.chosen is not None and choice.chosen.dtype == torch.bool:
        return (choice.chosen & (ids[:, None] != key_ids)).sum(dim=1)
    if choice.chosen is not None:
        return (key_ids[choice.chosen] != ids[:, None]).sum(dim=1)
    ordered = key_ids.sort().values
    same = torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)
    left = num_keys - same
    if choice.excluded is not None:  # some of the same id, some not
        left = left - (key_ids[choice.excluded] != ids[:, None]).sum(dim=1)
    return left


def name_empty(empty: Tensor, ids: Tensor | None) -> None:
    """Refuse queries without negatives, by their numbers and ids."""
    if not has_values(empty) or not bool(empty.any()):
        return
    rows = empty.nonzero()[:, 0].tolist()
    shown = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
    whose = "" if ids is None else f" (id {', '.join(str(int(ids[row])) for row in rows[:5])})"
    raise InputError(
        f"{len(rows)} queries of {len(empty)} have no negatives: number {shown}{whose}, since all "
        f"keys carry their id or weigh nothing. Use a larger batch or a queue, or skip them by "
        f"on_empty='skip'."
    )
