"""SimCLR v2: SimCLR with a deeper head and a memory beside the batch."""

from dataclasses import dataclass, replace

from eqco.contrast import KeyQueue, combine_negatives
from eqco.data import Batch
from eqco.methods.base import (
    BatchAndQueueSettings,
    KeyEncoder,
    Method,
    MethodParts,
    StepOutput,
)
from eqco.methods.simclr import both_directions

__all__ = ["SimCLRv2", "SimCLRv2Settings"]


@dataclass(frozen=True, kw_only=True)
class SimCLRv2Settings(BatchAndQueueSettings):
    """SimCLR v2: negatives from the batch, with gradient, and from a memory.

    The head of three layers is the recipe's (encoder.head=simclrv2).
    """

    name = "simclrv2"
    symmetric = True

    count: int | None = None
    """Negatives drawn for each query from the batch; None: all 2N − 2."""
    queue_size: int = 65536
    """Keys of earlier batches as further negatives; 0: none, as in the public code."""
    ema_decay: float = 0.999
    """β of the encoder that makes the keys of the memory (Eq. 16)."""

    @property
    def num_contrasts(self) -> int:
        """Both directions."""
        return 2

    def num_batch_negatives(self, num_queries: int) -> int:
        """Every other instance, twice."""
        return 2 * (num_queries - 1)

    def build(self, parts: MethodParts) -> "SimCLRv2":
        """The encoder and, if the memory has a size, its momentum copy and the memory."""
        return SimCLRv2(self, parts)


class SimCLRv2(Method):
    """SimCLR's two contrasts, each with the memory's keys as further negatives, without gradient.

    Paper: the memory is described in one sentence and missing in the public code. Here each step
    adds the keys of the second view, as MoCo does.
    """

    def __init__(self, settings: SimCLRv2Settings, parts: MethodParts):
        super().__init__()
        self.settings, self.objective, self.seed = settings, parts.objective, parts.seed
        self.encoder = parts.make_encoder()
        self.key_encoder: KeyEncoder | None = None
        self.queue: KeyQueue | None = None
        if settings.queue_size:
            self.key_encoder = KeyEncoder(self.encoder, settings, parts)
            dim = self.encoder.embedding_dim
            self.queue = KeyQueue(settings.queue_size, dim, seed=parts.seed)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """Two contrasts of weight one; the margin counts batch and memory."""
        first, second = map(self.encoder, batch.views)
        contrasts = both_directions(
            first, second, batch.index, count=self.settings.count, seed=self.seed, step=step
        )
        if self.queue is None or self.key_encoder is None:
            return StepOutput(self.objective(contrasts), contrasts)
        memory = self.queue.negatives()
        if self.objective.source == "queue":
            contrasts = [replace(each, memory=memory) for each in contrasts]
        else:
            contrasts = [
                replace(each, negatives=combine_negatives(each.negatives, memory))
                for each in contrasts
            ]
        new_keys = self.key_encoder(batch.views[1], step)
        return StepOutput(self.objective(contrasts), contrasts, new_keys)

    def after_step(self, output: StepOutput) -> None:
        """Move the key encoder, then enqueue the keys, if there is a memory."""
        if self.key_encoder is not None:
            self.key_encoder.follow(self.encoder)
        if self.queue is not None and output.new_keys is not None:
            self.queue.enqueue(output.new_keys, gather=False)

    def warm_up(self, batch: Batch, number: int = 0) -> None:
        """Put the keys of one batch, or of its micro-batch `number`, into the memory, if any."""
        if self.queue is not None and self.key_encoder is not None:
            self.queue.enqueue(self.key_encoder(batch.views[1], number), gather=False)
