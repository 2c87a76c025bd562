"""SimCLR: both views are queries and keys, and keys carry gradient."""

from dataclasses import dataclass

from torch import Tensor

from eqco.contrast import Contrast
from eqco.data import Batch
from eqco.methods.base import (
    Method,
    MethodParts,
    MethodSettings,
    StepOutput,
    batch_negatives,
    check_count,
)
from eqco.runtime import processes

__all__ = ["SimCLR", "SimCLRSettings", "both_directions"]


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

    @property
    def num_contrasts(self) -> int:
        """Both directions."""
        return 2

    def num_batch_negatives(self, num_queries: int) -> int:
        """Every other instance, once or twice."""
        return (2 if self.both_views else 1) * (num_queries - 1)

    def num_negatives(self, num_queries: int) -> int:
        """K: all of them, or those drawn."""
        return self.num_batch_negatives(num_queries) if self.count is None else self.count

    def check(self, *, num_queries: int) -> None:
        """Refuse more negatives than the batch offers."""
        check_count(
            self.count, offered=self.num_batch_negatives(num_queries), num_queries=num_queries
        )

    def build(self, parts: MethodParts) -> "SimCLR":
        """One encoder."""
        return SimCLR(self, parts)


class SimCLR(Method):
    """Two contrasts, one for each view as queries; their losses, each a mean over N, are added.

    Paper: SimCLR's code and the authors' release add them, and the published rate is meant for
    that; see docs/paper_notes.md#the-sum-of-two-directions.
    """

    def __init__(self, settings: SimCLRSettings, parts: MethodParts):
        super().__init__()
        self.settings, self.objective, self.seed = settings, parts.objective, parts.seed
        self.encoder = parts.make_encoder()

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """Two contrasts of weight one; the margin applies in both directions."""
        settings, (first, second) = self.settings, map(self.encoder, batch.views)
        contrasts = both_directions(
            first,
            second,
            batch.index,
            count=settings.count,
            shared=settings.shared,
            both_views=settings.both_views,
            seed=self.seed,
            step=step,
        )
        return StepOutput(self.objective(contrasts), contrasts)

    def after_step(self, output: StepOutput) -> None:
        """Nothing to keep: every key is of the current batch."""


def both_directions(
    first: Tensor,
    second: Tensor,
    index: Tensor,
    *,
    count: int | None,
    shared: bool = False,
    both_views: bool = True,
    seed: int,
    step: int,
) -> list[Contrast]:
    """Each view as queries, against keys of the other instances in one or both views."""
    # keys carry gradient, so that they are gathered with it
    keys = [processes.gather_with_gradient(view) for view in (first, second)]
    contrasts = []
    for direction, (queries, positives) in enumerate(((first, second), (second, first))):
        other_view_keys, same_view_keys = keys[1 - direction], keys[direction]
        pool = (other_view_keys, same_view_keys) if both_views else (other_view_keys,)
        draw = 2 * step + direction
        negatives = batch_negatives(*pool, count=count, shared=shared, seed=seed, draw=draw)
        contrasts.append(Contrast(queries, positives, negatives, index=index))
    return contrasts
