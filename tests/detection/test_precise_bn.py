"""Precise statistics are the mean and the variance of everything that a layer meets."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eqco.detection.precise_bn import set_precise_statistics
from eqco.runtime.errors import InputError


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(36)
    )


def batches():
    torch.manual_seed(1)
    return [3 + 2 * torch.randn(size, 3, 5, 5) for size in (4, 7, 2)]


def test_statistics_of_the_first_layer_are_those_of_the_images():
    net = network()
    set_precise_statistics(net, batches(), net)
    values = torch.cat(batches()).transpose(0, 1).flatten(1).double()
    assert_close(net[0].running_mean, values.mean(1).float())
    assert_close(net[0].running_var, values.var(1).float())


def test_statistics_of_deeper_layers_are_those_of_what_training_mode_gives_them():
    net = network()
    set_precise_statistics(net, batches(), net)
    twin = network().train()
    met = torch.cat([twin[:2](batch) for batch in batches()]).transpose(0, 1).flatten(1).double()
    assert_close(net[2].running_mean, met.mean(1).float())
    assert_close(net[2].running_var, met.var(1).float())
    met = torch.cat([twin[:4](batch) for batch in batches()]).double()
    assert_close(net[4].running_mean, met.mean(0).float())
    assert_close(net[4].running_var, met.var(0).float())


def test_small_variance_about_a_large_mean_is_kept():
    net = nn.BatchNorm1d(1)
    values = 1e4 + torch.randn(1000, 1)
    set_precise_statistics(net, values.split(100), net)
    assert_close(net.running_var, values.double().var(0).float(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("mode", [True, False])
def test_nothing_else_changes(mode):
    net = network().train(mode)
    before = copy.deepcopy(net)
    set_precise_statistics(net, batches(), net)
    assert net.training is mode
    assert not any(layer._forward_pre_hooks for layer in net)
    for name, value in before.state_dict().items():
        if "running" not in name:
            assert_close(net.state_dict()[name], value)


def test_no_values_are_refused():
    net = network()
    with pytest.raises(InputError, match="fewer than 2 values"):
        set_precise_statistics(net, [], net)
