"""Batch norm over processes: with one process it is batch norm (with several: tests/processes)."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eqco.encoders import SyncBatchNorm1d, SyncBatchNorm2d, sync_batch_norm
from eqco.runtime.errors import InputError

SHAPES = {"(N, C)": (6, 3), "(N, C, L)": (5, 3, 4), "(N, C, H, W)": (4, 3, 2, 5)}


def pair(shape, **settings):
    """The same layer, plain and synchronised, with weights of its own."""
    plain = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(3, **settings).double()
    other = type(plain)(3, **settings).double()
    if plain.affine:
        nn.init.normal_(plain.weight)
        nn.init.normal_(plain.bias)
    other.load_state_dict(plain.state_dict())
    return plain, sync_batch_norm(other)


@pytest.mark.parametrize(
    "settings", [{}, {"affine": False}, {"momentum": None}, {"eps": 0.1}], ids=str
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_value_gradient_and_statistics_are_those_of_batch_norm(shape, settings):
    torch.manual_seed(0)
    plain, synchronised = pair(shape, **settings)
    found = []
    for layer in (plain, synchronised):
        torch.manual_seed(1)
        for _ in range(3):  # the running statistics move three times
            images = (5 + 3 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
            values = layer(images)
            (values * torch.randn_like(values)).sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        found.append((values, images.grad, gradients, layer.state_dict()))
    assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


def test_statistics_do_not_cancel_far_from_zero():
    """Means near 1e4 with spread 1: a mean of squares would leave no digits in float32."""
    torch.manual_seed(0)
    images = 1e4 + torch.randn(64, 3, 4, 4)
    layer = sync_batch_norm(nn.BatchNorm2d(3))
    expected = nn.BatchNorm2d(3).double()(images.double())
    assert_close(layer(images).double(), expected, rtol=0, atol=2e-3)


def test_in_eval_it_is_batch_norm_to_the_bit():
    plain, synchronised = pair((4, 3, 2, 5))
    images = torch.randn(4, 3, 2, 5, dtype=torch.float64)
    assert torch.equal(synchronised.eval()(images), plain.eval()(images))


def test_names_and_parameters_stay():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(4))
    parameters, names = list(network.parameters()), list(network.state_dict())
    network = sync_batch_norm(network)
    assert all(a is b for a, b in zip(network.parameters(), parameters, strict=True))
    assert list(network.state_dict()) == names
    assert type(network[1]) is SyncBatchNorm2d
    assert type(network[3]) is SyncBatchNorm1d


def test_other_batch_norms_and_single_values_are_refused():
    with pytest.raises(InputError, match="is a BatchNorm3d; only BatchNorm1d and BatchNorm2d"):
        sync_batch_norm(nn.BatchNorm3d(2))
    with pytest.raises(InputError, match="one value per channel in all"):
        sync_batch_norm(nn.BatchNorm1d(2))(torch.zeros(1, 2))


def test_under_autocast_statistics_stay_in_float32():
    """A mean in half precision would have 8 bits."""
    torch.manual_seed(0)
    layer = sync_batch_norm(nn.BatchNorm2d(3))
    images = (100 + torch.randn(64, 3, 4, 4)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        values = layer(images)
    assert values.dtype == torch.bfloat16
    assert_close(layer.running_mean, 0.1 * images.float().mean((0, 2, 3)))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(64, 8, 4, 4), (256, 8)], ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
def test_in_bfloat16_the_gradient_is_rounded_and_nothing_else(shape, affine, channels_last):
    """Each entry is within two roundings of bfloat16 (8 bits) of the exact gradient."""
    torch.manual_seed(0)
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    plain = kind(8, affine=affine).double()
    if affine:
        nn.init.uniform_(plain.weight, 1, 3)
        nn.init.normal_(plain.bias)
    synchronised = sync_batch_norm(kind(8, affine=affine))
    synchronised.load_state_dict(plain.state_dict())
    images, outer = torch.randn(2, *shape).bfloat16()
    if channels_last and len(shape) == 4:
        images, outer = (x.to(memory_format=torch.channels_last) for x in (images, outer))
    images.requires_grad_()
    exact = images.detach().double().requires_grad_()
    synchronised(images).backward(outer)
    plain(exact).backward(outer.double())
    assert images.grad.dtype == torch.bfloat16
    assert_close(images.grad.double(), exact.grad, rtol=2**-7, atol=2**-7)
    for own, expected in zip(synchronised.parameters(), plain.parameters(), strict=True):
        assert_close(own.grad.double(), expected.grad, rtol=2**-7, atol=0.05)
