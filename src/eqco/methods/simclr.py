"""SimCLR: both views are queries and keys, and keys carry gradient."""

from dataclasses import dataclass

from eqco.contrast import Contrast, Objective
from eqco.data import Batch
from eqco.encoders import Encoder
from eqco.methods.base import (
    Method,
    MethodParts,
    MethodSettings,
    StepOutput,
    batch_negatives,
    check_count,
)
from eqco.runtime import processes

__all__ = ["SimCLR", "SimCLRSettings"]


@dataclass(frozen=True, kw_only=True)
class SimCLRSettings(MethodSettings):
    """SimCLR: negatives from the batch, one encoder for queries and keys."""

    name = "simclr"
    symmetric = True

    count: int | None = None
    """Negatives drawn for each query from the batch; None: all 2N − 2, or N − 1 of one view."""
    shared: bool = False
    """One draw for all queries of a direction instead of one for each."""
    both_views: bool = True
    """Keys of both views are negatives; otherwise those of the other view only."""

    def offered(self, num_queries: int) -> int:
        """Every other instance, once or twice."""
        return (2 if self.both_views else 1) * (num_queries - 1)

    def num_negatives(self, num_queries: int) -> int:
        """K: all of them, or those drawn."""
        return self.offered(num_queries) if self.count is None else self.count

    def check(self, *, num_queries: int) -> None:
        """Refuse more negatives than the batch offers."""
        check_count(self.count, offered=self.offered(num_queries), num_queries=num_queries)

    def build(self, parts: MethodParts) -> "SimCLR":
        """One encoder."""
        return SimCLR(
            parts.make_encoder(0),
            objective=parts.objective,
            count=self.count,
            shared=self.shared,
            both_views=self.both_views,
            seed=parts.seed,
        )


class SimCLR(Method):
    """Two contrasts, one for each view as queries."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        objective: Objective,
        count: int | None = None,
        shared: bool = False,
        both_views: bool = True,
        seed: int = 0,
    ):
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.count = count
        self.shared = shared
        self.both_views = both_views
        self.seed = seed

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """Two contrasts of equal weight; the margin applies in both directions."""
        first, second = (self.encoder(view) for view in batch.views)
        # keys carry gradient, so that they are gathered with it
        keys = [processes.gather_with_gradient(view) for view in (first, second)]
        contrasts = []
        for direction, (queries, positives) in enumerate(((first, second), (second, first))):
            other_view_keys, same_view_keys = keys[1 - direction], keys[direction]
            pool = (other_view_keys, same_view_keys) if self.both_views else (other_view_keys,)
            negatives = batch_negatives(
                *pool,
                count=self.count,
                shared=self.shared,
                seed=self.seed,
                draw=2 * step + direction,
            )
            contrasts.append(Contrast(queries, positives, negatives, weight=0.5))
        return StepOutput(self.objective(contrasts), contrasts)

    def after_step(self, output: StepOutput) -> None:
        """Nothing to keep: every key is of the current batch."""
