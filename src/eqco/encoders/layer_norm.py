"""Layer norm in place of batch norm: each image is normalised for itself."""

from typing import TypeVar

from torch import nn

__all__ = ["LAYER_NORM", "layer_norm"]

Network = TypeVar("Network", bound=nn.Module)

# What a backbone's name ends with where it has layer norm.
LAYER_NORM = "-ln"


def layer_norm(module: Network) -> Network:
    """Put layer norm over channels and places in the place of every batch norm of a network.

    Scale and shift of each channel keep their names and values; running statistics are gone, so
    that weights of one kind are never taken for the other. The module is changed and returned.

    >>> type(layer_norm(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)))[1]).__name__
    'GroupNorm'
    """
    for owner in list(module.modules()):
        for name, child in owner.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                norm = nn.GroupNorm(1, child.num_features, child.eps, child.affine)
                if child.affine:
                    norm.weight, norm.bias = child.weight, child.bias
                setattr(owner, name, norm)
    return module
