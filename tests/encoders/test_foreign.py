"""Wrapped weights are found under any prefix; what does not fit is named."""

import pytest
import torch

from eqco.encoders import LightEncoder, fill, state_dict_in, unwrap
from eqco.runtime.errors import InputError


def light():
    return {name: value.clone() for name, value in LightEncoder().state_dict().items()}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "module.encoder_q.",
        "module.encoder.",
        "backbone.",
        "model.backbone.",
        "_orig_mod.module.base_encoder.",
        "encoder.backbone.",
    ],
)
def test_any_prefix_is_taken_off(prefix):
    weights = light()
    state = {prefix + name: value for name, value in weights.items()}
    found = unwrap(state, "file")
    assert (found.prefix, found.others) == (prefix, ())
    assert list(found.weights) == list(weights)


def test_of_leader_and_follower_the_leader_is_taken_and_the_rest_named():
    state = {f"module.encoder_k.{name}": value for name, value in light().items()}
    state |= {f"module.encoder_q.{name}": value + 1 for name, value in light().items()}
    state |= {"module.queue": torch.zeros(1), "module.encoder_q.fc.0.weight": torch.zeros(1)}
    found = unwrap(state, "file")
    assert found.prefix == "module.encoder_q."
    assert found.others == ("module.encoder_k", "module.queue")
    heads = fill(LightEncoder(), found.weights, file="file", called="light", remedy="")
    assert heads == ["fc.0.weight"]


def test_two_networks_of_equal_right_are_refused():
    state = {f"{one}.{name}": value for one in ("left", "right") for name, value in light().items()}
    with pytest.raises(InputError, match=r"2 networks \(left\., right\.\).* file of its own"):
        unwrap(state, "file")


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))


def test_a_users_own_backbone_is_found_by_most_of_its_names():
    own = Own()
    state = {f"net.{name}": value for name, value in own.state_dict().items()}
    state |= {"projector.layers.0.weight": torch.zeros(2, 2)}
    found = unwrap(state, "file", own)
    assert (found.prefix, found.others) == ("net.", ("projector",))


@pytest.mark.parametrize("place", [None, "state_dict", "model", "model_state_dict"])
def test_a_state_dict_is_found_in_its_usual_places(place):
    state = {"a.b": torch.zeros(1)}
    content = state if place is None else {"epoch": 3, "best": torch.zeros(()), place: state}
    assert state_dict_in(content, "file").keys() == state.keys()


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, [torch.zeros(1)], torch.zeros(1)])
def test_a_file_without_a_state_dict_is_refused(content):
    with pytest.raises(InputError, match=r"holds no state dict; looked for .* state_dict, model"):
        state_dict_in(content, "file")


def test_missing_unexpected_and_misshapen_weights_are_counted_and_named():
    weights = light()
    for name in [name for name in weights if name.startswith("blocks.1.")]:
        del weights[name]
    weights |= {"blocks.3.conv1.weight": torch.zeros(1), "stem.0.weight": torch.zeros(64, 3, 3, 3)}
    with pytest.raises(InputError) as refusal:
        fill(LightEncoder(), weights, file="file", called="light", remedy="Try another.")
    text = str(refusal.value)
    # conv1, bn1, conv2, bn2 and the shortcut's two layers: 3 weights and 3·4 of batch norms
    assert "15 missing (blocks.1.conv1.weight, blocks.1.bn1.weight," in text
    assert "and 11 more)" in text
    assert "1 unexpected (blocks.3.conv1.weight)" in text
    assert "stem.0.weight (64, 3, 3, 3) instead of (64, 3, 4, 4)" in text
    assert text.endswith("Try another.")


def test_files_without_counters_of_batches_are_complete():
    weights = {n: v for n, v in light().items() if not n.endswith("num_batches_tracked")}
    network = LightEncoder()
    assert fill(network, weights, file="file", called="light", remedy="") == []
    assert torch.equal(network.state_dict()["stem.0.weight"], weights["stem.0.weight"])
