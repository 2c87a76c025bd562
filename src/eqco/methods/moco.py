"""MoCo v1 and v2: negatives from a memory of keys."""

from torch import Tensor

from eqco.contrast import Contrast, KeyQueue
from eqco.data import Views
from eqco.encoders import Encoder, update_momentum
from eqco.methods.base import KeyEncoder, Method, StepOutput
from eqco.runtime import processes

__all__ = ["MoCo"]


class MoCo(Method):
    """The momentum encoder's keys of earlier batches are the negatives.

    v1 and v2 differ in head, augmentation, temperature and schedule, which are the recipe's.

    Args:
        encoder: the query encoder.
        queue: the memory; its capacity is K. With K below the batch it holds K random keys of the
            previous batch.
        ema_decay: β of Eq. 16.
        shuffle: shuffling BN, on in the published setting.
        seed: of the shuffling.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        queue: KeyQueue,
        ema_decay: float = 0.999,
        shuffle: bool = True,
        seed: int = 0,
    ):
        super().__init__()
        self.encoder = encoder
        self.key_encoder = KeyEncoder(encoder, shuffle=shuffle, seed=seed)
        self.queue = queue
        self.ema_decay = ema_decay

    def forward(self, views: Views, step: int) -> StepOutput:
        """One contrast: queries against their keys and the memory."""
        queries = self.encoder(views.first)
        keys = self.key_encoder(views.second, step)
        positives = keys[processes.own_rows(len(keys))]
        return StepOutput([Contrast(queries, positives, self.queue.negatives())], keys)

    def after_step(self, fresh_keys: Tensor | None) -> None:
        """Move the key encoder, then enqueue the keys: never before the loss."""
        update_momentum(self.key_encoder.network, self.encoder, self.ema_decay)
        if fresh_keys is not None:
            self.queue.enqueue(fresh_keys, gather=False)

    def warm_up_memory(self, views: Views, number: int = 0) -> None:
        """Put the keys of one batch, or of its part `number`, into the memory."""
        self.queue.enqueue(self.key_encoder(views.second, number), gather=False)
