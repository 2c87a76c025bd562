"""Values on their way to the device that computes."""

import torch
from torch import Tensor

__all__ = ["copy_to"]


def copy_to(device: torch.device, values: Tensor) -> Tensor:
    """Values of the CPU on that device; a GPU takes them in its turn, and the host goes on."""
    return values.to(device, non_blocking=device.type == "cuda")
