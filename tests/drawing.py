"""Random embeddings and similarities for the tests, in float64 and from a seed."""

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

seeds = st.integers(0, 2**31 - 1)


def unit_vectors(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)


def random_cosines(seed: int, num_queries: int, num_negatives: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = num_queries, num_negatives + 1
    cosines = torch.rand(shape, dtype=torch.float64, generator=generator) * 2 - 1
    return cosines[:, 0], cosines[:, 1:]
