"""The stacked critics are ordinary two-MLP critics, and their written gradient is autograd's."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eqco.lab import StackedCritics
from eqco.runtime.errors import InputError

SIZES = {"dim": 4, "hidden": 7, "output": 3}


def stack(num_critics):
    sources = [torch.Generator().manual_seed(seed) for seed in range(num_critics)]
    return StackedCritics(sources, **SIZES)


def filled_workspace(critics, num_pairs=5):
    work = critics.workspace(num_pairs)
    generator = torch.Generator().manual_seed(9)
    for tensor in (work.x[..., :-1], work.y[..., :-1], work.d_logits):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return work


def as_modules(critics, row):
    """One critic of the stack, rebuilt from torch.nn."""
    towers = []
    for tower in (critics.query_tower, critics.key_tower):
        module = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
        with torch.no_grad():
            for linear, layer in ((module[0], tower.first), (module[2], tower.last)):
                linear.weight.copy_(layer.weight[row].T)
                linear.bias.copy_(layer.bias[row, 0])
        towers.append(module)
    return towers


def test_logits_are_dot_products_of_two_mlps():
    critics = stack(3)
    work = filled_workspace(critics)
    critics.compare(work)
    for row in range(3):
        query, key = as_modules(critics, row)
        assert_close(work.logits[row], query(work.x[row, :, :-1]) @ key(work.y[row, :, :-1]).T)


def test_gradients_are_autograds_with_the_batch_mean():
    critics = stack(2)
    work = filled_workspace(critics)
    critics.compare(work)
    critics.set_gradients(work)
    for row in range(2):
        query, key = as_modules(critics, row)
        logits = query(work.x[row, :, :-1]) @ key(work.y[row, :, :-1]).T
        (logits * work.d_logits[row]).sum().div(5).backward()
        for tower, module in ((critics.query_tower, query), (critics.key_tower, key)):
            for linear, layer in ((module[0], tower.first), (module[2], tower.last)):
                assert_close(layer.gradient[row, :-1], linear.weight.grad.T)
                assert_close(layer.gradient[row, -1], linear.bias.grad)


def test_layers_are_views_of_the_one_tensor_that_adam_sees():
    critics = stack(2)
    critics.parameters.fill_(3.0)
    critics.parameters.grad.fill_(4.0)
    for tower in (critics.query_tower, critics.key_tower):
        for layer in (tower.first, tower.last):
            assert bool((layer.weight == 3).all() and (layer.bias == 3).all())
            assert bool((layer.gradient == 4).all())


def layers(critics):
    towers = critics.query_tower, critics.key_tower
    return [layer.block for tower in towers for layer in (tower.first, tower.last)]


def test_first_weights_do_not_depend_on_the_neighbours():
    alone = StackedCritics([torch.Generator().manual_seed(1)], **SIZES)
    for mine, ours in zip(layers(alone), layers(stack(3)), strict=True):
        assert torch.equal(mine[0], ours[1])


def test_first_weights_lie_within_the_reach_of_nn_linear():
    critics = stack(50)
    for weight, inputs in ((critics.key_tower.first.weight, 4), (critics.key_tower.last.bias, 7)):
        largest = float(weight.abs().max())
        assert 0.95 * inputs**-0.5 < largest <= inputs**-0.5


@pytest.mark.parametrize(("name", "flag"), [("dim", "dim"), ("output", "output_size")])
def test_sizes_must_be_positive(name, flag):
    with pytest.raises(InputError, match=f"{flag}=0; it must be at least 1"):
        StackedCritics([torch.Generator()], **{**SIZES, name: 0})
