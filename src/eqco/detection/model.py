"""Faster R-CNN with a feature pyramid on a ResNet, out of torchvision's own detection parts."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from eqco.data.pipelines import Pipeline
from eqco.detection.settings import DetectionSettings
from eqco.encoders import ResNet

__all__ = ["ResNetPyramid", "faster_rcnn"]

LEVELS = 5  # of the pyramid: the maps of four stages, and one more by pooling the last
# Paper: four 3×3 convolutions; it does not count the fully connected layers. Of the two heads in
# the authors' release, the one with four convolutions has one such layer of 1024 features.
HEAD_CONVOLUTIONS = 4
HEAD_FEATURES = 1024


class ResNetPyramid(nn.Module):
    """A ResNet's four maps, all trained, and a pyramid on top of them with `channels` in each."""

    def __init__(self, body: ResNet, channels: int) -> None:
        super().__init__()
        self.body = body
        width = body.feature_dim
        # the new layers have batch norm too, as MoCo's protocol has it
        self.fpn = FeaturePyramidNetwork(
            [width // 8, width // 4, width // 2, width],
            channels,
            extra_blocks=LastLevelMaxPool(),
            norm_layer=nn.BatchNorm2d,
        )
        self.out_channels = channels

    def maps(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        """What the four stages of the ResNet make of images (N, 3, H, W)."""
        body = self.body
        found = body.maxpool(body.relu(body.bn1(body.conv1(images))))
        maps: OrderedDict[str, Tensor] = OrderedDict()
        for place, stage in enumerate((body.layer1, body.layer2, body.layer3, body.layer4)):
            found = maps[str(place)] = stage(found)
        return maps

    def forward(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        """The maps of the pyramid by name: 0 (finest) to 3, and pool."""
        pyramid: OrderedDict[str, Tensor] = self.fpn(self.maps(images))
        return pyramid


def faster_rcnn(backbone: ResNet, num_classes: int, settings: DetectionSettings) -> FasterRCNN:
    """A detector whose backbone starts from the given weights, and the rest from the seed.

    The box head has four 3×3 convolutions with batch norm and one fully connected layer; the
    pyramid has batch norm as well. Nothing is frozen.

    Args:
        backbone: used itself, not copied.
        num_classes: of objects; the background is not counted.
        settings: sizes of images, layers, anchors and samples.
    """
    backbone.requires_grad_(True)
    channels, proposals = settings.channels, settings.proposals
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return FasterRCNN(
            ResNetPyramid(backbone, channels),
            min_size=settings.sides,
            max_size=settings.longest_side,
            image_mean=list(Pipeline.mean),
            image_std=list(Pipeline.std),
            rpn_anchor_generator=AnchorGenerator(
                tuple((settings.smallest_anchor * 2**level,) for level in range(LEVELS)),
                ((0.5, 1.0, 2.0),) * LEVELS,
            ),
            rpn_pre_nms_top_n_train=2 * proposals,
            rpn_pre_nms_top_n_test=proposals,
            rpn_post_nms_top_n_train=proposals,
            rpn_post_nms_top_n_test=proposals,
            box_roi_pool=MultiScaleRoIAlign(
                [str(place) for place in range(LEVELS - 1)],
                output_size=7,
                sampling_ratio=settings.sampling_ratio,
                # which map a box is read from follows the size of the anchors
                canonical_scale=7 * settings.smallest_anchor,
            ),
            box_head=FastRCNNConvFCHead(
                (channels, 7, 7),
                [channels] * HEAD_CONVOLUTIONS,
                [HEAD_FEATURES],
                norm_layer=nn.BatchNorm2d,
            ),
            box_predictor=FastRCNNPredictor(HEAD_FEATURES, num_classes + 1),
            box_batch_size_per_image=settings.sampled_boxes,
        )
