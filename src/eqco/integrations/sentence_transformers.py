"""sentence-transformers' ranking loss with α, ids, a queue, and with or without caching."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from eqco.contrast import EqCoLoss, KeyQueue, Negatives, SlowCopy, combine_negatives
from eqco.contrast.in_batch import own_places
from eqco.contrast.loss import Similarity, all_keys
from eqco.integrations.packages import needs
from eqco.runtime import processes
from eqco.runtime.errors import InputError

with needs("sentence-transformers"):
    from sentence_transformers.base.losses.gradcache import CachedLossMixin
    from sentence_transformers.base.losses.merged_forward import embed_columns
    from sentence_transformers.util import cos_sim, dot_score, similarity_fct_name

__all__ = ["EqCoRankingLoss"]

SIMILARITIES: dict[Any, Similarity] = {cos_sim: "cosine", dot_score: "dot"}
# Ids are below 2^53, which float64 holds exactly: a second queue keeps them beside its keys.
LARGEST_ID = 2**53 - 1
NO_ID = -(2**53)
BOTH = ("query_to_doc", "doc_to_query")
MULTIPLIER = 0x2545F4914F6CDD1D


class Extras(NamedTuple):
    """What comes with the embeddings of a batch: ids of all columns, (N, C), and new keys."""

    ids: Tensor | None
    keys: Tensor | None


class EqCoRankingLoss(CachedLossMixin, nn.Module):
    """`MultipleNegativesRankingLoss`, and with `mini_batch_size` its cached form: same call, same
    columns (anchor, positive, any number of hard negatives), with α; without α its numbers.

    Args:
        model: a SentenceTransformer.
        scale: 1/τ.
        similarity_fct: `cos_sim` or `dot_score` of sentence_transformers.util.
        gather_across_devices: negatives from all processes, with gradient.
        directions: ("query_to_doc",), or with partition_mode="per_direction" also "doc_to_query":
            the mean of both.
        partition_mode: as theirs.
        alpha: the number of negatives imitated; None: their loss; math.inf: decoupled.
        ids: what is no negative of an anchor. "sentences": documents that are the same text as its
            positive or itself, and positives of the same anchor; "labels": positives with the same
            number in the data set's label column; None: nothing, as in their loss.
        queue_size: positives of earlier batches that are negatives as well; 0: none. They are not
            part of the trainer's checkpoints: a resumed training begins with an empty queue.
        queue_decay: of the slow copy of the model that makes the keys of the queue, without
            dropout; None: the model's own embeddings are kept, which are soon out of date.
        mini_batch_size: sentences that are encoded at once, for batches that do not fit into
            memory; None: all.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
        similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim,
        gather_across_devices: bool = False,
        directions: tuple[str, ...] = ("query_to_doc",),
        partition_mode: Literal["joint", "per_direction"] = "joint",
        *,
        alpha: float | None = None,
        ids: Literal["sentences", "labels"] | None = "sentences",
        queue_size: int = 0,
        queue_decay: float | None = 0.99,
        mini_batch_size: int | None = None,
    ):
        super().__init__()
        if not scale > 0:
            raise InputError(f"scale={scale}; it is 1/temperature and must be greater than 0.")
        if similarity_fct not in SIMILARITIES:
            raise InputError(
                f"similarity_fct={similarity_fct_name(similarity_fct)}; there are cos_sim and "
                f"dot_score of sentence_transformers.util."
            )
        both = set(directions) == set(BOTH) and partition_mode == "per_direction"
        if tuple(directions) != BOTH[:1] and not both:
            raise InputError(
                f"directions={directions!r} with partition_mode={partition_mode!r}; there are "
                f"{BOTH[:1]!r}, and {BOTH!r} with 'per_direction'. Others are in "
                f"MultipleNegativesRankingLoss, without alpha."
            )
        if ids not in ("sentences", "labels", None):
            raise InputError(f"ids={ids!r}; there are 'sentences', 'labels' and None.")
        if queue_size < 0 or (mini_batch_size is not None and mini_batch_size < 1):
            raise InputError(
                f"queue_size={queue_size} and mini_batch_size={mini_batch_size}; they must be at "
                f"least 0 and 1."
            )
        self.model = model
        self.scale, self.similarity_fct = scale, similarity_fct
        self.gather_across_devices = gather_across_devices
        self.directions, self.partition_mode = tuple(directions), partition_mode
        self.alpha, self.ids = alpha, ids
        self.queue_size, self.queue_decay = queue_size, queue_decay
        self.mini_batch_size = mini_batch_size
        self.uses_gradient_cache = mini_batch_size is not None
        self.contrast = EqCoLoss(
            temperature=1 / scale,
            alpha=alpha,
            similarity=SIMILARITIES[similarity_fct],
            on_empty="skip",
        )
        # made in the first step, when the trainer has the model in its final form
        self.slow: SlowCopy | None = None
        self.queue: KeyQueue | None = None
        self.queue_ids: KeyQueue | None = None

    def forward(
        self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch: tokens of the anchors, of their positives, of hard negatives."""
        columns = list(sentence_features)
        if len(columns) < 2:
            raise InputError(
                f"{len(columns)} columns of sentences; at least two are needed: anchor, positive."
            )
        keys = None
        if self.queue_size and self.queue_decay is not None and torch.is_grad_enabled():
            keys = self.slow_keys(columns[1])
        extras = Extras(self.column_ids(columns, labels), keys)
        if self.mini_batch_size is None:
            return self.loss_of(embed_columns(self.model, columns), extras)
        loss: Tensor = CachedLossMixin.forward_cached(self, columns, extras)
        return loss

    def calculate_loss(
        self, reps: Sequence[Sequence[Tensor]], labels: Any = None, *, with_backward: bool = False
    ) -> Tensor:
        """What sentence-transformers' caching calls with the embeddings of all mini-batches."""
        loss = self.loss_of([torch.cat(list(each)) for each in reps], labels)
        if with_backward:
            loss.backward()
        return loss.detach() if with_backward else loss

    def loss_of(self, embeddings: Sequence[Tensor], extras: Extras) -> Tensor:
        """The loss of all columns' embeddings, (N, D) each; in training the queue takes in keys."""
        queries, documents, ids = embeddings[0], embeddings[1:], extras.ids
        gather = self.gather_across_devices
        here = torch.arange(len(queries), device=queries.device)
        own = (own_places(queries) if gather else here)[:, None]
        pool = torch.cat([all_keys(each, gather) for each in documents])
        negatives = Negatives(pool, excluded=own)
        key_ids = None if ids is None else self.key_ids(ids)
        if self.queue is not None:
            negatives = combine_negatives(negatives, self.queue.negatives())
            if key_ids is not None and self.queue_ids is not None:
                key_ids = torch.cat([key_ids, self.queue_ids.negatives().keys.long()])
        loss = self.one_way(queries, documents[0], negatives, ids, key_ids)
        if "doc_to_query" in self.directions:
            anchors = Negatives(all_keys(queries, gather), excluded=own)
            turned = None if ids is None else ids[:, [1, 0]]
            key_ids = None if turned is None else self.key_ids(turned)
            loss = (loss + self.one_way(documents[0], queries, anchors, turned, key_ids)) / 2
        if self.queue_size and torch.is_grad_enabled():
            self.enqueue(documents[0].detach() if extras.keys is None else extras.keys, ids)
        return loss

    def one_way(
        self,
        queries: Tensor,
        positives: Tensor,
        negatives: Negatives,
        ids: Tensor | None,
        key_ids: Tensor | None,
    ) -> Tensor:
        """The loss of one direction; that of a softmax over one, 0, where no negatives are left."""
        some, log_weights = negatives.num_negatives > 0, None
        if some and ids is not None and key_ids is not None:
            barred = is_barred(ids, key_ids)
            log_weights = barred.to(torch.float32).masked_fill(barred, -torch.inf)
            assert negatives.excluded is not None
            some = not bool(barred.scatter(1, negatives.excluded, True).all())
        if not some:
            return 0.0 * (queries.sum() + negatives.keys.sum())
        loss: Tensor = self.contrast(queries, positives, negatives, log_weights=log_weights)
        return loss

    def column_ids(
        self, columns: Sequence[Mapping[str, Any]], labels: Tensor | None
    ) -> Tensor | None:
        """A number for every sentence, (N, columns); of hard negatives none where labels say it."""
        if self.ids is None:
            return None
        if self.ids == "sentences":
            return torch.stack([sentence_ids(each) for each in columns], dim=1)
        if labels is None or labels.dim() != 1 or labels.is_floating_point():
            given = "nothing" if labels is None else f"{tuple(labels.shape)} of {labels.dtype}"
            raise InputError(
                f"ids='labels', but labels are {given}; the data set needs a column 'label' with "
                f"one whole number for each pair."
            )
        none = torch.full_like(labels, NO_ID)
        return torch.stack([labels, labels] + [none] * (len(columns) - 2), dim=1).long()

    def key_ids(self, ids: Tensor) -> Tensor:
        """Of every key: the id of the anchor it is the positive of, and its own, (M, 2)."""
        none = torch.full_like(ids[:, 0], NO_ID)
        owners = [ids[:, 0]] + [none] * (ids.shape[1] - 2)
        both = [
            torch.stack([owner, own], dim=1)
            for owner, own in zip(owners, ids[:, 1:].unbind(dim=1), strict=True)
        ]
        if self.gather_across_devices:
            both = [processes.gather(each) for each in both]
        return torch.cat(both)

    @torch.no_grad()
    def slow_keys(self, features: Mapping[str, Any]) -> Tensor:
        """Keys of the positives by the slow copy, which follows the model first."""
        if self.slow is None:
            encoder = getattr(self.model, "_orig_mod", self.model)
            self.slow = SlowCopy(encoder, decay=self.queue_decay or 0.0).eval()
        self.slow.update()
        rows = len(features["input_ids"])
        size = self.mini_batch_size or rows
        pieces = [
            self.slow(some_rows(features, start, start + size))["sentence_embedding"]
            for start in range(0, rows, size)
        ]
        return torch.cat(pieces)

    @torch.no_grad()
    def enqueue(self, keys: Tensor, ids: Tensor | None) -> None:
        """Take keys in; both queues have one seed, so that keys and ids stay side by side."""
        device, gather = keys.device, self.gather_across_devices
        if self.queue is None:
            kind = torch.promote_types(keys.dtype, torch.float32)
            self.queue = KeyQueue(self.queue_size, keys.shape[1], dtype=kind).to(device)
        self.queue.enqueue(keys, gather=gather)
        if ids is not None:
            if self.queue_ids is None:
                self.queue_ids = KeyQueue(self.queue_size, 2, dtype=torch.float64).to(device)
            self.queue_ids.enqueue(ids[:, :2].double(), gather=gather)

    @property
    def temperature(self) -> float:
        """τ."""
        return 1 / self.scale

    def get_config_dict(self) -> dict[str, Any]:
        """What the model card says of the loss."""
        names = ("gather_across_devices", "directions", "partition_mode", "alpha", "ids")
        more = ("queue_size", "queue_decay", "mini_batch_size")
        return {
            "scale": self.scale,
            "similarity_fct": similarity_fct_name(self.similarity_fct),
            **{name: getattr(self, name) for name in (*names, *more)},
        }


def is_barred(ids: Tensor, key_ids: Tensor) -> Tensor:
    """Whether each key is no negative of each anchor, (N, M).

    Args:
        ids: of each anchor and of its positive, (N, 2 or more).
        key_ids: of the anchor that each key is the positive of, and of the key, (M, 2).
    """
    anchor, positive = ids[:, :1], ids[:, 1:2]
    owner, own = key_ids.unbind(dim=1)
    return (owner == anchor) | (own == positive) | (own == anchor)


def sentence_ids(features: Mapping[str, Any]) -> Tensor:
    """A number for each sentence, (N,): the same for the same tokens, whatever the padding.

    >>> tokens = torch.tensor([[5, 7, 0], [7, 5, 0], [5, 7, 9]])
    >>> mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 0]])
    >>> ids = sentence_ids({"input_ids": tokens, "attention_mask": mask})
    >>> bool(ids[0] == ids[1]), bool(ids[0] == ids[2])
    (False, True)
    """
    tokens, mask = features.get("input_ids"), features.get("attention_mask")
    if tokens is None or mask is None or tokens.dim() != 2 or tokens.shape != mask.shape:
        raise InputError(
            f"ids='sentences' needs input_ids and attention_mask of shape (N, tokens), and the "
            f"model's features are {', '.join(features)}. Give ids='labels' or ids=None."
        )
    mask = mask.long()
    powers = torch.full((tokens.shape[1] + 1,), MULTIPLIER, device=tokens.device).cumprod(dim=0)
    # a polynomial of the tokens modulo 2^64, since products wrap around
    return ((tokens + 1) * mask * powers[mask.cumsum(dim=1)]).sum(dim=1) & LARGEST_ID


def some_rows(features: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Some of the sentences; what is not of one sentence each stays as it is."""
    rows = len(features["input_ids"])
    return {
        name: each[start:stop] if isinstance(each, Tensor) and each.shape[:1] == (rows,) else each
        for name, each in features.items()
    }
