"""The first layer of every network takes as many bands as the images have."""

import pytest
import torch

from eqco.encoders import (
    Architecture,
    Pixels,
    architecture_of,
    backbone_named,
    in_channels_of,
)
from eqco.runtime.errors import InputError

NETWORKS = [
    ("resnet18", 1, "small"),
    ("resnet18", 2, "imagenet"),
    ("resnet50", 1, "imagenet"),
    ("light", 1, "imagenet"),
    ("timm:resnet26", 1, "imagenet"),
    ("timm:convnext_atto", 1, "imagenet"),
]


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
@pytest.mark.parametrize(("name", "width", "stem"), NETWORKS)
def test_the_stem_takes_any_number_of_bands(name, width, stem, channels):
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    with torch.device("meta"), torch.no_grad():  # shapes alone
        network = Architecture(name, width, stem, channels).build().eval()
        colour = Architecture(name, width, stem).build()
        features = network(torch.zeros(2, channels, 32, 32))
    assert features.shape == (2, network.feature_dim)
    assert in_channels_of(network) == channels
    # from weights in the order of their names, as safetensors keeps them
    weights = dict(sorted(network.state_dict().items()))
    assert in_channels_of(colour, weights) == channels


@pytest.mark.parametrize(("name", "width", "stem"), NETWORKS[:4])
def test_weights_tell_their_bands(name, width, stem):
    for channels in (1, 3, 13):
        own = Architecture(name, width, stem, channels)
        with torch.device("meta"):
            weights = own.build().state_dict()
        assert architecture_of(weights) == own
    assert str(Architecture("light", in_channels=13)) == "light for 13-band images"


def test_only_the_first_layer_knows_the_bands():
    colour, bands = (Architecture("resnet18", in_channels=n).build() for n in (3, 13))
    shapes = [{k: v.shape for k, v in net.state_dict().items()} for net in (colour, bands)]
    assert {k for k in shapes[0] if shapes[0][k] != shapes[1][k]} == {"conv1.weight"}


def test_pixels_and_refusals():
    assert Pixels(4, 13)(torch.zeros(2, 13, 4, 4)).shape == (2, Pixels(4, 13).feature_dim)
    with pytest.raises(InputError, match="in_channels=0; images have at least 1 band"):
        backbone_named("light", in_channels=0)
    assert in_channels_of(torch.nn.Linear(4, 4)) == 3
    assert in_channels_of(Pixels(4, 13)) == 13
