"""MoCo v1 and v2: negatives from a queue of keys.

They differ in head, augmentation, temperature and schedule, which are the recipe's.
"""

from dataclasses import dataclass

from eqco.contrast import Contrast, KeyQueue
from eqco.data import Batch
from eqco.methods.base import KeyEncoder, KeyEncoderSettings, Method, MethodParts, StepOutput
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["MoCo", "MoCoSettings"]


@dataclass(frozen=True, kw_only=True)
class MoCoSettings(KeyEncoderSettings):
    """MoCo: negatives from a queue of keys of earlier batches."""

    name = "moco"

    queue_size: int = 65536
    """K, the keys that are kept. With fewer than N they are a random choice of the last batch."""
    shuffle_bn: bool = True
    """Shuffling BN, over encoder.bn_groups parts, instead of one statistic."""

    def num_negatives(self, num_queries: int) -> int:
        """K: the whole queue."""
        return self.queue_size

    def check(self, *, num_queries: int) -> None:
        """Refuse an empty queue."""
        super().check(num_queries=num_queries)
        if self.queue_size < 1:
            raise InputError(
                f"method.queue_size={self.queue_size}; MoCo needs the size of its queue, K. Give "
                f"it, such as --method.queue-size 4096."
            )

    def build(self, parts: MethodParts) -> "MoCo":
        """Query encoder, its momentum copy and the queue."""
        return MoCo(self, parts)


class MoCo(Method):
    """The momentum encoder's keys of earlier batches are the negatives."""

    def __init__(self, settings: MoCoSettings, parts: MethodParts):
        super().__init__()
        self.objective = parts.objective
        self.encoder = parts.make_encoder()
        self.key_encoder = KeyEncoder(self.encoder, settings, parts)
        dim = self.encoder.embedding_dim
        self.queue = KeyQueue(settings.queue_size, dim, seed=parts.seed)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """One contrast: queries against their keys and the queue."""
        queries = self.encoder(batch.views[0])
        keys = self.key_encoder(batch.views[1], step)
        positives = keys[processes.own_rows(len(keys))]
        contrasts = (Contrast(queries, positives, self.queue.negatives(), index=batch.index),)
        return StepOutput(self.objective(contrasts), contrasts, keys)

    def after_step(self, output: StepOutput) -> None:
        """Move the key encoder, then enqueue the keys: never before the loss."""
        self.key_encoder.follow(self.encoder)
        if output.new_keys is not None:
            self.queue.enqueue(output.new_keys, gather=False)

    def warm_up(self, batch: Batch, number: int = 0) -> None:
        """Put the keys of one batch, or of its micro-batch `number`, into the queue."""
        self.queue.enqueue(self.key_encoder(batch.views[1], number), gather=False)
