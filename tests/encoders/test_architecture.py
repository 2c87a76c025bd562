"""Names and shapes of a state dict tell its network, or it is not guessed."""

import pytest
import timm
import torch
import torchvision

from eqco.encoders import Architecture, architecture_of


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture("resnet18"),
        Architecture("resnet34", stem="small"),
        Architecture("resnet50"),
        Architecture("resnet50", width=2),
        Architecture("resnet18", width=3, stem="small"),
        Architecture("light"),
        Architecture("light", width=2),
        Architecture("light-ln"),
        Architecture("resnet18-ln", stem="small"),
    ],
    ids=str,
)
def test_every_backbone_of_ours_is_known_by_its_weights(architecture):
    with torch.device("meta"):
        weights = architecture.build().state_dict()
    assert architecture_of(weights) == architecture


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"])
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_the_resnets_of_torchvision_and_timm_are_known(library, name):
    with torch.device("meta"):
        if library == "timm":
            network = timm.create_model(name, pretrained=False)
        else:
            network = torchvision.models.get_model(name, weights=None)
    known = name if name in ("resnet18", "resnet34", "resnet50") else f"timm:{name}"
    assert architecture_of(network.state_dict()) == Architecture(known)


# a Wide ResNet of torchvision has wide 3×3 convolutions alone: not our width 2
@pytest.mark.parametrize("name", ["wide_resnet50_2", "resnext50_32x4d", "vgg11", "mobilenet_v2"])
def test_what_is_no_resnet_of_the_paper_is_not_guessed(name):
    with torch.device("meta"):
        network = torchvision.models.get_model(name, weights=None)
    assert architecture_of(network.state_dict()) is None


def test_a_seed_gives_the_same_weights_and_moves_no_other_draw():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = (Architecture("light").build(seed=3).state_dict() for _ in range(2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
