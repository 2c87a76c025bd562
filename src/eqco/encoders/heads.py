"""Projection heads: from backbone features (N, in_dim) to embeddings (N, out_dim).

Embeddings leave the head as they are; the loss puts them on the unit sphere.
"""

from torch import nn

from eqco.runtime.errors import InputError

__all__ = [
    "byol_head",
    "linear_head",
    "mlp_head",
    "mocov3_head",
    "normalised_head",
    "simclrv2_head",
    "swav_head",
]


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
        *_hidden_layer(in_dim, hidden, bias=False),
        nn.Linear(hidden, out_dim, bias=False),
        nn.BatchNorm1d(out_dim),
    )


def simclrv2_head(in_dim: int, out_dim: int = 128, hidden_dim: int | None = None) -> nn.Sequential:
    """SimCLR v2's head: SimCLR's with one more layer; head[:3] is the first of the three.

    >>> [type(layer).__name__ for layer in simclrv2_head(8, 4)[:3]]
    ['Linear', 'BatchNorm1d', 'ReLU']
    """
    hidden = in_dim if hidden_dim is None else hidden_dim
    _check_sizes(in_dim=in_dim, hidden_dim=hidden)
    first = _hidden_layer(in_dim, hidden, bias=False)
    return nn.Sequential(*first, *normalised_head(hidden, out_dim))


def byol_head(in_dim: int, out_dim: int = 256, hidden_dim: int | None = None) -> nn.Sequential:
    """BYOL's projector and predictor; hidden twice in_dim, 4096 after a ResNet-50."""
    hidden = 2 * in_dim if hidden_dim is None else hidden_dim
    _check_sizes(in_dim=in_dim, out_dim=out_dim, hidden_dim=hidden)
    layer = _hidden_layer(in_dim, hidden, bias=True)
    return nn.Sequential(*layer, nn.Linear(hidden, out_dim, bias=False))


def mocov3_head(
    in_dim: int, out_dim: int = 256, hidden_dim: int | None = None, *, last_norm: bool = True
) -> nn.Sequential:
    """MoCo v3's projector, whose last batch norm is not affine, or predictor, without that norm.

    Hidden twice in_dim, 4096 after a ResNet-50.
    """
    hidden = 2 * in_dim if hidden_dim is None else hidden_dim
    _check_sizes(in_dim=in_dim, out_dim=out_dim, hidden_dim=hidden)
    layers = [*_hidden_layer(in_dim, hidden, bias=False), nn.Linear(hidden, out_dim, bias=False)]
    return nn.Sequential(*layers, *([nn.BatchNorm1d(out_dim, affine=False)] if last_norm else []))


def swav_head(in_dim: int, out_dim: int = 128, hidden_dim: int | None = None) -> nn.Sequential:
    """SwAV's head: one hidden layer with batch norm, biases throughout; hidden as in_dim."""
    hidden = in_dim if hidden_dim is None else hidden_dim
    _check_sizes(in_dim=in_dim, out_dim=out_dim, hidden_dim=hidden)
    return nn.Sequential(*_hidden_layer(in_dim, hidden, bias=True), nn.Linear(hidden, out_dim))


def _hidden_layer(in_dim: int, out_dim: int, *, bias: bool) -> list[nn.Module]:
    return [nn.Linear(in_dim, out_dim, bias=bias), nn.BatchNorm1d(out_dim), nn.ReLU()]


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"a head with {name}={size}; it must be 1 or more.")
