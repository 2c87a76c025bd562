"""Projection heads: from backbone features (N, in_dim) to embeddings (N, out_dim).

Embeddings leave the head as they are; the loss puts them on the unit sphere.
"""

from torch import nn

from eqco.runtime.errors import InputError

__all__ = ["linear_head", "mlp_head", "normalised_head"]


def linear_head(in_dim: int, out_dim: int = 128) -> nn.Linear:
    """MoCo v1's head: one linear layer.

    >>> linear_head(2048)
    Linear(in_features=2048, out_features=128, bias=True)
    """
    _check_sizes(in_dim=in_dim, out_dim=out_dim)
    return nn.Linear(in_dim, out_dim)


def mlp_head(in_dim: int, out_dim: int = 128, hidden_dim: int | None = None) -> nn.Sequential:
    """MoCo v2's head: linear, ReLU, linear; with biases, without batch norm; hidden as in_dim."""
    hidden = in_dim if hidden_dim is None else hidden_dim
    _check_sizes(in_dim=in_dim, out_dim=out_dim, hidden_dim=hidden)
    return nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), nn.Linear(hidden, out_dim))


def normalised_head(
    in_dim: int, out_dim: int = 128, hidden_dim: int | None = None
) -> nn.Sequential:
    """SiMo's and SimCLR's head: an affine batch norm after each linear layer, no biases."""
    hidden = in_dim if hidden_dim is None else hidden_dim
    _check_sizes(in_dim=in_dim, out_dim=out_dim, hidden_dim=hidden)
    return nn.Sequential(
        nn.Linear(in_dim, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, out_dim, bias=False),
        nn.BatchNorm1d(out_dim),
    )


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"a head with {name}={size}; it must be 1 or more.")
