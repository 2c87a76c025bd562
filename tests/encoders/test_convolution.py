import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from eqco.encoders.convolution import (
    Blocks,
    Conv1x1,
    Conv3x3,
    WeightGradient,
    convolve_2x2,
    convolve_pixels,
    fastest_way,
)

SIDES = [(1, 1), (1, 3), (2, 1), (2, 2)]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sides", SIDES)
def test_a_convolution_without_the_taps_on_padding_is_the_whole_convolution(sides, stride):
    ours = Conv3x3(4, 5, stride).double()
    whole = nn.Conv2d(4, 5, 3, stride=stride, padding=1, bias=False).double()
    whole.load_state_dict(ours.state_dict())
    maps = torch.randn(3, 4, *sides, dtype=torch.float64, requires_grad=True)
    found, expected = ours(maps), whole(maps)
    assert_close(found, expected)
    weights = torch.randn_like(expected)
    gradients = torch.autograd.grad((found * weights).sum(), [maps, ours.weight])
    assert_close(gradients, torch.autograd.grad((expected * weights).sum(), [maps, whole.weight]))


@pytest.mark.parametrize("sides", [*SIDES, (160, 1)])  # the last is too long for the product
def test_the_gradient_in_bfloat16_holds_nothing_of_what_memory_held_before(sides):
    ours = Conv3x3(64, 64, 2).to(memory_format=torch.channels_last)
    maps = torch.randn(16, 64, *sides).to(memory_format=torch.channels_last)
    exact = torch.autograd.grad(ours(maps).square().sum(), ours.weight)[0]
    for _ in range(4):
        torch.full((64, 64, 3, 3), float("nan"))  # freed at once: what memory holds
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = ours(maps)
        found = torch.autograd.grad(output.float().square().sum(), ours.weight)[0]
        assert (found - exact).norm() < 0.02 * exact.norm()


@given(
    seed=st.integers(0, 2**31 - 1),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sides=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    stride=st.integers(1, 3),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_the_gradient_of_weights_by_one_product_is_that_of_the_convolution(
    seed, channels, kernel, sides, stride, padding
):
    draw = torch.Generator().manual_seed(seed)
    maps = torch.randn(2, channels[0], *sides, dtype=torch.float64, generator=draw)
    weight = torch.randn(channels[1], channels[0], *kernel, dtype=torch.float64, generator=draw)
    weight.requires_grad_()
    expected = F.conv2d(maps, weight, stride=stride, padding=padding)
    found = WeightGradient.apply(expected.detach(), maps, weight, stride, padding)
    assert_close(found, expected)
    upstream = torch.randn(expected.shape, dtype=torch.float64, generator=draw)
    assert_close(
        torch.autograd.grad(found, weight, upstream),
        torch.autograd.grad(expected, weight, upstream),
    )


def test_the_blocks_of_a_kernel_of_one_channel():
    """Output (i, j) meets input (k, l) by the tap (k − i + 1, l − j + 1); taps are 1 to 9."""
    taps = torch.arange(1.0, 10.0).view(1, 1, 3, 3)
    expected = [[5, 6, 8, 9], [4, 5, 7, 8], [2, 3, 5, 6], [1, 2, 4, 5]]
    assert Blocks.apply(taps, 1).tolist() == expected
    assert Blocks.apply(taps, 2).tolist() == expected[:1]


@pytest.mark.parametrize("stride", [1, 2])
@given(seed=st.integers(0, 2**31 - 1), channels=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_a_convolution_of_2x2_by_one_product_is_the_convolution(seed, channels, stride):
    """Small whole numbers are exact in bfloat16, and so must be value and gradients."""
    draw = torch.Generator().manual_seed(seed)

    def whole_numbers(*shape):
        return torch.randint(-2, 3, shape, generator=draw).bfloat16()

    maps = whole_numbers(3, channels[0], 2, 2).requires_grad_()
    weight = whole_numbers(channels[1], channels[0], 3, 3).requires_grad_()
    found = convolve_2x2(maps, weight, stride=stride)
    exact = [each.detach().double().requires_grad_() for each in (maps, weight)]
    expected = F.conv2d(*exact, stride=stride, padding=1)
    upstream = whole_numbers(*expected.shape)
    assert torch.equal(found.double(), expected)
    gradients = torch.autograd.grad(found, [maps, weight], upstream)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(expected, exact, upstream.double()), strict=True
    ):
        assert torch.equal(ours.double(), theirs)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sides", [(1, 1), (2, 2), (1, 3), (4, 3)])
def test_a_1x1_convolution_by_one_product_is_the_convolution(sides, stride):
    torch.manual_seed(0)
    maps = torch.randn(3, 4, *sides, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 4, 1, 1, dtype=torch.float64, requires_grad=True)
    found, expected = (
        convolve_pixels(maps, weight, stride=stride),
        F.conv2d(maps, weight, stride=stride),
    )
    assert_close(found, expected)
    upstream = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, [maps, weight], upstream) for y in (found, expected))
    assert_close(ours, theirs)


def test_the_gradient_of_1x1_weights_has_their_layout():
    """DDP copies gradients whose strides are not those of the weights, and warns."""
    weight = torch.randn(5, 4, 1, 1).to(memory_format=torch.channels_last).requires_grad_()
    convolve_pixels(torch.randn(3, 4, 2, 2), weight, stride=1).sum().backward()
    assert weight.grad.stride() == weight.stride()


@pytest.mark.parametrize("side", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", [Conv1x1, Conv3x3])
def test_in_bfloat16_both_gradients_are_those_of_float32_to_rounding(kind, stride, side):
    torch.manual_seed(0)
    layer = kind(32, 48, stride).to(memory_format=torch.channels_last)
    maps = torch.randn(32, 32, side, side).to(memory_format=torch.channels_last).requires_grad_()
    exact = torch.autograd.grad(layer(maps).square().sum(), [maps, layer.weight])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(maps)
    found = torch.autograd.grad(output.float().square().sum(), [maps, layer.weight])
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("sides", [(3, 5), (7, 7), (5, 2)])
def test_odd_maps_are_halved_as_torch_does_it(sides):
    torch.manual_seed(0)
    layer = Conv3x3(16, 24, 2).bfloat16()
    maps = torch.randn(4, 16, *sides, dtype=torch.bfloat16)
    whole = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False)
    whole.load_state_dict(layer.float().state_dict())
    expected = torch.autograd.grad(whole(maps.float()).square().sum(), whole.weight)[0]
    layer.bfloat16()
    found = torch.autograd.grad(layer(maps).float().square().sum(), layer.weight)[0]
    assert (found.float() - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize(("side", "stride"), [(4, 2), (2, 1), (1, 1)])
def test_a_layer_used_twice_gets_the_sum_and_its_output_may_be_changed_in_place(side, stride):
    torch.manual_seed(0)
    layer = Conv3x3(16, 16, stride)
    first, second = torch.randn(2, 32, 16, side, side)
    exact = torch.autograd.grad(
        sum(layer(maps).relu().square().sum() for maps in (first, second)), layer.weight
    )[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = [layer(maps).relu_() for maps in (first, second)]
    total = sum(each.float().square().sum() for each in outputs)
    found = torch.autograd.grad(total, layer.weight)[0]
    assert (found - exact).norm() < 0.02 * exact.norm()


def way(layer, *sides, count=64):
    maps = torch.randn(count, layer.in_channels, *sides)
    return fastest_way(maps, layer.weight, stride=layer.stride[0])


def test_who_computes_what():
    strided, kernel, pixel = Conv3x3(8, 8, 2), Conv3x3(8, 8), Conv1x1(8, 8)
    assert {way(layer, 2, 2) for layer in (strided, kernel, pixel)} == {"torch"}  # float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert way(strided, 2, 2) == way(kernel, 2, 2) == "products"
        assert way(pixel, 4, 4) == way(Conv1x1(8, 8, 2), 16, 16) == "products"
        assert way(strided, 4, 4) == way(strided, 16, 16) == "gradient"
        assert way(strided, 32, 32) == way(kernel, 4, 4) == way(pixel, 8, 8) == "torch"
        assert way(kernel, 2, 2, count=8) == "torch"
        with torch.no_grad():
            assert way(strided, 4, 4) == "torch"
            assert way(kernel, 2, 2) == way(pixel, 4, 4) == "products"
        assert way(strided.requires_grad_(False), 4, 4) == "torch"


def test_without_gradient_a_strided_1x1_convolution_is_one_product():
    """Not one for each image, which takes many times as long."""
    layer = Conv1x1(16, 32, 2)
    maps = torch.randn(64, 16, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(maps)
        with torch.profiler.profile() as profile:
            layer(maps)
    assert not {"aten::bmm", "aten::convolution"} & {event.key for event in profile.key_averages()}


def test_float64_stays_float64_under_autocast():
    layer, maps = Conv3x3(4, 4).double(), torch.randn(64, 4, 2, 2, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(maps).dtype == torch.float64
