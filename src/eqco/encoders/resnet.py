"""ResNet-18, 34 and 50 of any width, without a classifier, for large or small images."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from eqco.encoders.convolution import Conv1x1, Conv3x3
from eqco.runtime.errors import InputError

__all__ = ["ResNet", "Stem", "resnet"]

Stem = Literal["imagenet", "small"]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, named as torchvision names them.

    torchvision's own would be the one thing that most commands import it for, and importing it
    takes almost as long as importing torch.
    """

    expansion: int = 1

    def __init__(
        self, channels_in: int, channels: int, stride: int, shortcut: nn.Module | None
    ) -> None:
        super().__init__()
        self.conv1 = Conv3x3(channels_in, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = Conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels_in, H, W) -> (N, channels, H / stride, W / stride)."""
        inner = self.relu(self.bn1(self.conv1(maps)))
        inner = self.bn2(self.conv2(inner))
        inner += maps if self.downsample is None else self.downsample(maps)
        return self.relu(inner)


class Bottleneck(nn.Module):
    """A 3×3 convolution between two of 1×1, beside a shortcut, named as torchvision names them.

    The 3×3 convolution has the stride, as in version 1.5 of ResNet-50.
    """

    expansion: int = 4

    def __init__(
        self, channels_in: int, channels: int, stride: int, shortcut: nn.Module | None
    ) -> None:
        super().__init__()
        self.conv1 = Conv1x1(channels_in, channels)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv3x3(channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = Conv1x1(channels, 4 * channels)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels_in, H, W) -> (N, 4·channels, H / stride, W / stride)."""
        inner = self.relu(self.bn1(self.conv1(maps)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        inner = self.bn3(self.conv3(inner))
        inner += maps if self.downsample is None else self.downsample(maps)
        return self.relu(inner)


# depth: the kind of block, and how many of them in each of the four stages
PLANS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A residual network up to its pooled features: (N, in_channels, H, W) -> (N, feature_dim).

    The names of its parameters are torchvision's without `fc`, so that state dicts of width 1
    travel both ways. The weights are stored channels-last, and so every layer computes: on a CPU
    about a sixth faster than in torch's default layout. Made by `resnet`.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, int, int, int],
        *,
        width: int,
        stem: Stem,
        zero_init_residual: bool,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        channels = 64 * width
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        out = channels * block.expansion
        self.layer1 = _stage(block, channels, channels, blocks[0], stride=1)
        self.layer2 = _stage(block, out, 2 * channels, blocks[1], stride=2)
        self.layer3 = _stage(block, 2 * out, 4 * channels, blocks[2], stride=2)
        self.layer4 = _stage(block, 4 * out, 8 * channels, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.feature_dim: int = 8 * out
        initialise(self, zero_init_residual=zero_init_residual)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Pooled features of images (N, in_channels, H, W): (N, feature_dim)."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return torch.flatten(self.avgpool(maps), 1)


def resnet(
    depth: int,
    *,
    width: int = 1,
    stem: Stem = "imagenet",
    in_channels: int = 3,
    zero_init_residual: bool = True,
) -> ResNet:
    """A ResNet with fresh weights.

    Args:
        depth: 18, 34 or 50.
        width: multiplies the channels of every layer; ResNet-50 has 23.5, 93.9 and 375.4 million
            parameters at width 1, 2 and 4 (Table 8).
        stem: "imagenet" halves the image twice before the first block (7×7 convolution of
            stride 2, max-pool); "small" keeps its size (3×3 convolution of stride 1, no pool), for
            images of 64 pixels or fewer.
        zero_init_residual: start each block as the identity, by a zero scale in its last batch
            norm.

    Returns:
        The network; its `feature_dim` is 512·width for depth 18 and 34, 2048·width for 50.

    >>> encoder = resnet(18, stem="small")
    >>> encoder(torch.zeros(2, 3, 16, 16)).shape, encoder.feature_dim
    (torch.Size([2, 512]), 512)
    """
    if depth not in PLANS:
        raise InputError(
            f"a ResNet of depth={depth}; choose {', '.join(map(str, PLANS))}, "
            f"or take timm's by the name 'timm:resnet{depth}'."
        )
    check_width(width)
    if stem not in get_args(Stem):
        raise InputError(f"stem={stem!r}; choose 'imagenet', or 'small' for images up to 64 px.")
    return ResNet(
        *PLANS[depth],
        width=width,
        stem=stem,
        zero_init_residual=zero_init_residual,
        in_channels=in_channels,
    )


def check_width(width: int) -> None:
    """Refuse a width that leaves no channels."""
    if width < 1:
        raise InputError(f"width={width}; it multiplies the channels and must be 1 or more.")


def residual_block(
    block: type[BasicBlock] | type[Bottleneck], channels_in: int, channels: int, *, stride: int
) -> nn.Module:
    """A block, with a 1×1 convolution on the shortcut where the shape changes."""
    channels_out = channels * block.expansion
    shortcut = None
    if stride != 1 or channels_in != channels_out:
        shortcut = nn.Sequential(
            Conv1x1(channels_in, channels_out, stride),
            nn.BatchNorm2d(channels_out),
        )
    return block(channels_in, channels, stride, shortcut)


def initialise(network: nn.Module, *, zero_init_residual: bool) -> None:
    """He's initialisation of the convolutions; on request each residual block starts as identity.

    Batch norms keep torch's own start: scale 1, shift 0.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif zero_init_residual and isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
        elif zero_init_residual and isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    channels_in: int,
    channels: int,
    count: int,
    *,
    stride: int,
) -> nn.Sequential:
    first = residual_block(block, channels_in, channels, stride=stride)
    channels_out = channels * block.expansion
    rest = [residual_block(block, channels_out, channels, stride=1) for _ in range(count - 1)]
    return nn.Sequential(first, *rest)
