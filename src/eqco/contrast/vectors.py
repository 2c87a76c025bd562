"""Vectors in the type the loss computes in, of length one, and gradients through that."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

# Vectors no longer than this have no direction to speak of, and count as zero.
SHORTEST = 1e-12


def precision(*tensors: Tensor) -> torch.dtype:
    """The type to compute in: float64 where an input is, float32 for all others."""
    doubles = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if doubles else torch.float32


def with_lengths(
    vectors: Tensor, dtype: torch.dtype, unit: bool, memory: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Vectors in the type to compute in, of length one where `unit`, and the lengths they had.

    Args:
        memory: where to write vectors of length one, (at least as many, D).
    """
    vectors = vectors.to(dtype)
    if not unit:
        return vectors, None
    norm = lengths(vectors)
    if memory is None:
        return vectors / norm, norm
    return torch.div(vectors, norm, out=memory[: len(vectors)]), norm


def lengths(vectors: Tensor) -> Tensor:
    """The length of each vector, (…, 1); infinite for one too short to have a direction.

    Over an infinite length short vectors become zero, and so does what is carried back to them.
    """
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return F.threshold(norm, SHORTEST, torch.inf, inplace=not norm.requires_grad)


def through_norm(gradient: Tensor, unit_vectors: Tensor, norm: Tensor | None) -> Tensor:
    """Carry a gradient back through v / ‖v‖: (g − v̂ (v̂·g)) / ‖v‖."""
    if norm is None:
        return gradient
    along = (unit_vectors * gradient).sum(dim=-1, keepdim=True)
    return torch.addcmul(gradient, unit_vectors, along, value=-1).div_(norm)


def through_norm_(gradient: Tensor, unit_vectors: Tensor, norm: Tensor | None) -> None:
    """`through_norm` in place."""
    if norm is not None:
        along = (unit_vectors * gradient).sum(dim=-1, keepdim=True)
        gradient.addcmul_(unit_vectors, along, value=-1).div_(norm)


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """The loss is computed in float32 or better, also under autocast."""
    device = tensor.device.type
    # asked of meta tensors, and not while compiling: torch 2.9 cannot trace the question
    known = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    if known and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
