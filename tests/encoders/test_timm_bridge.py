"""timm's networks as backbones."""

import sys

import pytest
import torch

from eqco.encoders import Encoder, backbone_named, linear_head, timm_encoder
from eqco.runtime.errors import InputError, MissingExtraError

timm = pytest.importorskip("timm")


# mobilenetv3 has 288 features before its head and 1024 after: the latter is what comes out
@pytest.mark.parametrize(
    ("name", "feature_dim"), [("resnet10t", 512), ("mobilenetv3_small_050", 1024)]
)
def test_feature_dim_is_the_size_of_what_comes_out(name, feature_dim):
    network = timm_encoder(name).eval()
    with torch.no_grad():
        features = network(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, feature_dim) == (2, network.feature_dim)


def test_the_names_of_the_parameters_are_timms():
    ours = timm_encoder("resnet10t").state_dict()
    theirs = timm.create_model("resnet10t").state_dict()
    assert [*ours] == [name for name in theirs if not name.startswith("fc.")]


def test_a_timm_backbone_by_name_makes_an_encoder():
    backbone = backbone_named("timm:resnet10t")
    encoder = Encoder(backbone, linear_head(backbone.feature_dim, 16)).eval()
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, 16)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"no model named 'resnet10x'. Nearest: .*resnet10t"):
        timm_encoder("resnet10x")
    with pytest.raises(InputError, match=r"no model named '\?\?'. timm.list_models\(\) has all"):
        timm_encoder("??")


def test_without_timm_the_install_line_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[timm\]"'):
        timm_encoder("resnet10t")
