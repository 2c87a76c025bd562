"""The heads, written out."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from eqco.encoders import (
    byol_head,
    linear_head,
    mlp_head,
    mocov3_head,
    normalised_head,
    simclrv2_head,
    swav_head,
)
from eqco.runtime.errors import InputError

FEATURES = torch.randn(6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def shapes(head):
    return {name: tuple(parameter.shape) for name, parameter in head.named_parameters()}


def batch_normalised(x):
    return (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5)


def test_the_linear_head_is_wx_plus_b():
    head = linear_head(10, 4).double()
    assert_close(head(FEATURES), FEATURES @ head.weight.T + head.bias)
    assert shapes(linear_head(2048)) == {"weight": (128, 2048), "bias": (128,)}


def test_the_mlp_head_has_biases_and_no_batch_norm():
    head = mlp_head(10, 4).double()
    first, second = head[0], head[2]
    hidden = (FEATURES @ first.weight.T + first.bias).clamp(min=0)
    assert_close(head(FEATURES), hidden @ second.weight.T + second.bias)
    assert shapes(head) == {
        "0.weight": (10, 10),
        "0.bias": (10,),
        "2.weight": (4, 10),
        "2.bias": (4,),
    }


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: simclrv2_head(2048),
            "2048×2048 BN ReLU 2048×2048 BN ReLU 128×2048 BN",
        ),
        (lambda: byol_head(2048), "4096×2048+b BN ReLU 256×4096"),
        (lambda: byol_head(256, 256, 4096), "4096×256+b BN ReLU 256×4096"),
        (lambda: mocov3_head(2048), "4096×2048 BN ReLU 256×4096 BN-plain"),
        (lambda: mocov3_head(256, 256, 4096, last_norm=False), "4096×256 BN ReLU 256×4096"),
        (lambda: swav_head(2048), "2048×2048+b BN ReLU 128×2048+b"),
    ],
)
def test_the_published_heads_and_predictors_layer_by_layer(make, expected):
    def told(layer):
        if isinstance(layer, nn.Linear):
            return "×".join(map(str, layer.weight.shape)) + "+b" * (layer.bias is not None)
        return {nn.ReLU: "ReLU", nn.BatchNorm1d: "BN"}[type(layer)] + "-plain" * (
            isinstance(layer, nn.BatchNorm1d) and not layer.affine
        )

    with torch.device("meta"):
        assert " ".join(map(told, make())) == expected


def test_the_normalised_head_normalises_after_each_linear_layer():
    head = normalised_head(10, 4).double()
    for norm in (head[1], head[4]):
        nn.init.uniform_(norm.weight)
        nn.init.normal_(norm.bias)
    hidden = batch_normalised(FEATURES @ head[0].weight.T) * head[1].weight + head[1].bias
    embeddings = batch_normalised(F.relu(hidden) @ head[3].weight.T)
    assert_close(head(FEATURES), embeddings * head[4].weight + head[4].bias)


def test_the_normalised_head_has_affine_norms_and_no_other_biases():
    # head A: 2048·2048 + 2·2048 + 2048·128 + 2·128 parameters
    with torch.device("meta"):
        head = normalised_head(2048)
    assert shapes(head) == {
        "0.weight": (2048, 2048),
        "1.weight": (2048,),
        "1.bias": (2048,),
        "3.weight": (128, 2048),
        "4.weight": (128,),
        "4.bias": (128,),
    }


@pytest.mark.parametrize("make", [mlp_head, normalised_head])
def test_the_hidden_size_is_that_of_the_features_unless_given(make):
    assert make(10)[0].out_features == 10
    assert make(10, 4, hidden_dim=7)[0].out_features == 7
    assert make(10, 4, hidden_dim=7)(FEATURES.float()).shape == (6, 4)


@pytest.mark.parametrize("make", [linear_head, mlp_head, normalised_head])
def test_an_embedding_has_128_numbers_by_default(make):
    assert make(10)(FEATURES.float()).shape == (6, 128)


@pytest.mark.parametrize("make", [linear_head, mlp_head, normalised_head])
def test_an_empty_embedding_is_refused(make):
    with pytest.raises(InputError, match="out_dim=0; it must be 1 or more"):
        make(10, 0)
