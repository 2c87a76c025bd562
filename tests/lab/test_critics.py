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
    for tensor in (work.x, work.y, work.d_logits):
        tensor.normal_(generator=generator)
    return work


def as_modules(critics, row):
    """One critic of the stack, rebuilt from torch.nn."""
    towers = []
    for tower in (critics.query_tower, critics.key_tower):
        module = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
        with torch.no_grad():
            module[0].weight.copy_(tower.weight_in[row].T)
            module[0].bias.copy_(tower.bias_in[row, 0])
            module[2].weight.copy_(tower.weight_out[row].T)
            module[2].bias.copy_(tower.bias_out[row, 0])
        towers.append(module)
    return towers


def test_logits_are_dot_products_of_two_mlps():
    critics = stack(3)
    work = filled_workspace(critics)
    critics.compare(work)
    for row in range(3):
        query, key = as_modules(critics, row)
        assert_close(work.logits[row], query(work.x[row]) @ key(work.y[row]).T)


def test_gradients_are_autograds_with_the_batch_mean():
    critics = stack(2)
    work = filled_workspace(critics)
    critics.compare(work)
    critics.set_gradients(work)
    for row in range(2):
        query, key = as_modules(critics, row)
        logits = query(work.x[row]) @ key(work.y[row]).T
        (logits * work.d_logits[row]).sum().div(5).backward()
        for tower, module in ((critics.query_tower, query), (critics.key_tower, key)):
            assert_close(tower.weight_in.grad[row], module[0].weight.grad.T)
            assert_close(tower.bias_in.grad[row, 0], module[0].bias.grad)
            assert_close(tower.weight_out.grad[row], module[2].weight.grad.T)
            assert_close(tower.bias_out.grad[row, 0], module[2].bias.grad)


def test_first_weights_do_not_depend_on_the_neighbours():
    alone = StackedCritics([torch.Generator().manual_seed(1)], **SIZES)
    for mine, ours in zip(alone.parameters(), stack(3).parameters(), strict=True):
        assert torch.equal(mine[0], ours[1])


def test_first_weights_lie_within_the_reach_of_nn_linear():
    critics = stack(50)
    for weight, inputs in ((critics.key_tower.weight_in, 4), (critics.key_tower.weight_out, 7)):
        largest = float(weight.abs().max())
        assert 0.95 * inputs**-0.5 < largest <= inputs**-0.5


@pytest.mark.parametrize(("name", "flag"), [("dim", "dim"), ("output", "output_size")])
def test_sizes_must_be_positive(name, flag):
    with pytest.raises(InputError, match=f"{flag}=0; it must be at least 1"):
        StackedCritics([torch.Generator()], **{**SIZES, name: 0})
