"""SiMo: MoCo v2 without its memory (Section 3)."""

from dataclasses import dataclass

from eqco.contrast import Contrast, KeyQueue, combine_negatives
from eqco.data import Batch
from eqco.methods.base import (
    BatchAndQueueSettings,
    KeyEncoder,
    Method,
    MethodParts,
    StepOutput,
    batch_negatives,
)
from eqco.runtime import processes

__all__ = ["SiMo", "SiMoSettings"]


@dataclass(frozen=True, kw_only=True)
class SiMoSettings(BatchAndQueueSettings):
    """SiMo: negatives from the batch, keys from a momentum encoder."""

    name = "simo"

    count: int | None = 16
    """Negatives drawn for each query from the batch; None: all N − 1."""
    shared: bool = False
    """One draw for all queries instead of one for each (Remark 2)."""
    queue_size: int = 0
    """Keys of earlier batches as further negatives, for small batches; 0 is the paper's SiMo."""

    def num_batch_negatives(self, num_queries: int) -> int:
        """Every other instance."""
        return num_queries - 1

    def build(self, parts: MethodParts) -> "SiMo":
        """Query encoder, its momentum copy and, if it has a size, the queue."""
        return SiMo(self, parts)


class SiMo(Method):
    """Positives and negatives both come from the momentum encoder and the current batch.

    One direction: queries are of the first view, keys of the second. Only the query's own key is
    excluded.
    """

    def __init__(self, settings: SiMoSettings, parts: MethodParts):
        super().__init__()
        self.settings, self.objective, self.seed = settings, parts.objective, parts.seed
        self.encoder = parts.make_encoder()
        self.key_encoder = KeyEncoder(self.encoder, settings, parts)
        self.queue: KeyQueue | None = None
        if settings.queue_size:
            dim = self.encoder.embedding_dim
            self.queue = KeyQueue(settings.queue_size, dim, seed=parts.seed)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """One contrast: queries of the first view against keys of the second."""
        queries = self.encoder(batch.views[0])
        keys = self.key_encoder(batch.views[1], step)
        positives = keys[processes.own_rows(len(keys))]
        count, shared = self.settings.count, self.settings.shared
        negatives = batch_negatives(keys, count=count, shared=shared, seed=self.seed, draw=step)
        memory = None if self.queue is None else self.queue.negatives()
        if memory is not None and self.objective.source != "queue":
            negatives, memory = combine_negatives(negatives, memory), None
        contrasts = (Contrast(queries, positives, negatives, index=batch.index, memory=memory),)
        new_keys = None if self.queue is None else keys
        return StepOutput(self.objective(contrasts), contrasts, new_keys)

    def after_step(self, output: StepOutput) -> None:
        """Move the key encoder; enqueue the keys if there is a queue."""
        self.key_encoder.follow(self.encoder)
        if self.queue is not None and output.new_keys is not None:
            self.queue.enqueue(output.new_keys, gather=False)

    def warm_up(self, batch: Batch, number: int = 0) -> None:
        """Put the keys of one batch, or of its micro-batch `number`, into the queue, if any."""
        if self.queue is not None:
            self.queue.enqueue(self.key_encoder(batch.views[1], number), gather=False)
