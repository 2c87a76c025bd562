"""The objective of the published memory banks: NCE, its normaliser fixed before the first step."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eqco.contrast.negatives import Contrast, key_indices
from eqco.contrast.vectors import precision, with_lengths, without_autocast
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.theory.nce import first_log_normaliser, noise_contrastive

__all__ = ["NCEObjective", "cosines"]


class NCEObjective(nn.Module):
    """A step's loss from its contrasts by `noise_contrastive`, in place of `Objective`.

    `fix_normaliser` is called once, with the contrasts of one batch, before the first step. log Z
    of each contrast is in the state dict.

    Args:
        num_instances: of the data set.
        num_contrasts: how many contrasts a step has, each with a Z of its own.
        temperature: τ.
    """

    log_normaliser: Tensor
    source = "batch"

    def __init__(self, num_instances: int, num_contrasts: int, *, temperature: float):
        super().__init__()
        self.num_instances, self.temperature = num_instances, temperature
        self.register_buffer("log_normaliser", torch.full((num_contrasts,), torch.nan))

    def forward(self, contrasts: Sequence[Contrast]) -> Tensor:
        """Weighted sum of the mean losses."""
        if self.log_normaliser.device.type == "cpu" and bool(self.log_normaliser.isnan().any()):
            raise InputError(
                "the normaliser of NCE is not fixed yet. Give one batch to warm_up before the "
                "first step."
            )
        losses = [
            contrast.weight
            * noise_contrastive(
                *cosines(contrast),
                temperature=self.temperature,
                log_normaliser=log_normaliser,
                num_instances=self.num_instances,
            ).mean()
            for contrast, log_normaliser in zip(contrasts, self.log_normaliser, strict=True)
        ]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def fix_normaliser(self, contrasts: Sequence[Contrast]) -> None:
        """Take log Z from the pairs of one batch, those of all processes."""
        own = [
            first_log_normaliser(
                *cosines(contrast), temperature=self.temperature, num_instances=self.num_instances
            )
            for contrast in contrasts
        ]
        every = processes.gather(torch.stack(own)[None])
        self.log_normaliser.copy_(every.logsumexp(0) - math.log(len(every)))


def cosines(contrast: Contrast) -> tuple[Tensor, Tensor]:
    """With the positive, (N,), and with each negative, (N, K), in float32 or better."""
    negatives = contrast.negatives
    given = contrast.queries, contrast.positives, negatives.keys
    with without_autocast(contrast.queries):
        dtype = precision(*given)
        queries, positives, keys = (with_lengths(each, dtype, unit=True)[0] for each in given)
        every = queries @ keys.t()
        return (queries * positives).sum(dim=1), every.gather(
            1, key_indices(negatives, len(queries))
        )
