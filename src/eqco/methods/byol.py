"""BYOL: each view predicts a momentum encoder's embedding of the other; there are no negatives."""

from dataclasses import dataclass

from eqco.data import Batch
from eqco.encoders import byol_head
from eqco.encoders.momentum import EMASchedule
from eqco.methods.base import (
    KeyEncoder,
    KeyEncoderSettings,
    Method,
    MethodParts,
    StepOutput,
    check_batch_norm_size,
    seeded_weights,
    unit_rows,
)
from eqco.runtime import processes

__all__ = ["BYOL", "BYOLSettings"]


@dataclass(frozen=True, kw_only=True)
class BYOLSettings(KeyEncoderSettings):
    """BYOL: a predictor and a momentum encoder in place of negatives."""

    name = "byol"
    has_temperature = False

    ema_decay: float = 0.99
    """β of the momentum encoder at the beginning."""
    ema_schedule: EMASchedule = "cosine"
    """cosine: β rises from ema_decay to 1 over the training; rising: from 0 to ema_decay over its
    first six tenths."""

    def num_negatives(self, num_queries: int) -> None:
        """There are none."""

    def check(self, *, num_queries: int) -> None:
        """Refuse a batch that has no statistics."""
        super().check(num_queries=num_queries)
        check_batch_norm_size(num_queries)

    def build(self, parts: MethodParts) -> "BYOL":
        """Encoder, its momentum copy and the predictor."""
        return BYOL(self, parts)


class BYOL(Method):
    """Two regressions, one for each view; their losses, each a mean over N, are added."""

    def __init__(self, settings: BYOLSettings, parts: MethodParts):
        super().__init__()
        self.encoder = parts.make_encoder()
        self.key_encoder = KeyEncoder(self.encoder, settings, parts)
        dim, hidden = self.encoder.embedding_dim, 2 * self.encoder.feature_dim
        with seeded_weights("predictor", parts.seed):
            self.predictor = byol_head(dim, dim, hidden)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """‖q − k‖² of unit vectors: predictions q, and embeddings k of the other view."""
        first, second = batch.views
        embeddings = self.encoder(first), self.encoder(second)
        distances = []
        for direction, other in enumerate((second, first)):
            queries = unit_rows(self.predictor(embeddings[direction]))
            keys = self.key_encoder(other, 2 * step + direction)
            keys = keys[processes.own_rows(len(keys))]
            distances.append((queries - keys).square().sum(dim=1).mean())
        return StepOutput(distances[0] + distances[1], embeddings=embeddings[0].detach())

    def after_step(self, output: StepOutput) -> None:
        """Move the momentum encoder."""
        self.key_encoder.follow(self.encoder)
