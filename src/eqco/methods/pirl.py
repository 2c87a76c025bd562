"""PIRL: an image and its jigsaw, both scored against a bank of image embeddings."""

from dataclasses import dataclass

from eqco.contrast import Contrast
from eqco.data import Batch, DataSettings, ViewSpec
from eqco.methods.bank import BankMethod, BankSettings
from eqco.methods.base import MethodParts, StepOutput
from eqco.methods.jigsaw import JigsawBranch, check_weight, jigsaw_view, patch_side
from eqco.runtime import processes

__all__ = ["PIRL", "PIRLSettings"]


@dataclass(frozen=True, kw_only=True)
class PIRLSettings(BankSettings):
    """PIRL: nine patches in any order are drawn to what their image was."""

    name = "pirl"
    one_contrast = (
        "the image's part of the loss; its jigsaw, the other half, is scored against the same rows"
    )

    count: int = 32000
    """K: rows of other images that each query is scored against."""
    jigsaw_weight: float = 0.5
    """λ: the share of the patches' loss; the image's is 1 − λ."""

    def views(self, data: DataSettings) -> tuple[ViewSpec, ...]:
        """The image, and a larger view to cut patches from."""
        return (data.view, jigsaw_view("pirl-jigsaw", data.image_size))

    def input_sizes(self, data: DataSettings) -> tuple[int, ...]:
        """The image and the patches."""
        image, jigsaw = self.views(data)
        return (image.size, patch_side(jigsaw.size))

    def check(self, *, num_queries: int) -> None:
        """Refuse weights that leave out one of the two losses."""
        super().check(num_queries=num_queries)
        check_weight(self.jigsaw_weight)

    def build(self, parts: MethodParts) -> "PIRL":
        """One encoder, the patches' head and a bank."""
        return PIRL(self, parts)


class PIRL(BankMethod):
    """Two contrasts: image and patches, each with the image's row as positive, and one draw.

    Paper: the published code draws the colours of each patch anew; here the nine share those of
    their view. Its posterisation, sharpening and solarisation are left out.
    """

    def __init__(self, settings: PIRLSettings, parts: MethodParts):
        super().__init__()
        self.settings, self.seed = settings, parts.seed
        self.encoder = parts.make_encoder()
        dim = self.encoder.embedding_dim
        self.jigsaw = JigsawBranch(dim, parts)
        self.bank = settings.build_bank(dim, parts)
        self.objective = settings.build_objective(parts)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """The loss of both; only embeddings of images go to the bank."""
        contrasts = self.contrasts(batch, step)
        keys = processes.gather(contrasts[0].queries)
        loss = self.objective(contrasts)
        return StepOutput(loss, contrasts, keys, processes.gather(batch.index))

    def contrasts(self, batch: Batch, step: int) -> tuple[Contrast, ...]:
        """The image, then the patches."""
        settings, (images, jigsaws) = self.settings, batch.views
        positives = self.bank.positives(batch.index)
        negatives = self.bank.negatives(
            batch.index, settings.count, seed=self.seed, step=step, shared=settings.shared
        )
        weight = settings.jigsaw_weight
        queries = self.encoder(images), self.jigsaw(self.encoder, jigsaws, step)
        return tuple(
            Contrast(each, positives, negatives, weight=share, index=batch.index)
            for each, share in zip(queries, (1 - weight, weight), strict=True)
        )
