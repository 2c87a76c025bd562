"""Networks that see luminance and colour apart, as CMC trains them: RGB in, features out."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from eqco.runtime.errors import InputError

__all__ = [
    "HALVES",
    "ColourHalves",
    "ColourSpace",
    "Half",
    "HeadPair",
    "parse_colours",
    "require_colours",
]

ColourSpace = Literal["lab", "ydbdr"]
Half = Literal["luminance", "chroma"]
HALVES: dict[Half, int] = {"luminance": 1, "chroma": 2}
"""The bands of each half."""

# what images are normalised by before they come to a network
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def weighted(images: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """A weighted sum of the three bands, (N, 1, H, W); no matrix product, which autocast rounds."""
    red, green, blue = images.split(1, dim=1)
    return weights[0] * red + weights[1] * green + weights[2] * blue


def to_lab(images: Tensor) -> Tensor:
    """CIE L*a*b* (white D65) of sRGB in [0, 1], each band mapped to about [−1, 1].

    >>> white = to_lab(torch.ones(1, 3, 1, 1)).flatten()  # L = 100, a = b = 0
    >>> [round(float(each), 3) for each in white]
    [1.0, -0.065, 0.066]
    """
    linear = torch.where(images > 0.04045, ((images + 0.055) / 1.055) ** 2.4, images / 12.92)
    x, y, z = (
        cube_root(weighted(linear, weights) / white)
        for weights, white in (
            ((0.412453, 0.357580, 0.180423), 0.95047),
            ((0.212671, 0.715160, 0.072169), 1.0),
            ((0.019334, 0.119193, 0.950227), 1.08883),
        )
    )
    # the middle and half the width of what sRGB reaches: 0 to 100, −86 to 98, −108 to 94
    lightness, a, b = 116 * y - 16, 500 * (x - y), 200 * (y - z)
    return torch.cat([(lightness - 50) / 50, (a - 6.025) / 92.21, (b + 6.69) / 101.17], dim=1)


def cube_root(values: Tensor) -> Tensor:
    """Of L*a*b*: a cube root, and a straight line near black."""
    root = values.clamp_min(1e-4) ** (1 / 3)
    return torch.where(values > 0.008856, root, 7.787 * values + 16 / 116)


def to_ydbdr(images: Tensor) -> Tensor:
    """YDbDr of RGB in [0, 1], each band mapped to [−1, 1].

    >>> to_ydbdr(torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1)).flatten()  # blue has the most Db
    tensor([-0.7720,  1.0000,  0.1628])
    """
    bands = (
        2 * weighted(images, (0.299, 0.587, 0.114)) - 1,
        weighted(images, (-0.450, -0.883, 1.333)) / 1.333,
        weighted(images, (-1.333, 1.116, 0.217)) / 1.333,
    )
    return torch.cat(bands, dim=1)


CONVERSIONS: dict[ColourSpace, Callable[[Tensor], Tensor]] = {"lab": to_lab, "ydbdr": to_ydbdr}


class ColourHalves(nn.Module):
    """A backbone of one network for luminance and one for the two bands of colour, or of either.

    Args:
        space: where an image is split.
        networks: by half; its bands of images -> features.
        feature_dim: the size of the features of all of them.
    """

    in_channels = 3
    mean: Tensor
    std: Tensor

    def __init__(
        self, space: ColourSpace, networks: Mapping[Half, nn.Module], feature_dim: int
    ) -> None:
        super().__init__()
        self.space: ColourSpace = space
        self.feature_dim: int = feature_dim
        self.networks = nn.ModuleDict(dict(networks.items()))
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)

    @property
    def prefix(self) -> str:
        """What stands before the name of the networks in `backbone_named`."""
        names = tuple(self.networks)
        return f"{self.space}:" if len(names) == 2 else f"{self.space}-{names[0]}:"

    def forward(self, images: Tensor) -> Tensor:
        """Features of normalised RGB images (N, 3, H, W), of the halves side by side."""
        colours = CONVERSIONS[self.space]((images * self.std + self.mean).clamp(0, 1))
        bands = {"luminance": colours[:, :1], "chroma": colours[:, 1:]}
        return torch.cat([network(bands[name]) for name, network in self.networks.items()], dim=1)


class HeadPair(nn.Module):
    """Two heads on features that lie side by side; their embeddings lie side by side too."""

    def __init__(self, heads: tuple[nn.Module, nn.Module], sizes: tuple[int, int]) -> None:
        super().__init__()
        self.heads, self.sizes = nn.ModuleList(heads), sizes

    def forward(self, features: Tensor) -> Tensor:
        """(N, both sizes) -> (N, 2D)."""
        parts = features.split(self.sizes, dim=1)
        return torch.cat([head(part) for head, part in zip(self.heads, parts, strict=True)], dim=1)


def parse_colours(name: str) -> tuple[ColourSpace, tuple[Half, ...], str] | None:
    """The space, the halves and the network of a backbone's name; None: it has no halves.

    >>> parse_colours("lab:resnet18"), parse_colours("resnet18")
    (('lab', ('luminance', 'chroma'), 'resnet18'), None)
    >>> parse_colours("ydbdr-chroma:timm:resnet10t")
    ('ydbdr', ('chroma',), 'timm:resnet10t')
    """
    kind, colon, network = name.partition(":")
    for space in CONVERSIONS:
        for halves in (tuple(HALVES), *((half,) for half in HALVES)):
            if colon and kind == (space if len(halves) == 2 else f"{space}-{halves[0]}"):
                return space, halves, network
    return None


def require_colours(name: str, in_channels: int) -> None:
    """Refuse images that have no colours to split."""
    if in_channels != 3:
        raise InputError(
            f"{name} splits red, green and blue into luminance and colour, and the images have "
            f"{in_channels} band{'s' * (in_channels != 1)}. Give images of 3, or choose a network "
            f"and a method that take all bands together."
        )
