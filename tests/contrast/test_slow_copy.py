"""SlowCopy follows its encoder by Eq. 16."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import eqco
from eqco.runtime.errors import InputError


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_it_starts_equal_and_follows_by_eq_16():
    encoder = network()
    slow = eqco.SlowCopy(encoder, decay=0.75)
    before = {name: each.clone() for name, each in encoder.named_parameters()}
    for each in encoder.parameters():
        each.data.add_(1.0)
    encoder(torch.randn(5, 3))  # moves the running statistics
    slow.update()
    for name, each in slow.copy.named_parameters():
        assert_close(each, before[name] + 0.25)
    assert_close(dict(slow.copy.named_buffers()), dict(encoder.named_buffers()))


def test_it_has_no_gradient_and_no_part_of_the_encoder():
    encoder = network()
    slow = eqco.SlowCopy(encoder)
    assert not slow(torch.randn(5, 3)).requires_grad
    assert not any(each.requires_grad for each in slow.parameters())
    assert encoder[0].weight.requires_grad
    assert set(slow.state_dict()) == {f"copy.{name}" for name in encoder.state_dict()}


def test_saved_and_loaded_equals_never_saved():
    encoder = network()
    slow, loaded = eqco.SlowCopy(encoder, decay=0.5), eqco.SlowCopy(encoder, decay=0.5)
    for each in encoder.parameters():
        each.data.mul_(2.0)
    slow.update()
    loaded.load_state_dict(slow.state_dict())
    for copy in (slow, loaded):
        copy.update()
    assert_close(loaded.state_dict(), slow.state_dict(), rtol=0, atol=0)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match=r"decay=1\.5"):
        eqco.SlowCopy(network(), decay=1.5)
    with pytest.raises(InputError, match="encoder is a function"):
        eqco.SlowCopy(lambda x: x)
    slow = eqco.SlowCopy(grown := network())
    grown.append(nn.Linear(2, 2))
    with pytest.raises(InputError, match="other parameters than when it was copied"):
        slow.update()
