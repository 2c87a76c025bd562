"""SimCLR: both views ask and both answer, and keys carry gradient."""

from torch import Tensor

from eqco.contrast import Contrast
from eqco.data import Views
from eqco.encoders import Encoder
from eqco.methods.base import Method, StepOutput, batch_negatives
from eqco.runtime import processes

__all__ = ["SimCLR"]


class SimCLR(Method):
    """Two contrasts, one for each view as queries; their losses, each a mean over N, are added.

    Paper: SimCLR's code and the authors' release add them, and the published rate is meant for
    that; see docs/paper_notes.md#the-sum-of-two-directions.

    Args:
        encoder: the only encoder.
        num_negatives: K, drawn for each query independently; None: all that the batch offers,
            2N − 2 with both views as keys, N − 1 with the other view only.
        shared: one draw for all queries of a contrast.
        both_views: keys of both views are negatives; otherwise those of the other view only.
        seed: of the draws.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        num_negatives: int | None = None,
        shared: bool = False,
        both_views: bool = True,
        seed: int = 0,
    ):
        super().__init__()
        self.encoder = encoder
        self.num_negatives = num_negatives
        self.shared = shared
        self.both_views = both_views
        self.seed = seed

    def forward(self, views: Views, step: int) -> StepOutput:
        """Two contrasts of weight one; the margin applies in both directions."""
        first, second = self.encoder(views.first), self.encoder(views.second)
        # keys carry gradient, so that they are gathered with it
        keys = [processes.gather_with_gradient(view) for view in (first, second)]
        contrasts = []
        for direction, (queries, positives) in enumerate(((first, second), (second, first))):
            answers, asked = keys[1 - direction], keys[direction]
            pool = (answers, asked) if self.both_views else (answers,)
            negatives = batch_negatives(
                *pool,
                count=self.num_negatives,
                shared=self.shared,
                seed=self.seed,
                draw=2 * step + direction,
            )
            contrasts.append(Contrast(queries, positives, negatives))
        return StepOutput(contrasts)

    def after_step(self, fresh_keys: Tensor | None) -> None:
        """Nothing to remember: every key is of the current batch."""
