"""Split batch norm: plain batch norm on each sub-batch, under the same names."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from eqco.encoders import Encoder, LightEncoder, normalised_head, split_batch_norm
from eqco.runtime.errors import InputError

# the tail of an input's shape, and the layer that takes it
LAYERS = {(): nn.BatchNorm1d, (3,): nn.BatchNorm1d, (2, 3): nn.BatchNorm2d}
tails = st.sampled_from([*LAYERS])


def norm_and_input(seed, num, tail, **settings):
    torch.manual_seed(seed)
    norm = LAYERS[tail](5, dtype=torch.float64, **settings)
    for tensor in norm.parameters():
        nn.init.normal_(tensor)
    if norm.running_mean is not None:
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm, torch.randn(num, 5, *tail, dtype=torch.float64, requires_grad=True)


def each_in_turn(norm, batch, groups):
    """The definition: a fresh copy of the layer for each part, and the mean of their statistics."""
    copies = [copy.deepcopy(norm) for _ in range(groups)]
    for one in copies:
        one.weight, one.bias = norm.weight, norm.bias
    parts = [one(part) for one, part in zip(copies, batch.chunk(groups), strict=True)]
    mean = torch.stack([one.running_mean for one in copies]).mean(0)
    variance = torch.stack([one.running_var for one in copies]).mean(0)
    return torch.cat(parts), mean, variance


def batch_norm_over_groups(norm, batch, groups):
    """The same by another road: one batch norm over groups·C channels."""
    channels = batch.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)
    scale, shift = norm.weight.repeat(groups), norm.bias.repeat(groups)
    out = F.batch_norm(channels, None, None, scale, shift, training=True, eps=norm.eps)
    return out.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 1)


@given(
    seed=st.integers(0, 999),
    groups=st.integers(1, 4),
    size=st.integers(2, 5),
    tail=tails,
    momentum=st.sampled_from([0.1, 1.0, None]),
    steps=st.integers(1, 3),
)
def test_training_is_plain_batch_norm_on_each_part(seed, groups, size, tail, momentum, steps):
    norm, batch = norm_and_input(seed, groups * size, tail, momentum=momentum)
    split = split_batch_norm(copy.deepcopy(norm), groups)
    for step in range(steps):
        out, mean, variance = each_in_turn(norm, batch + step, groups)
        assert_close(split(batch + step), out)
        assert_close(batch_norm_over_groups(norm, batch + step, groups), out)
        norm.running_mean, norm.running_var = mean, variance
        norm.num_batches_tracked += 1
        for name, buffer in norm.named_buffers():
            assert_close(split.get_buffer(name), buffer)


@given(seed=st.integers(0, 999), groups=st.integers(1, 4), tail=tails)
def test_gradients_are_those_of_the_parts_in_turn(seed, groups, tail):
    norm, batch = norm_and_input(seed, groups * 3, tail)
    split = split_batch_norm(copy.deepcopy(norm), groups)
    direction = torch.randn_like(batch)
    ours = torch.autograd.grad(split(batch), (batch, split.weight, split.bias), direction)
    out, *_ = each_in_turn(norm, batch, groups)
    assert_close(ours, torch.autograd.grad(out, (batch, norm.weight, norm.bias), direction))


@given(seed=st.integers(0, 999), tail=tails, steps=st.integers(1, 3))
def test_one_group_is_plain_batch_norm_to_the_bit(seed, tail, steps):
    norm, batch = norm_and_input(seed, 6, tail)
    split = split_batch_norm(copy.deepcopy(norm), 1)
    for _ in range(steps):
        assert torch.equal(split(batch), norm(batch))
    for name, tensor in norm.state_dict().items():
        assert torch.equal(split.state_dict()[name], tensor)


@given(seed=st.integers(0, 999), tail=tails, track=st.booleans())
def test_in_eval_it_is_plain_batch_norm_to_the_bit(seed, tail, track):
    norm, batch = norm_and_input(seed, 7, tail, track_running_stats=track)
    split = split_batch_norm(copy.deepcopy(norm), 4).eval()
    assert torch.equal(split(batch), norm.eval()(batch))


def test_layers_without_scale_or_statistics_are_split_too():
    norm = nn.BatchNorm1d(1, affine=False, track_running_stats=False)
    # each pair has mean 1 and 20, deviation 1 and 10
    batch = torch.tensor([[0.0], [2.0], [10.0], [30.0]])
    out = split_batch_norm(norm, 2)(batch)
    assert_close(out, torch.tensor([[-1.0], [1.0], [-1.0], [1.0]]))


def small_encoder(seed):
    torch.manual_seed(seed)
    return Encoder(LightEncoder(), normalised_head(256, 8))


def test_state_dicts_interchange_with_the_plain_network():
    plain, split = small_encoder(0), split_batch_norm(small_encoder(1), 2)
    images = torch.randn(8, 3, 16, 16)
    split(images)
    assert [*split.state_dict()] == [*plain.state_dict()]
    plain.load_state_dict(split.state_dict())
    assert torch.equal(plain.eval()(images), split.eval()(images))
    back = split_batch_norm(small_encoder(2), 2)
    back.load_state_dict(plain.state_dict())
    assert torch.equal(back.train()(images), split.train()(images))


def test_every_batch_norm_is_split_in_place_and_keeps_its_parameters():
    encoder = small_encoder(0)
    before = [*encoder.parameters()]
    assert split_batch_norm(encoder, 2) is encoder
    assert all(a is b for a, b in zip(before, encoder.parameters(), strict=True))
    norms = [m for m in encoder.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert len(norms) > 5
    assert all(norm.groups == 2 and "groups=2" in repr(norm) for norm in norms)


def test_a_part_does_not_see_the_others():
    split = split_batch_norm(small_encoder(0), 2)
    images = torch.randn(8, 3, 16, 16)
    other = torch.cat([images[:4], torch.randn(4, 3, 16, 16)])
    assert torch.equal(split(images)[:4], split(other)[:4])
    assert not torch.equal(split(images)[4:], split(other)[4:])


def test_splitting_again_changes_the_number_of_groups():
    norm, batch = norm_and_input(0, 12, ())
    twice = split_batch_norm(split_batch_norm(copy.deepcopy(norm), 3), 2)
    assert_close(twice(batch), split_batch_norm(norm, 2)(batch))


def test_channels_last_stays_channels_last():
    split = split_batch_norm(nn.BatchNorm2d(3), 2)
    images = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    assert split(images).is_contiguous(memory_format=torch.channels_last)


def test_a_batch_that_does_not_divide_is_refused():
    split = split_batch_norm(nn.BatchNorm1d(2), 4)
    with pytest.raises(InputError, match=r"a batch of 6 .*bn_groups=4.*multiple of 4"):
        split(torch.randn(6, 2))


def test_parts_of_one_value_are_refused():
    split = split_batch_norm(nn.BatchNorm1d(2), 4)
    with pytest.raises(InputError, match="bn_groups=4 leaves one value per channel"):
        split(torch.randn(4, 2))


@pytest.mark.parametrize("other", [nn.BatchNorm3d(2), nn.SyncBatchNorm(2)])
def test_a_batch_norm_of_another_kind_is_refused_and_nothing_is_changed(other):
    network = nn.Sequential(nn.BatchNorm1d(2), other)
    with pytest.raises(InputError, match=f"1 is a {type(other).__name__}; only BatchNorm1d"):
        split_batch_norm(network, 2)
    assert type(network[0]) is nn.BatchNorm1d


def test_no_groups_are_refused():
    with pytest.raises(InputError, match="bn_groups=0; it must be 1 or more"):
        split_batch_norm(nn.BatchNorm1d(2), 0)
