"""ResNets: torchvision's networks without a classifier, of any width, with either stem."""

import pytest
import torch
import torchvision
from torch import nn
from torch.testing import assert_close

from eqco.encoders import resnet
from eqco.encoders.resnet import BasicBlock, Bottleneck
from eqco.runtime.errors import InputError


def meta_resnet(*args, **kwargs):
    """A network without memory: enough for counting and for shapes."""
    with torch.device("meta"):
        return resnet(*args, **kwargs)


def num_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def torchvision_resnet(depth):
    """Random weights and random statistics, so that nothing agrees by chance; no classifier."""
    network = getattr(torchvision.models, f"resnet{depth}")(weights=None)
    network.fc = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.2, 0.6)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network


# without the classifier: torchvision's published counts are 11,689,512, 21,797,672 and 25,557,032,
# of which fc has 513,000, 513,000 and 2,049,000
@pytest.mark.parametrize(("depth", "count"), [(18, 11_176_512), (34, 21_284_672), (50, 23_508_032)])
def test_width_one_has_torchvisions_parameters_without_fc(depth, count):
    assert num_parameters(meta_resnet(depth)) == count


# Table 8 says 94 M and 375 M; that is without fc (with 1000 classes it would be 98 M and 384 M)
@pytest.mark.parametrize(("width", "count"), [(2, 93_907_072), (4, 375_378_176)])
def test_wide_resnet_50_has_the_parameters_of_table_8_without_fc(width, count):
    assert num_parameters(meta_resnet(50, width=width)) == count
    assert round(count / 1e6) == {2: 94, 4: 375}[width]


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_width_multiplies_the_channels_of_every_layer(depth):
    narrow, wide = meta_resnet(depth), meta_resnet(depth, width=3)
    for (name, one), three in zip(
        narrow.state_dict().items(), wide.state_dict().values(), strict=True
    ):
        if one.dim() and name != "conv1.weight":
            assert three.shape[:2] == tuple(3 * size for size in one.shape[:2]), name
    assert wide.conv1.weight.shape == (192, 3, 7, 7)
    assert wide.feature_dim == 3 * narrow.feature_dim


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_state_dicts_travel_to_torchvision_and_back_with_equal_outputs(depth):
    torch.manual_seed(depth)
    images = torch.randn(2, 3, 40, 40)
    # in the layout of ours, so that equal means equal to the bit
    theirs = torchvision_resnet(depth).eval().to(memory_format=torch.channels_last)
    ours = resnet(depth).eval()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert_close(ours(images), theirs(images), rtol=0, atol=0)
    back = getattr(torchvision.models, f"resnet{depth}")(weights=None)
    answer = back.load_state_dict(ours.state_dict(), strict=False)
    assert answer.missing_keys == ["fc.weight", "fc.bias"]
    assert answer.unexpected_keys == []
    back.fc = nn.Identity()
    back.to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert_close(back.eval()(images), theirs(images), rtol=0, atol=0)


def test_the_small_stem_is_torchvisions_network_with_another_first_layer():
    torch.manual_seed(0)
    theirs = torchvision_resnet(18).to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 16, 16)
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    ours = resnet(18, stem="small")
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert_close(ours.eval()(images), theirs.eval()(images), rtol=0, atol=0)


@pytest.mark.parametrize(("stem", "size"), [("imagenet", 8), ("small", 32)])
def test_the_small_stem_keeps_the_size_of_the_image(stem, size):
    network = meta_resnet(18, stem=stem)
    images = torch.empty(1, 3, 32, 32, device="meta")
    maps = network.layer1(network.maxpool(network.bn1(network.conv1(images))))
    assert maps.shape == (1, 64, size, size)


@pytest.mark.parametrize(("depth", "feature_dim"), [(18, 512), (34, 512), (50, 2048)])
def test_features_are_pooled_vectors_of_feature_dim(depth, feature_dim):
    network = meta_resnet(depth)
    features = network(torch.empty(5, 3, 64, 48, device="meta"))
    assert features.shape == (5, feature_dim) == (5, network.feature_dim)


@pytest.mark.parametrize(("depth", "last"), [(18, "bn2"), (50, "bn3")])
@pytest.mark.parametrize("zero_init_residual", [True, False])
def test_zero_init_makes_every_block_the_identity_of_its_shortcut(depth, last, zero_init_residual):
    network = resnet(depth, stem="small", zero_init_residual=zero_init_residual)
    blocks = [m for m in network.modules() if isinstance(m, BasicBlock | Bottleneck)]
    assert len(blocks) == {18: 8, 50: 16}[depth]
    scale = 0 if zero_init_residual else 1
    assert all((getattr(block, last).weight == scale).all() for block in blocks)
    maps = torch.rand(2, network.layer1[1].conv1.in_channels, 4, 4)
    assert torch.equal(network.layer1[1](maps), maps) == zero_init_residual


def test_gradient_reaches_every_parameter():
    network = resnet(18, stem="small", zero_init_residual=False)
    network(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 20}, r"depth=20; choose 18, 34, 50, .*timm:resnet20"),
        ({"depth": 18, "width": 0}, "width=0; .* must be 1 or more"),
        ({"depth": 18, "stem": "cifar"}, "stem='cifar'; choose 'imagenet', or 'small'"),
    ],
)
def test_what_cannot_be_built_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        resnet(settings.pop("depth"), **settings)


def test_it_computes_channels_last_whatever_layout_comes_in_and_after_a_reload():
    network = resnet(18, stem="small")
    network.load_state_dict(
        {name: value.contiguous() for name, value in network.state_dict().items()}
    )
    maps = network.layer2(network.layer1(network.conv1(torch.randn(2, 3, 16, 16))))
    assert maps.is_contiguous(memory_format=torch.channels_last)
    assert not maps.is_contiguous()
