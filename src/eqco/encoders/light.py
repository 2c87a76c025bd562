"""A light residual network for CPUs."""

import torch
from torch import Tensor, nn

from eqco.encoders.resnet import BasicBlock, check_width, initialise, residual_block

__all__ = ["LightEncoder"]


class LightEncoder(nn.Module):
    """A slim ResNet for images of 16 to 64 pixels: 12 million multiply-adds at 32 pixels.

    Patches of 4×4 pixels, then three basic blocks of 64, 128 and 256 channels, each but the first
    halving the map; 1.2 million parameters. `width` multiplies all channels. On a CPU, large maps
    of few channels cost the most time per multiply-add, so there are none. The weights are stored
    channels-last, and so every layer computes: on a CPU about a fifth faster than in torch's
    default layout.

    >>> LightEncoder()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 256])
    """

    def __init__(self, in_channels: int = 3, width: int = 1) -> None:
        super().__init__()
        check_width(width)
        channels = 64 * width
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, 4, stride=4, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(
            residual_block(BasicBlock, channels, channels, stride=1),
            residual_block(BasicBlock, channels, 2 * channels, stride=2),
            residual_block(BasicBlock, 2 * channels, 4 * channels, stride=2),
        )
        self.feature_dim = 4 * channels
        self.pool = nn.AdaptiveAvgPool2d(1)
        initialise(self, zero_init_residual=True)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Pooled features of images (N, in_channels, H, W): (N, feature_dim)."""
        return torch.flatten(self.pool(self.blocks(self.stem(images))), 1)
