"""Vision transformers of timm: images of other sizes, and the fixed first layer of MoCo v3."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = ["fix_patches", "resize_input", "sine_cosine_positions", "stored_size"]


def fix_patches(network: nn.Module) -> None:
    """Give a transformer a random projection of its patches and sine-cosine positions, both fixed.

    As in MoCo v3, where a first layer that learns makes gradients jump and accuracy fall. The
    projection is drawn uniformly, with the deviation of Xavier's.
    """
    patches: Any = getattr(network, "patch_embed", None)
    positions, projection = getattr(network, "pos_embed", None), getattr(patches, "proj", None)
    if not isinstance(projection, nn.Conv2d) or not isinstance(positions, nn.Parameter):
        raise InputError(
            f"encoder.fixed_patches with a {type(network).__name__}, which has no patches with "
            f"positions. Leave it out, or choose a vision transformer such as "
            f"timm:vit_tiny_patch16_224."
        )
    weight = projection.weight
    limit = math.sqrt(6 / (weight[0].numel() + len(weight)))
    nn.init.uniform_(weight, -limit, limit)
    if projection.bias is not None:
        nn.init.zeros_(projection.bias)
    rows, columns = patches.grid_size
    grid = sine_cosine_positions(rows, columns, positions.shape[2])
    before = positions.new_zeros(1, positions.shape[1] - grid.shape[1], positions.shape[2])
    positions.data.copy_(torch.cat([before, grid.to(positions)], dim=1))
    patches.requires_grad_(False)
    positions.requires_grad_(False)


def sine_cosine_positions(rows: int, columns: int, dim: int) -> Tensor:
    r"""One vector for each place of a grid, row by row, (1, rows · columns, dim).

    .. math::
        \big(\sin x\omega_i,\ \cos x\omega_i,\ \sin y\omega_i,\ \cos y\omega_i\big), \qquad
        \omega_i = 10000^{-4i/D}, \quad i = 0, \dots, D/4 - 1

    >>> sine_cosine_positions(1, 2, 4)
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0000, 1.0000]]])
    """
    if dim % 4:
        raise InputError(f"positions of dim={dim}; sines and cosines of two need a multiple of 4.")
    frequencies = 10000.0 ** (-torch.arange(dim // 4) / (dim // 4))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [each.reshape(-1, 1) * frequencies for each in (x, y)]
    return torch.cat([f(angle) for angle in angles for f in (torch.sin, torch.cos)], dim=1)[None]


def resize_input(network: nn.Module, image_size: int) -> None:
    """Let a network that is built for one size of image take another, where timm can.

    Position embeddings are interpolated; networks that take any size are left as they are.
    """
    change = getattr(network, "set_input_size", None)
    if change is None:
        return
    fixed = {name for name, each in network.named_parameters() if not each.requires_grad}
    change(img_size=(image_size, image_size))
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name not in fixed)


def stored_size(network: nn.Module, weights: Mapping[str, Tensor]) -> int | None:
    """The size of image that position embeddings in these weights belong to; None: any."""
    positions, patches = weights.get("pos_embed"), getattr(network, "patch_embed", None)
    if (
        patches is None
        or positions is None
        or positions.dim() != 3
        or not hasattr(patches, "patch_size")
    ):
        return None
    prefix = 0 if getattr(network, "no_embed_class", False) else network.num_prefix_tokens
    side = math.isqrt(positions.shape[1] - int(prefix))  # type: ignore[arg-type]
    size: int = side * patches.patch_size[0]
    return size
