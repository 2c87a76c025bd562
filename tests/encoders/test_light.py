"""The light network: few multiply-adds, any small image, channels-last inside."""

import copy

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from eqco.encoders import LightEncoder


def multiply_adds(network, size):
    """Of one image; the counter counts a multiply-add as two operations."""
    network.to("meta").eval()
    with FlopCounterMode(display=False) as counter:
        network(torch.empty(1, 3, size, size, device="meta"))
    return counter.get_total_flops() / 2


def test_it_takes_12_million_multiply_adds_at_32_pixels():
    # patches 64·8²·48; then 3×3 convolutions at 8², 4², 2² and the two 1×1 shortcuts
    stem = 64 * 8**2 * 48
    first = 9 * 64 * 2 * 64 * 8**2
    second = (9 * 128 * (64 + 128) + 64 * 128) * 4**2
    third = (9 * 256 * (128 + 256) + 128 * 256) * 2**2
    assert multiply_adds(LightEncoder(), 32) == stem + first + second + third
    assert 10e6 < stem + first + second + third < 20e6


@pytest.mark.parametrize("size", [16, 28, 32, 64])
def test_features_are_pooled_vectors_of_feature_dim(size):
    network = LightEncoder()
    features = network(torch.randn(4, 3, size, size))
    assert features.shape == (4, network.feature_dim)
    assert features.isfinite().all()


def test_gradient_reaches_every_parameter_after_one_step():
    torch.manual_seed(0)
    network, images = LightEncoder(), torch.randn(8, 3, 16, 16)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):  # at the start, zero scales hold the gradient back inside the blocks
        optimiser.zero_grad()
        network(images).square().sum().backward()
        optimiser.step()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_it_computes_channels_last_whatever_layout_comes_in_and_after_a_reload():
    network = copy.deepcopy(LightEncoder())
    network.load_state_dict(
        {name: value.contiguous() for name, value in LightEncoder().state_dict().items()}
    )
    images = torch.randn(2, 3, 32, 32)
    maps = network.blocks(network.stem(images))
    assert maps.is_contiguous(memory_format=torch.channels_last)
    network.eval()
    other = network(images.contiguous(memory_format=torch.channels_last))
    assert_close(other, network(images))
