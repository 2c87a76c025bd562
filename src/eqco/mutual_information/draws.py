"""Reproducible draws: what a critic sees depends on its own settings, never on its neighbours."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eqco.runtime.seeds import random_source
from eqco.theory import gaussian_correlation

__all__ = ["PairDraws"]


class PairDraws:
    r"""Fresh pairs of correlated Gaussians (Eq. 9) for several values of information at once.

    .. math:: Y = \rho X + \sqrt{1 - \rho^2}\, \epsilon, \qquad \rho = \sqrt{1 - e^{-2I/d}}

    >>> draws = PairDraws([2.0, 6.0], dim=20, seed=0, num_pairs=64, purpose="training")
    >>> x, y = draws.pairs(64)
    >>> x.shape, y.shape
    (torch.Size([2, 64, 20]), torch.Size([2, 64, 20]))
    """

    def __init__(
        self, informations: Sequence[float], *, dim: int, seed: int, num_pairs: int, purpose: str
    ):
        correlations = [gaussian_correlation(value, dim) for value in informations]
        self.correlation = torch.tensor(correlations)[:, None, None]
        self.rest = torch.tensor([math.sqrt(1 - c * c) for c in correlations])[:, None, None]
        self.dim = dim
        self.sources = [random_source(seed, num_pairs, value, purpose) for value in informations]

    def pairs(self, count: int) -> tuple[Tensor, Tensor]:
        """`count` pairs for each value of information: X and Y, each (I, count, d)."""
        noise = self.independent(2 * count)
        x, epsilon = noise[:, :count], noise[:, count:]
        return x, torch.addcmul(self.rest * epsilon, self.correlation, x)

    def independent(self, count: int) -> Tensor:
        """`count` draws of Y alone, that is of its marginal, a standard Gaussian: (I, count, d)."""
        noise = torch.empty(len(self.sources), count, self.dim)
        for row, source in zip(noise, self.sources, strict=True):
            row.normal_(generator=source)
        return noise
