"""SiMo: MoCo v2 without its memory (Section 3)."""

from torch import Tensor

from eqco.contrast import Contrast, KeyQueue, combine_negatives
from eqco.data import Views
from eqco.encoders import Encoder, update_momentum
from eqco.methods.base import KeyEncoder, Method, StepOutput, batch_negatives
from eqco.runtime import processes

__all__ = ["SiMo"]


class SiMo(Method):
    """Positives and negatives both come from the momentum encoder and the current batch.

    One direction: the first view asks, the second answers. Only the query's own key is excluded.

    Args:
        encoder: the query encoder.
        ema_decay: β of Eq. 16; 0 is the paper's "no momentum" (Table 6).
        num_negatives: K, drawn for each query; None: all N − 1.
        shared: one draw for all queries (Remark 2).
        queue: keys of earlier batches to add to those of the batch, for small batches; K is the
            sum. None is the paper's SiMo.
        shuffle: shuffling BN (Table 7) instead of one batch norm over the batch.
        seed: of the draws.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        ema_decay: float = 0.999,
        num_negatives: int | None = 16,
        shared: bool = False,
        queue: KeyQueue | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        self.encoder = encoder
        self.key_encoder = KeyEncoder(encoder, shuffle=shuffle, seed=seed)
        self.ema_decay = ema_decay
        self.num_negatives = num_negatives
        self.shared = shared
        self.queue = queue
        self.seed = seed

    def forward(self, views: Views, step: int) -> StepOutput:
        """One contrast: queries of the first view against keys of the second."""
        queries = self.encoder(views.first)
        keys = self.key_encoder(views.second, step)
        positives = keys[processes.own_rows(len(keys))]
        negatives = batch_negatives(
            keys, count=self.num_negatives, shared=self.shared, seed=self.seed, draw=step
        )
        if self.queue is not None:
            negatives = combine_negatives(negatives, self.queue.negatives())
        fresh = None if self.queue is None else keys
        return StepOutput([Contrast(queries, positives, negatives)], fresh)

    def after_step(self, fresh_keys: Tensor | None) -> None:
        """Move the key encoder; enqueue the keys if there is a queue."""
        update_momentum(self.key_encoder.network, self.encoder, self.ema_decay)
        if self.queue is not None and fresh_keys is not None:
            self.queue.enqueue(fresh_keys, gather=False)

    def warm_up_memory(self, views: Views, number: int = 0) -> None:
        """Put the keys of one batch, or of its part `number`, into the queue, if there is one."""
        if self.queue is not None:
            self.queue.enqueue(self.key_encoder(views.second, number), gather=False)
