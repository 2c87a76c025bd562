"""CMC: lightness and colour of one crop as two views, each scored against a bank of the other."""

from dataclasses import dataclass

import torch

from eqco.contrast import Contrast
from eqco.data import Batch, DataSettings, ViewSpec
from eqco.encoders import ColourSpace, Encoder, pair_encoders, require_colours
from eqco.methods.bank import BankMethod, BankSettings
from eqco.methods.base import MakeEncoder, MethodParts, StepOutput
from eqco.runtime import processes

__all__ = ["CMC", "CMCSettings"]


@dataclass(frozen=True, kw_only=True)
class CMCSettings(BankSettings):
    """CMC: an encoder for luminance and one for colour, and a memory bank of each."""

    name = "cmc"
    num_banks = 2

    colours: ColourSpace = "lab"
    """Where a crop is split into luminance and two bands of colour."""

    def views(self, data: DataSettings) -> tuple[ViewSpec, ...]:
        """One crop."""
        return (data.view,)

    def evaluated_encoder(self, make_encoder: MakeEncoder) -> Encoder:
        """Both encoders, their features side by side."""
        luminance, chroma = make_encoder(0, in_channels=1), make_encoder(1, in_channels=2)
        return pair_encoders(luminance, chroma, self.colours)

    def evaluated_backbone(self, name: str) -> str:
        """One network for each half of the colours."""
        return f"{self.colours}:{name}"

    def build(self, parts: MethodParts) -> "CMC":
        """Two encoders and two banks; images without colours are refused."""
        require_colours("method cmc", parts.channels)
        return CMC(self, parts)


class CMC(BankMethod):
    """Two contrasts of weight one: luminance with the bank of colour, and the other way round.

    Paper: the published code draws negatives with replacement and may draw the query's own row;
    here they differ, and it is never drawn.
    """

    def __init__(self, settings: CMCSettings, parts: MethodParts):
        super().__init__()
        self.settings, self.seed = settings, parts.seed
        self.encoder = settings.evaluated_encoder(parts.make_encoder)
        self.bank = settings.build_bank(self.encoder.embedding_dim // 2, parts)
        self.objective = settings.build_objective(parts)

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """The loss of both directions; the embeddings of both go to their own banks."""
        contrasts = self.contrasts(batch, step)
        keys = torch.cat([contrast.queries for contrast in contrasts], dim=1)
        loss = self.objective(contrasts)
        return StepOutput(loss, contrasts, processes.gather(keys), processes.gather(batch.index))

    def contrasts(self, batch: Batch, step: int) -> tuple[Contrast, ...]:
        """Each half as queries, with rows of the other half's bank."""
        settings, index = self.settings, batch.index
        halves = self.encoder(batch.views[0]).chunk(2, dim=1)
        found = []
        for own, queries in enumerate(halves):
            other = 1 - own
            negatives = self.bank.negatives(
                index,
                settings.count,
                seed=self.seed,
                step=2 * step + own,
                view=other,
                shared=settings.shared,
            )
            positives = self.bank.positives(index, other)
            found.append(Contrast(queries, positives, negatives, index=index))
        return tuple(found)
