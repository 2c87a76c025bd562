"""An encoder is a backbone and a head; backbones can be had by name."""

import copy
import difflib
from typing import Any

import torch
from torch import Tensor, nn

from eqco.encoders.colours import (
    HALVES,
    ColourHalves,
    ColourSpace,
    HeadPair,
    parse_colours,
    require_colours,
)
from eqco.encoders.layer_norm import LAYER_NORM, layer_norm
from eqco.encoders.light import LightEncoder
from eqco.encoders.resnet import Stem, resnet
from eqco.runtime.errors import InputError, MissingExtraError

__all__ = [
    "RESNETS",
    "TIMM",
    "Encoder",
    "backbone_named",
    "feature_dim_of",
    "pair_encoders",
    "timm_encoder",
    "timm_size",
]

RESNETS = {"resnet18": 18, "resnet34": 34, "resnet50": 50}
TIMM = "timm:"


class Encoder(nn.Module):
    """Images to embeddings: a backbone (images -> features), then a head (features -> embeddings).

    Any module can be the backbone if it returns (N, feature_dim) and says so in an attribute
    `feature_dim` (or `num_features`); any module that maps features to (N, D) can be the head.

    >>> from eqco.encoders import LightEncoder, linear_head
    >>> encoder = Encoder(LightEncoder(), linear_head(256, 64))
    >>> encoder(torch.zeros(2, 3, 32, 32)).shape, encoder.embedding_dim
    (torch.Size([2, 64]), 64)
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.feature_dim: int = feature_dim_of(backbone)
        self.embedding_dim: int = _embedding_dim(head, self.feature_dim)

    def features(self, images: Tensor) -> Tensor:
        """What the backbone makes of images (N, C, H, W): (N, feature_dim)."""
        features: Tensor = self.backbone(images)
        if features.shape != (len(images), self.feature_dim):
            raise InputError(
                f"the backbone {type(self.backbone).__name__} returned {tuple(features.shape)} for "
                f"{len(images)} images and says feature_dim={self.feature_dim}. It must return one "
                f"pooled feature vector for each image, and its feature_dim must be their size."
            )
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings of images (N, C, H, W), not normalised: (N, embedding_dim)."""
        embeddings: Tensor = self.head(self.features(images))
        return embeddings


def backbone_named(
    name: str,
    *,
    width: int = 1,
    stem: Stem = "imagenet",
    in_channels: int = 3,
    image_size: int | None = None,
) -> nn.Module:
    """A backbone with fresh weights.

    Args:
        name: "resnet18", "resnet34", "resnet50", "light", each also with "-ln" for layer norm, or
            "timm:NAME" for any network of timm; after "lab:" or "ydbdr:" one of them for each half
            of that colour space, after "lab-luminance:" or "lab-chroma:" for that half alone.
        width: multiplies the channels of a ResNet or of the light encoder.
        stem: first layers of a ResNet, "imagenet" or "small".
        in_channels: bands of the images, which the first layer takes.
        image_size: pixels along each side, of those networks of timm that are built for one size;
            None: timm's own, mostly 224.

    Returns:
        A module (N, in_channels, H, W) -> (N, feature_dim) with the attribute `feature_dim`.

    >>> backbone_named("resnet18", stem="small").feature_dim
    512
    """
    if in_channels < 1:
        raise InputError(f"in_channels={in_channels}; images have at least 1 band.")
    colours = parse_colours(name)
    if colours is not None:
        space, halves, network = colours
        require_colours(f"backbone={name!r}", in_channels)
        networks = {
            half: backbone_named(
                network, width=width, stem=stem, in_channels=HALVES[half], image_size=image_size
            )
            for half in halves
        }
        return ColourHalves(space, networks, sum(map(feature_dim_of, networks.values())))
    plain = name.removesuffix(LAYER_NORM)
    if plain != name and plain in (*RESNETS, "light"):
        return layer_norm(backbone_named(plain, width=width, stem=stem, in_channels=in_channels))
    if name in RESNETS:
        return resnet(RESNETS[name], width=width, stem=stem, in_channels=in_channels)
    if name != "light" and not name.startswith(TIMM):
        known = [*RESNETS, "light"]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"backbone={name!r}; choose {', '.join(known)} or timm:NAME.{hint}")
    if stem != "imagenet":
        raise InputError(
            f"backbone={name!r} with stem={stem!r}, which belongs to the ResNets. "
            f"Leave it out, or choose one of {', '.join(RESNETS)}."
        )
    if name == "light":
        return LightEncoder(in_channels, width)
    if width != 1:
        raise InputError(
            f"backbone={name!r} with width={width}, which belongs to the ResNets and the light "
            f"encoder. Leave it out, or choose one of {', '.join((*RESNETS, 'light'))}."
        )
    return timm_encoder(name.removeprefix(TIMM), in_channels=in_channels, image_size=image_size)


def timm_encoder(name: str, *, in_channels: int = 3, image_size: int | None = None) -> nn.Module:
    """A network of timm with fresh weights and without classifier: images -> (N, feature_dim).

    It is timm's own module, `name` one of `timm.list_models()`. Networks that accept one image size
    only, such as vision transformers, are built for `image_size` where timm can (None: its own,
    mostly 224). A few accept three bands alone.
    """
    try:
        import timm
    except ModuleNotFoundError as error:
        raise MissingExtraError("timm", "timm") from error
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"Nearest: {', '.join(near)}." if near else "timm.list_models() has all names."
        raise InputError(f"timm has no model named {name!r}. {hint}")
    size: dict[str, Any] = timm_size(name, image_size)
    try:
        model = timm.create_model(name, num_classes=0, in_chans=in_channels, **size)
    except Exception as error:
        if not size:
            raise
        raise InputError(
            f"timm cannot build {name} for images of image_size={image_size}: {error!r}. Choose "
            f"another size, such as a multiple of the network's patches."
        ) from error
    # head_hidden_size is what leaves the network; num_features, what enters its head
    model.feature_dim = model.head_hidden_size
    return model


def timm_size(name: str, image_size: int | None) -> dict[str, int]:
    """The argument that builds a network of timm for a size of image; none where it takes any.

    >>> timm_size("vit_tiny_patch16_224", 64), timm_size("resnet18", 64)
    ({'img_size': 64}, {})
    """
    import timm

    config = timm.get_pretrained_cfg(name)
    if image_size is None or config is None or not config.fixed_input_size:
        return {}
    return {} if config.input_size[-1] == image_size else {"img_size": image_size}


def feature_dim_of(backbone: nn.Module) -> int:
    """The size of a backbone's features: its `feature_dim`, or `num_features` as timm calls it."""
    for name in ("feature_dim", "num_features"):
        size = getattr(backbone, name, None)
        if isinstance(size, int):
            return size
    raise InputError(
        f"the backbone {type(backbone).__name__} has neither feature_dim nor num_features. Set "
        f"backbone.feature_dim to the size of the feature vectors it returns, (N, feature_dim)."
    )


def pair_encoders(luminance: Encoder, chroma: Encoder, space: ColourSpace) -> Encoder:
    """One encoder out of two: each sees its half of the colours, and features and embeddings lie
    side by side, those of luminance first.
    """
    sizes = luminance.feature_dim, chroma.feature_dim
    backbones = {"luminance": luminance.backbone, "chroma": chroma.backbone}
    return Encoder(
        ColourHalves(space, {half: backbones[half] for half in HALVES}, sum(sizes)),
        HeadPair((luminance.head, chroma.head), sizes),
    )


@torch.no_grad()
def _embedding_dim(head: nn.Module, feature_dim: int) -> int:
    """Measured on one feature vector of zeros, in a copy: modes and statistics stay as they are."""
    reference = next(head.parameters(), torch.empty(0))
    features = reference.new_zeros(1, feature_dim)
    try:
        embeddings: Tensor = copy.deepcopy(head).eval()(features)
    except RuntimeError as error:
        raise InputError(
            f"the head does not take the backbone's feature_dim={feature_dim} ({error}). "
            f"Build the head with in_dim={feature_dim}."
        ) from error
    if embeddings.dim() != 2:
        raise InputError(
            f"the head returned {tuple(embeddings.shape)} for one feature vector; it must return "
            f"one embedding vector for each, (1, D)."
        )
    return embeddings.shape[1]
