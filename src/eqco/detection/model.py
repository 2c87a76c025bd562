"""Faster R-CNN with a feature pyramid on a ResNet, out of torchvision's own detection parts."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from eqco.encoders import ResNet
from eqco.runtime.errors import InputError

__all__ = ["ResNetPyramid", "faster_rcnn"]

LEVELS = 5  # of the pyramid: the maps of four stages, and one more by pooling the last
# Paper: four 3×3 convolutions; it does not count the fully connected layers. Of the two heads in
# the authors' release, the one with four convolutions has one such layer of 1024 features.
HEAD_CONVOLUTIONS = 4
HEAD_FEATURES = 1024


class ResNetPyramid(nn.Module):
    """A ResNet's four maps, and the pyramid on top of them: what the detector looks at.

    Args:
        body: the pre-trained network; all of it is trained.
        channels: of every map of the pyramid.
    """

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


def faster_rcnn(
    backbone: nn.Module,
    num_classes: int,
    *,
    sides: Sequence[int],
    longest_side: int,
    channels: int = 256,
    smallest_anchor: int = 32,
    sampling_ratio: int = 0,
    proposals: int = 1000,
    sampled_boxes: int = 512,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
    seed: int = 0,
) -> FasterRCNN:
    """A detector whose backbone starts from the given weights, and the rest from the seed.

    The box head has four 3×3 convolutions with batch norm and one fully connected layer; the
    pyramid has batch norm as well. Nothing is frozen.

    Args:
        backbone: a ResNet of this project; used itself, not copied.
        num_classes: of objects; the background is not counted.
        sides: lengths that the short side of a training image is drawn from; the last is that of
            test images.
        longest_side: the long side is made no longer than this.
        channels: of the pyramid and of the box head's convolutions.
        smallest_anchor: side of the anchors on the finest map; it doubles from map to map.
        sampling_ratio: samples of RoI align along each side of a cell; 0: as many as the cell has
            map pixels.
        proposals: boxes that go on to the box head, at most; as many of each map before
            suppression in testing, twice as many in training.
        sampled_boxes: proposals of an image that the box head is trained on.
        mean: of the pixels in pre-training.
        std: of the pixels in pre-training.
        seed: of the new layers.
    """
    if not isinstance(backbone, ResNet):
        raise InputError(
            f"the backbone is a {type(backbone).__name__}; the detector's pyramid stands on the "
            f"four stages of a ResNet. Choose weights of resnet18, resnet34 or resnet50, such "
            f"as `eqco train --encoder.backbone resnet18` leaves."
        )
    backbone.requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pyramid = ResNetPyramid(backbone, channels)
        head = FastRCNNConvFCHead(
            (channels, 7, 7),
            [channels] * HEAD_CONVOLUTIONS,
            [HEAD_FEATURES],
            norm_layer=nn.BatchNorm2d,
        )
        anchors = AnchorGenerator(
            tuple((smallest_anchor * 2**level,) for level in range(LEVELS)),
            ((0.5, 1.0, 2.0),) * LEVELS,
        )
        pooled = MultiScaleRoIAlign(
            [str(place) for place in range(LEVELS - 1)],
            output_size=7,
            sampling_ratio=sampling_ratio,
            # which map a box is read from follows the size of the anchors
            canonical_scale=7 * smallest_anchor,
        )
        return FasterRCNN(
            pyramid,
            min_size=tuple(sides),
            max_size=longest_side,
            image_mean=list(mean),
            image_std=list(std),
            rpn_anchor_generator=anchors,
            rpn_pre_nms_top_n_train=2 * proposals,
            rpn_pre_nms_top_n_test=proposals,
            rpn_post_nms_top_n_train=proposals,
            rpn_post_nms_top_n_test=proposals,
            box_roi_pool=pooled,
            box_head=head,
            box_predictor=FastRCNNPredictor(HEAD_FEATURES, num_classes + 1),
            box_batch_size_per_image=sampled_boxes,
        )
