"""Tensors on "cuda" without a GPU, for tests that ask where things are."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def draws_without_a_gpu() -> bool:
    """Whether layers can be made there; older versions of torch ask for the driver."""
    try:
        with FakeTensorMode():
            torch.nn.Linear(2, 2, device="cuda")
    except RuntimeError:
        return False
    return True


needs_fake_cuda = pytest.mark.skipif(
    not draws_without_a_gpu(), reason="this version of torch draws no numbers on a fake GPU"
)
