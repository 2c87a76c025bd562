"""The detector is the paper's: pre-trained maps, four convolutions with batch norm, all trained."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from eqco.assembly import open_weights
from eqco.detection.model import faster_rcnn
from eqco.detection.settings import DetectionSettings
from eqco.encoders import resnet

SMALL = DetectionSettings(sides=(64,), longest_side=100, channels=16, proposals=20, sampled_boxes=8)


def detector(backbone=None, **changes):
    return faster_rcnn(backbone or resnet(18), 2, replace(SMALL, **changes))


def perturb(network):
    """Weights and statistics that no initialisation has."""
    torch.manual_seed(5)
    for value in network.state_dict().values():
        if value.is_floating_point() and value.dim() == 1:  # scales, shifts, means, variances
            value.add_(0.1 * torch.rand_like(value))
    return network


@pytest.mark.parametrize("depth", [18, 50])
def test_the_last_map_pools_to_the_features_of_the_pretrained_network(depth):
    backbone = perturb(resnet(depth, zero_init_residual=False)).eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = copy.deepcopy(backbone)(images)
        maps = detector(backbone).eval().backbone.maps(images)
        untrained = detector(resnet(depth)).eval().backbone.maps(images)
    assert_close(maps["3"].mean((2, 3)), expected)
    assert not torch.allclose(untrained["3"].mean((2, 3)), expected)
    assert [value.shape[2] for value in maps.values()] == [16, 8, 4, 2]


def test_every_map_is_that_of_torchvisions_network():
    import torchvision

    theirs = torchvision.models.resnet18()
    perturb(theirs).eval()
    ours = resnet(18)
    ours.load_state_dict({n: v for n, v in theirs.state_dict().items() if "fc." not in n})
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        maps = detector(ours).eval().backbone.maps(images)
        found = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(images))))
        for place, stage in enumerate((theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4)):
            found = stage(found)
            assert_close(maps[str(place)], found)


def test_the_box_head_has_four_convolutions_each_with_batch_norm_and_one_fully_connected_layer():
    head = detector().roi_heads.box_head
    layers = [layer for layer in head.modules() if not list(layer.children())]
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Conv2d", "BatchNorm2d", "ReLU"] * 4 + ["Flatten", "Linear", "ReLU"]
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert all(layer.kernel_size == (3, 3) and layer.bias is None for layer in convolutions)
    assert [layer.out_features for layer in layers if isinstance(layer, nn.Linear)] == [1024]


def test_the_pyramid_has_batch_norm_on_all_its_convolutions():
    pyramid = detector().backbone.fpn
    count = {
        kind: sum(isinstance(m, kind) for m in pyramid.modules())
        for kind in (nn.Conv2d, nn.BatchNorm2d)
    }
    assert count == {nn.Conv2d: 8, nn.BatchNorm2d: 8}


@pytest.mark.parametrize(("settings", "share"), [({}, 1 / 64), ({"sampling_ratio": 2}, 16 / 64)])
def test_roi_align_averages_over_all_map_pixels_of_a_cell_by_default(settings, share):
    pool = detector(smallest_anchor=128, **settings).roi_heads.box_roi_pool
    # the box is read from the finest map: 7 x 7 cells of 8 x 8 pixels, one of which is bright.
    # Of 2 x 2 samples in its cell one falls on it; over 8 x 8 samples it counts once.
    maps = {str(level): torch.zeros(1, 1, 56 >> level, 56 >> level) for level in range(4)}
    maps["0"][0, 0, 2, 2] = 1.0
    cells = pool(maps, [torch.tensor([[0.0, 0.0, 224.0, 224.0]])], [(224, 224)])
    assert_close(cells[0, 0, 0, 0].item(), share)
    assert cells.count_nonzero() == 1


def test_nothing_is_frozen_even_if_the_weights_came_frozen():
    frozen = open_weights("random", backbone="resnet18").backbone
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    model = detector(frozen).train()
    assert all(parameter.requires_grad for parameter in model.parameters())
    boxes = torch.tensor([[10.0, 10.0, 40.0, 40.0]])
    losses = model([torch.rand(3, 64, 64)] * 2, [{"boxes": boxes, "labels": torch.tensor([1])}] * 2)
    sum(losses.values()).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # a block that starts as the identity passes no gradient to its convolutions in the first step
    assert not [n for n in without if ".conv" not in n and ".bn1" not in n], without


def test_images_without_objects_can_be_trained_on():
    empty = {"boxes": torch.empty(0, 4), "labels": torch.empty(0, dtype=torch.int64)}
    losses = detector().train()([torch.rand(3, 64, 64)] * 2, [empty] * 2)
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_training_draws_the_short_side_and_testing_takes_the_last():
    transform = detector(sides=(48, 56, 64)).transform
    assert isinstance(transform, GeneralizedRCNNTransform)
    image = [torch.rand(3, 100, 120)]
    torch.manual_seed(0)
    drawn = {min(transform.train()(image)[0].image_sizes[0]) for _ in range(40)}
    assert drawn == {48, 56, 64}
    assert {min(transform.eval()(image)[0].image_sizes[0]) for _ in range(9)} == {64}


def test_new_layers_are_drawn_from_the_seed_and_leave_the_global_generator():
    torch.manual_seed(9)
    before = torch.get_rng_state()
    one, same, other = (detector(resnet(18), seed=seed) for seed in (0, 0, 1))
    head = [model.roi_heads.box_head.state_dict() for model in (one, same, other)]
    name = next(iter(head[0]))
    assert torch.equal(head[0][name], head[1][name])
    assert not torch.equal(head[0][name], head[2][name])
    torch.set_rng_state(before)
