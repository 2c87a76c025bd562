"""An encoder is its head after its backbone, and any module can be either."""

import copy

import pytest
import torch
import torchvision
from torch import nn

from eqco.encoders import (
    Encoder,
    LightEncoder,
    ResNet,
    backbone_named,
    feature_dim_of,
    linear_head,
    mlp_head,
    normalised_head,
)
from eqco.runtime.errors import InputError

IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class OwnBackbone(nn.Module):
    """What a user might bring: mean colours, with the size under either name."""

    def __init__(self, **size):
        super().__init__()
        for name, value in size.items():
            setattr(self, name, value)

    def forward(self, images):
        return images.mean((2, 3))


@pytest.mark.parametrize("make", [linear_head, mlp_head, normalised_head])
def test_embeddings_are_the_head_of_the_features(make):
    torch.manual_seed(0)
    encoder = Encoder(LightEncoder(), make(256, 16)).eval()
    features = encoder.features(IMAGES)
    assert torch.equal(features, encoder.backbone(IMAGES))
    assert torch.equal(encoder(IMAGES), encoder.head(features))
    assert features.shape == (4, encoder.feature_dim)
    assert encoder(IMAGES).shape == (4, encoder.embedding_dim) == (4, 16)


def test_measuring_the_head_changes_nothing():
    head = normalised_head(3, 2).train()
    before, random_state = copy.deepcopy(head.state_dict()), torch.get_rng_state()
    Encoder(OwnBackbone(feature_dim=3), head)
    assert all(torch.equal(before[name], value) for name, value in head.state_dict().items())
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(module.training for module in head.modules())


def test_state_dict_names_begin_with_backbone_and_head():
    names = Encoder(LightEncoder(), linear_head(256)).state_dict()
    assert {name.split(".")[0] for name in names} == {"backbone", "head"}


@pytest.mark.parametrize("attribute", ["feature_dim", "num_features"])
def test_any_module_with_its_size_is_a_backbone(attribute):
    encoder = Encoder(OwnBackbone(**{attribute: 3}), nn.Identity())
    assert (encoder.feature_dim, encoder.embedding_dim) == (3, 3)
    assert torch.equal(encoder(IMAGES), IMAGES.mean((2, 3)))


def test_feature_dim_goes_before_num_features():
    assert feature_dim_of(OwnBackbone(feature_dim=3, num_features=5)) == 3


def test_a_backbone_without_its_size_is_refused():
    with torch.device("meta"):
        theirs = torchvision.models.resnet18(weights=None)
    with pytest.raises(InputError, match=r"ResNet has neither feature_dim nor num_features. Set "):
        Encoder(theirs, linear_head(512))


def test_a_backbone_that_returns_something_else_is_refused():
    maps = nn.Conv2d(3, 5, 1)
    maps.feature_dim = 5
    with pytest.raises(InputError, match=r"Conv2d returned \(4, 5, 8, 8\) .*feature_dim=5"):
        Encoder(maps, linear_head(5))(IMAGES)
    with pytest.raises(InputError, match=r"OwnBackbone returned \(4, 3\) .*feature_dim=7"):
        Encoder(OwnBackbone(feature_dim=7), linear_head(7))(IMAGES)


def test_a_head_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match=r"feature_dim=256 .*Build the head with in_dim=256"):
        Encoder(LightEncoder(), mlp_head(512))
    with pytest.raises(InputError, match=r"the head returned \(1, 1, 256\)"):
        Encoder(LightEncoder(), nn.Unflatten(1, (1, 256)))


@pytest.mark.parametrize(
    ("name", "kind", "feature_dim"),
    [
        ("resnet18", ResNet, 512),
        ("resnet34", ResNet, 512),
        ("resnet50", ResNet, 2048),
        ("light", LightEncoder, 256),
    ],
)
def test_backbones_by_name(name, kind, feature_dim):
    with torch.device("meta"):
        backbone = backbone_named(name)
    assert type(backbone) is kind
    assert backbone.feature_dim == feature_dim


def test_width_and_stem_reach_the_resnet():
    with torch.device("meta"):
        backbone = backbone_named("resnet18", width=2, stem="small")
    assert backbone.conv1.weight.shape == (128, 3, 3, 3)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("resnet-50", "'resnet50'"), ("lite", "'light'"), ("ResNet18", "'resnet18'")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(InputError, match=f"backbone='{name}'; choose .*Did you mean {nearest}"):
        backbone_named(name)


def test_a_name_like_no_other_is_answered_with_the_list():
    with pytest.raises(
        InputError, match=r"choose resnet18, resnet34, resnet50, light or timm:NAME.$"
    ):
        backbone_named("vgg")


def test_twice_the_width_is_twice_the_channels_of_the_light_encoder():
    with torch.device("meta"):
        networks = [backbone_named("light", width=width) for width in (1, 2)]
    usual, wide = (
        {name: weights.shape for name, weights in each.named_parameters()} for each in networks
    )
    assert wide["stem.0.weight"] == (128, 3, 4, 4)
    for name in usual.keys() - {"stem.0.weight"}:
        channels = [2 * size for size in usual[name][:2]]
        assert wide[name] == (*channels, *usual[name][2:])
    assert networks[1].feature_dim == 512


@pytest.mark.parametrize("name", ["light", "timm:resnet10t"])
def test_a_stem_is_refused_where_it_means_nothing(name):
    with pytest.raises(InputError, match="stem='small', which belongs to the ResNets"):
        backbone_named(name, stem="small")


def test_a_width_is_refused_where_it_means_nothing():
    with pytest.raises(InputError, match="width=2, which belongs to the ResNets and the light"):
        backbone_named("timm:resnet10t", width=2)


@pytest.mark.parametrize("name", ["light", "resnet18"])
def test_a_network_without_channels_is_refused(name):
    with pytest.raises(InputError, match="width=0; it multiplies the channels"):
        backbone_named(name, width=0)
