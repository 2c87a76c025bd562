"""Diagnostics of a loss in someone else's loop, read from its own calls."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from eqco.contrast import Diagnostics, EqCoLoss, Negatives, diagnose
from eqco.runtime.errors import InputError

__all__ = ["LossWatch", "check_every", "metrics_of"]

# fields of Diagnostics that are logged, under contrast/
LOGGED = (
    "information",
    "positive_probability",
    "effective_negatives",
    "weight_ratio",
    "weight_bias",
    "accuracy",
    "num_negatives",
)


def metrics_of(seen: Diagnostics) -> dict[str, float]:
    """What is logged: f̂, p₊, effective negatives and what else helps to choose α and K."""
    return {f"contrast/{name}": float(getattr(seen, name)) for name in LOGGED}


def check_every(every: int) -> int:
    """Refuse an interval that is none."""
    if every < 1:
        raise InputError(f"every={every}; it is a number of steps and must be at least 1.")
    return every


class LossWatch:
    """Reads queries and positives, the first two arguments of a loss, when it is called.

    A third argument that is a matrix of keys or `Negatives` are the negatives; else these are the
    other positives of the batch, and of an NTXentLoss both views of the others. Keys that ids or
    weights leave out are counted. A loss of sentence-transformers, which is called with tokens, is
    read from what its model returns.

    Args:
        loss: a module.
        temperature: τ; None: the loss's own attribute `temperature`.
        alpha: α; None: the loss's own attribute `alpha`, or plain InfoNCE where it has none.

    >>> loss_fn = EqCoLoss(temperature=0.1, alpha=64)
    >>> watch = LossWatch(loss_fn)
    >>> watch.wanted = True
    >>> views = torch.eye(8)
    >>> _ = loss_fn(views, views)
    >>> watch.seen.num_negatives, round(watch.seen.positive_probability, 2)
    (7, 1.0)
    >>> watch.stop()
    """

    def __init__(
        self, loss: nn.Module, *, temperature: float | None = None, alpha: float | None = None
    ):
        # a ranking loss of ours has the embeddings of its sentences pass through its contrast
        inner = getattr(loss, "contrast", None)
        self.loss = inner if isinstance(inner, EqCoLoss) else loss
        self.temperature, self.alpha = temperature, alpha
        self.wanted = False
        self.seen: Diagnostics | None = None
        self.embeddings: list[Tensor] = []
        self.current_temperature()  # refused now rather than in a step
        self.handles: list[RemovableHandle] = []
        if embeds_by_itself(self.loss):
            self.handles.append(self.loss.register_forward_pre_hook(self.watch_model))
        self.handles.append(self.loss.register_forward_hook(self.read, with_kwargs=True))

    def current_temperature(self) -> float:
        """τ as it is now."""
        if self.temperature is not None:
            return self.temperature
        own = getattr(self.loss, "temperature", None)
        if isinstance(self.loss, EqCoLoss):
            own = self.loss.current_temperature()
        if isinstance(own, Tensor):
            return float(own.detach())
        if not isinstance(own, int | float):
            raise InputError(
                f"temperature=None, and {type(self.loss).__name__} has no attribute of this name. "
                f"Give the temperature of the loss."
            )
        return own

    def watch_model(self, loss: nn.Module, args: Any) -> None:
        """Collect what the model of a sentence-transformers loss returns during this call."""
        if not self.wanted:
            return
        model = loss.model
        assert isinstance(model, nn.Module)
        self.embeddings = []
        handle = model.register_forward_hook(
            lambda module, args, output: self.embeddings.append(output["sentence_embedding"])
        )
        self.handles.append(handle)

    def read(self, loss: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        """Diagnose this call, before anything that it was called with changes."""
        if not self.wanted:
            return
        if embeds_by_itself(loss):
            self.handles.pop().remove()
            given = sentence_arguments(self.embeddings)
            self.embeddings = []
        else:
            given = embedding_arguments(args, kwargs)
        queries, positives, negatives = given
        if negatives is None and len(queries) < 2:
            return  # a last batch of one shows nothing
        if negatives is None and scores_both_views(loss):
            given = both_views(queries, positives)
        self.wanted = False
        alpha = getattr(self.loss, "alpha", None) if self.alpha is None else self.alpha
        found = [each.detach() if isinstance(each, Tensor) else each for each in given]
        self.seen = diagnose(*found, temperature=self.current_temperature(), alpha=alpha)

    def take(self) -> Diagnostics | None:
        """What was seen since the last call, once."""
        seen, self.seen = self.seen, None
        return seen

    def stop(self) -> None:
        """Leave the loss alone."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


def embeds_by_itself(loss: nn.Module) -> bool:
    """Whether it is a loss of sentence-transformers, called with tokens; refuses a cached one."""
    if not isinstance(getattr(loss, "model", None), nn.Module):
        return False
    if getattr(loss, "uses_gradient_cache", False):
        raise InputError(
            f"{type(loss).__name__} encodes a batch in pieces, of which none shows all negatives. "
            f"Use eqco.integrations.sentence_transformers.EqCoRankingLoss(mini_batch_size=…)."
        )
    return True


def scores_both_views(loss: nn.Module) -> bool:
    """Whether both arguments are queries and keys; refuses one with a memory of its own."""
    if not any(kind.__name__ == "NTXentLoss" for kind in type(loss).__mro__):
        return False
    size = getattr(getattr(loss, "memory_bank", None), "size", 0)
    if size not in (0, (0,)):
        raise InputError(
            f"{type(loss).__name__} scores against a memory bank of its own ({size}), which "
            f"diagnostics do not see. Give EqCoLoss the keys of an eqco.KeyQueue instead, or leave "
            f"the diagnostics out."
        )
    return True


def both_views(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Negatives]:
    """Each view of 2N queries, its other view, and both views of all other instances."""
    queries, positives = torch.cat([first, second]), torch.cat([second, first])
    numbers = torch.arange(len(queries), device=queries.device)
    own = torch.stack([numbers, numbers.roll(len(first))], dim=1)
    return queries, positives, Negatives(queries, excluded=own)


def embedding_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Queries, positives and negatives among the arguments of a loss."""
    given = [*args, *kwargs.values()]
    if len(given) < 2 or not all(isinstance(x, Tensor) and x.dim() == 2 for x in given[:2]):
        kinds = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise InputError(
            f"the loss was called with {kinds}; diagnostics need queries (N, D) and positives "
            f"(N, D) as its first two arguments."
        )
    third = args[2] if len(args) > 2 else kwargs.get("negatives", kwargs.get("negative_keys"))
    pool = isinstance(third, Negatives) or (isinstance(third, Tensor) and third.dim() >= 2)
    return given[0], given[1], third if pool else None


def sentence_arguments(embeddings: list[Tensor]) -> tuple[Any, ...]:
    """Anchors, positives, and all documents but each anchor's own, from a model's outputs."""
    queries, documents = embeddings[0], torch.cat(embeddings[1:])
    own = torch.arange(len(queries), device=queries.device)[:, None]
    negatives = Negatives(documents.detach(), excluded=own) if len(documents) > 1 else None
    return queries, documents[: len(queries)], negatives
