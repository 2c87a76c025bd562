"""Values on their way to the device that computes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

__all__ = ["copy_to", "iterate"]


def copy_to(device: torch.device, values: Tensor) -> Tensor:
    """Values of the CPU on that device; a GPU takes them in its turn, and the host goes on."""
    return values.to(device, non_blocking=device.type == "cuda")


def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
    """What a loader gives, under any default device: its workers' seed is drawn on the CPU, and so
    is what they make.
    """
    with torch.device("cpu"):
        return iter(loader)
