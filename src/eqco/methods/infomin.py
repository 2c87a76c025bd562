"""InfoMin Aug.: MoCo v2 with stronger views (the recipe's) and a jigsaw of a third one."""

from dataclasses import dataclass

from eqco.contrast import Contrast
from eqco.data import Batch, DataSettings, ViewSpec
from eqco.methods.base import MethodParts, StepOutput
from eqco.methods.jigsaw import JigsawBranch, check_weight, jigsaw_view, patch_side
from eqco.methods.moco import MoCo, MoCoSettings
from eqco.runtime import processes

__all__ = ["InfoMin", "InfoMinSettings"]


@dataclass(frozen=True, kw_only=True)
class InfoMinSettings(MoCoSettings):
    """InfoMin Aug.: a view and a jigsaw, both scored against MoCo's key and queue."""

    name = "infomin"
    one_contrast = (
        "the view's part of the loss; a jigsaw is a second query of the same keys, half of it each"
    )

    jigsaw_weight: float = 0.5
    """The share of the patches' loss."""

    @property
    def num_contrasts(self) -> int:
        """The view and the jigsaw."""
        return 2

    def views(self, data: DataSettings) -> tuple[ViewSpec, ...]:
        """Query, key, and a larger view with its own colours to cut patches from."""
        return (data.view, data.view, jigsaw_view("jigsaw", data.image_size))

    def input_sizes(self, data: DataSettings) -> tuple[int, ...]:
        """The image and the patches."""
        query, _, jigsaw = self.views(data)
        return (query.size, patch_side(jigsaw.size))

    def check(self, *, num_queries: int) -> None:
        """Refuse weights that leave out one of the two losses."""
        super().check(num_queries=num_queries)
        check_weight(self.jigsaw_weight)

    def build(self, parts: MethodParts) -> "InfoMin":
        """MoCo's parts, and the patches' head."""
        return InfoMin(self, parts)


class InfoMin(MoCo):
    """MoCo with a second contrast: the same positives and queue, queries of patches."""

    def __init__(self, settings: InfoMinSettings, parts: MethodParts):
        super().__init__(settings, parts)
        self.jigsaw_weight = settings.jigsaw_weight
        self.jigsaw = JigsawBranch(self.encoder.embedding_dim, parts)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """Two contrasts, one for the view and one for the jigsaw as queries."""
        queries = self.encoder(batch.views[0]), self.jigsaw(self.encoder, batch.views[2], step)
        keys = self.key_encoder(batch.views[1], step)
        positives, negatives = keys[processes.own_rows(len(keys))], self.queue.negatives()
        contrasts = tuple(
            Contrast(each, positives, negatives, weight=share, index=batch.index)
            for each, share in zip(
                queries, (1 - self.jigsaw_weight, self.jigsaw_weight), strict=True
            )
        )
        return StepOutput(self.objective(contrasts), contrasts, keys)
