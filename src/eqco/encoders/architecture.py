"""Which network a state dict belongs to, by the names and shapes in it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eqco.encoders.encoder import backbone_named
from eqco.encoders.layer_norm import LAYER_NORM
from eqco.encoders.resnet import PLANS, Bottleneck, Stem

__all__ = ["ANCHORS", "Architecture", "architecture_of", "in_channels_of"]

# A name that every network of a family has once: of the ResNets, and of LightEncoder.
ANCHORS = ("layer1.0.conv1.weight", "blocks.0.conv1.weight")
# ResNets that timm has and this project has not, by the blocks of their stages.
DEEPER = {(3, 4, 23, 3): "timm:resnet101", (3, 8, 36, 3): "timm:resnet152"}


@dataclass(frozen=True)
class Architecture:
    """A backbone without its weights: the arguments of `backbone_named`."""

    name: str
    width: int = 1
    stem: Stem = "imagenet"
    in_channels: int = 3

    def __str__(self) -> str:
        wide = f" of width {self.width}" if self.width > 1 else ""
        small = " with the small stem" if self.stem == "small" else ""
        bands = f" for {self.in_channels}-band images" if self.in_channels != 3 else ""
        return self.name + wide + small + bands

    def build(self, seed: int = 0, *, image_size: int | None = None) -> nn.Module:
        """The backbone with fresh weights drawn from the seed; no other draw is moved by it.

        `image_size` is for networks of timm that are built for one size, as in `backbone_named`.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return backbone_named(
                self.name,
                width=self.width,
                stem=self.stem,
                in_channels=self.in_channels,
                image_size=image_size,
            )


def architecture_of(weights: Mapping[str, Tensor]) -> Architecture | None:
    """The network that these weights fill, or None where names and shapes do not decide.

    Args:
        weights: a state dict without prefixes; a classifier in it does no harm.

    >>> str(architecture_of(Architecture("resnet18", stem="small").build().state_dict()))
    'resnet18 with the small stem'
    """
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    suffix = "" if any(name.endswith("running_mean") for name in shapes) else LAYER_NORM
    patches, last = (shapes.get(f"{name}.weight", ()) for name in ("stem.0", "blocks.2.conv2"))
    if patches[2:] == (4, 4) and patches[0] % 64 == 0 and last == (4 * patches[0],) * 2 + (3, 3):
        return Architecture("light" + suffix, patches[0] // 64, in_channels=patches[1])
    first, inner = shapes.get("conv1.weight", ()), shapes.get(ANCHORS[0], ())
    if len(first) != 4 or len(inner) != 4 or first[0] % 64 or inner[0] != first[0]:
        return None  # another family, or blocks of other proportions, as in Wide ResNet
    bottleneck = "layer1.0.conv3.weight" in shapes
    middle = shapes.get("layer1.0.conv2.weight", (0, 0))
    if middle[:2] != (first[0], first[0]):
        return None  # grouped, as in ResNeXt
    width, stem = first[0] // 64, {7: "imagenet", 3: "small"}.get(first[2])
    blocks = blocks_per_stage(weights)
    for depth, (block, counts) in PLANS.items():
        if counts == blocks and (block is Bottleneck) == bottleneck and stem is not None:
            kind: Stem = "small" if stem == "small" else "imagenet"
            return Architecture(f"resnet{depth}{suffix}", width, kind, first[1])
    if bottleneck and blocks in DEEPER and (width, stem) == (1, "imagenet"):
        return Architecture(DEEPER[blocks], in_channels=first[1])
    return None


def in_channels_of(network: nn.Module, weights: Mapping[str, Tensor] | None = None) -> int:
    """The bands that a network takes: of its first convolution, in these weights or its own.

    A module before that may say it in an attribute `in_channels`; without either, 3.

    >>> light = Architecture("light", in_channels=13).build()
    >>> in_channels_of(light), in_channels_of(Architecture("light").build(), light.state_dict())
    (13, 13)
    """
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            found = module.weight if weights is None else weights.get(f"{name}.weight")
            return module.in_channels if found is None or found.dim() != 4 else found.shape[1]
        own = getattr(module, "in_channels", None)
        if isinstance(own, int):
            return own
    return 3


def blocks_per_stage(names: Mapping[str, Tensor]) -> tuple[int, ...]:
    """How many blocks layer1 to layer4 have.

    >>> blocks_per_stage(Architecture("resnet34").build().state_dict())
    (3, 4, 6, 3)
    """
    stages: list[set[str]] = [set(), set(), set(), set()]
    for name in names:
        found = re.match(r"layer([1-4])\.(\d+)\.", name)
        if found:
            stages[int(found[1]) - 1].add(found[2])
    return tuple(len(stage) for stage in stages)
