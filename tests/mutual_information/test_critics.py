"""The stacked critics are ordinary two-MLP critics, side by side."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from eqco.mutual_information import StackedCritics
from eqco.runtime.errors import InputError

SIZES = {"dim": 4, "hidden": 7, "output": 3}


def stack(num_critics):
    sources = [torch.Generator().manual_seed(seed) for seed in range(num_critics)]
    return StackedCritics(sources, **SIZES)


def as_module(stacked, row):
    """One MLP of the stack, rebuilt from torch.nn."""
    module = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
    with torch.no_grad():
        module[0].weight.copy_(stacked.hidden[row, :-1].T)
        module[0].bias.copy_(stacked.hidden[row, -1])
        module[2].weight.copy_(stacked.output_weight[row].T)
        module[2].bias.copy_(stacked.output_bias[row, 0])
    return module


def test_each_row_is_an_ordinary_mlp():
    critics = stack(3)
    inputs = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(9))
    for mlp in (critics.query_mlp, critics.key_mlp):
        embeddings = mlp(inputs)
        assert_close(mlp(inputs[1:], slice(1, None)), embeddings[1:])
        for row in range(3):
            assert_close(embeddings[row], as_module(mlp, row)(inputs[row]))


def test_initial_weights_do_not_depend_on_the_neighbours():
    alone = StackedCritics([torch.Generator().manual_seed(1)], **SIZES)
    for mine, ours in zip(alone.parameters(), stack(3).parameters(), strict=True):
        assert torch.equal(mine[0], ours[1])


def test_initial_weights_lie_within_the_reach_of_nn_linear():
    mlp = stack(50).key_mlp
    for weight, inputs in ((mlp.hidden, 4), (mlp.output_bias, 7)):
        largest = float(weight.detach().abs().max())
        assert 0.95 * inputs**-0.5 < largest <= inputs**-0.5


@pytest.mark.parametrize(("name", "flag"), [("dim", "dim"), ("output", "output_size")])
def test_sizes_must_be_positive(name, flag):
    with pytest.raises(InputError, match=f"{flag}=0; it must be at least 1"):
        StackedCritics([torch.Generator()], **{**SIZES, name: 0})
