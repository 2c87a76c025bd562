"""Luminance and colour apart: the conversions, and networks for each half."""

import pytest
import torch
from torch.testing import assert_close

from eqco.data import find_pipeline
from eqco.encoders import Encoder, backbone_named, in_channels_of, linear_head, pair_encoders
from eqco.encoders.colours import MEAN, STD, to_lab, to_ydbdr
from eqco.runtime.errors import InputError

COLOURS = {
    "black": ((0, 0, 0), (0, 0, 0)),
    "white": ((1, 1, 1), (100, 0, 0)),
    "red": ((1, 0, 0), (53.24, 80.09, 67.20)),
    "green": ((0, 1, 0), (87.73, -86.18, 83.18)),
    "blue": ((0, 0, 1), (32.30, 79.19, -107.86)),
    "dark grey": ((0.02, 0.02, 0.02), (1.40, 0, 0)),  # on the straight line: 903.3 · 0.02 / 12.92
}


def pixel(values):
    return torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1)


@pytest.mark.parametrize("name", COLOURS)
def test_lab_of_known_colours(name):
    rgb, lab = COLOURS[name]
    middle, width = pixel((50, 6.025, -6.69)), pixel((50, 92.21, 101.17))
    assert_close(to_lab(pixel(rgb)) * width + middle, pixel(lab), rtol=0, atol=0.02)


def test_grey_has_no_colour_in_ydbdr_and_all_bands_reach_one():
    for level in (0.0, 0.3, 1.0):
        expected = pixel((2 * level - 1, 0, 0))
        assert_close(to_ydbdr(pixel((level,) * 3)), expected, rtol=0, atol=1e-12)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3).view(8, 3, 1, 1)
    bands = to_ydbdr(corners)
    assert_close(bands.amax((0, 2, 3)), torch.ones(3))
    assert_close(bands.amin((0, 2, 3)), -torch.ones(3))


def test_what_is_undone_is_the_normalisation_of_the_pipelines():
    assert find_pipeline("cmc").normalisation(3) == (MEAN, STD)


def tiny_pair():
    torch.manual_seed(0)
    networks = (backbone_named("light", in_channels=bands) for bands in (1, 2))
    return [Encoder(network, linear_head(256, 5)) for network in networks]


@pytest.mark.parametrize("space", ["lab", "ydbdr"])
def test_features_and_embeddings_of_a_pair_lie_side_by_side(space):
    luminance, chroma = tiny_pair()
    both = pair_encoders(luminance, chroma, space).eval()
    assert (both.feature_dim, both.embedding_dim, in_channels_of(both)) == (512, 10, 3)
    rgb = torch.rand(3, 3, 16, 16)
    images = (rgb - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    colours = {"lab": to_lab, "ydbdr": to_ydbdr}[space](rgb)
    parts = [luminance(colours[:, :1]), chroma(colours[:, 1:])]
    assert_close(both(images), torch.cat(parts, dim=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "size"), [("lab:light", 512), ("ydbdr-chroma:light", 256)])
def test_a_backbone_by_name_has_both_halves_or_one(name, size):
    network = backbone_named(name).eval()
    assert network.feature_dim == size
    assert name == f"{network.prefix}light"
    assert network(torch.zeros(2, 3, 16, 16)).shape == (2, size)


def test_images_without_colours_are_refused():
    with pytest.raises(InputError, match=r"'lab:light' splits red, green and blue.* have 1 band\."):
        backbone_named("lab:light", in_channels=1)
