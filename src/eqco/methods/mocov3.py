"""MoCo v3: SiMo's idea in both directions, with a predictor."""

from dataclasses import dataclass

from eqco.contrast import Contrast
from eqco.data import Batch
from eqco.encoders import mocov3_head
from eqco.encoders.momentum import EMASchedule
from eqco.methods.base import (
    KeyEncoder,
    KeyEncoderSettings,
    Method,
    MethodParts,
    StepOutput,
    batch_negatives,
    check_count,
    seeded_weights,
)
from eqco.runtime import processes

__all__ = ["MoCoV3", "MoCoV3Settings"]


@dataclass(frozen=True, kw_only=True)
class MoCoV3Settings(KeyEncoderSettings):
    """MoCo v3: negatives from the batch, keys from a momentum encoder, both views as queries."""

    name = "mocov3"
    one_contrast = "one of two directions; their losses are added, each times 2·temperature"

    count: int | None = None
    """Negatives drawn for each query from the keys of the other view; None: all N − 1."""
    ema_decay: float = 0.99
    """β of the key encoder at the beginning."""
    ema_schedule: EMASchedule = "cosine"
    """cosine: β rises from ema_decay to 1 over the training; rising: from 0 to ema_decay over its
    first six tenths."""

    @property
    def num_contrasts(self) -> int:
        """Both directions."""
        return 2

    def num_batch_negatives(self, num_queries: int) -> int:
        """Every other instance."""
        return num_queries - 1

    def num_negatives(self, num_queries: int) -> int:
        """K: all of them, or those drawn."""
        return self.num_batch_negatives(num_queries) if self.count is None else self.count

    def check(self, *, num_queries: int) -> None:
        """Refuse more negatives than the batch offers."""
        super().check(num_queries=num_queries)
        check_count(
            self.count, offered=self.num_batch_negatives(num_queries), num_queries=num_queries
        )

    def build(self, parts: MethodParts) -> "MoCoV3":
        """Query encoder, its momentum copy and the predictor."""
        return MoCoV3(self, parts)


class MoCoV3(Method):
    """Two contrasts, each of weight 2τ, so that the size of the gradient does not follow τ."""

    def __init__(self, settings: MoCoV3Settings, parts: MethodParts):
        super().__init__()
        self.settings, self.objective, self.seed = settings, parts.objective, parts.seed
        self.encoder = parts.make_encoder()
        self.key_encoder = KeyEncoder(self.encoder, settings, parts)
        # Published: the key encoder moves before the keys of a step, which is after the step
        # before. The move before the first keys changes nothing, but its β has been used up.
        self.key_encoder.updates = 1
        dim, hidden = self.encoder.embedding_dim, 2 * self.encoder.feature_dim
        with seeded_weights("predictor", parts.seed):
            self.predictor = mocov3_head(dim, dim, hidden, last_norm=False)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """Queries of each view against keys of the other."""
        queries = [self.predictor(self.encoder(view)) for view in batch.views]
        contrasts = []
        for direction, other in enumerate(reversed(batch.views)):
            draw = 2 * step + direction
            keys = self.key_encoder(other, draw)
            positives = keys[processes.own_rows(len(keys))]
            count = self.settings.count
            negatives = batch_negatives(keys, count=count, shared=False, seed=self.seed, draw=draw)
            weight = 2 * self.objective.temperature
            contrasts.append(
                Contrast(queries[direction], positives, negatives, weight, index=batch.index)
            )
        return StepOutput(self.objective(contrasts), contrasts)

    def after_step(self, output: StepOutput) -> None:
        """Move the key encoder."""
        self.key_encoder.follow(self.encoder)
