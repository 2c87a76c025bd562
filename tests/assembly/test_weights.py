"""One door for weights: whatever wrote them, the features are those of the network that did."""

import json
import shutil

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from eqco.assembly import load, open_weights, pixels, random_like
from eqco.assembly.weights import unfinished_note
from eqco.encoders import Encoder, LightEncoder, linear_head, resnet
from eqco.runtime.errors import InputError

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def disturb(network):
    """Random batch norms, so that nothing agrees by chance."""
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.2, 0.6)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network.eval()


def without_head(network):
    network.fc = nn.Identity()
    return network


@torch.no_grad()
def features(network, images=IMAGES):
    # all in one memory layout, so that the same weights give the same bits
    return network.to(memory_format=torch.channels_last)(images)


def steps_of(run):
    return json.loads((run / "result.json").read_text())["steps"]


@pytest.mark.parametrize("part", ["", "checkpoints/last.pt"])
def test_a_run_gives_its_query_encoders_backbone_frozen(light_run, part):
    found = open_weights(light_run / part)
    expected = load(light_run)
    images = torch.randn(2, 3, found.image_size, found.image_size)
    assert torch.equal(features(found.backbone, images), features(expected.backbone, images))
    assert (found.origin, found.step) == ("run", steps_of(light_run))
    assert found.image_size == found.recipe.data.image_size
    assert not found.backbone.training
    assert not any(parameter.requires_grad for parameter in found.backbone.parameters())


@pytest.mark.parametrize("words", ["{", "[]", '{"steps_per_epoch": "3"}', "{}", None])
def test_a_run_that_does_not_say_how_long_it_was_to_be_still_gives_its_weights(
    words, light_run, tmp_path
):
    """Whether it is complete is a note, and a note refuses nothing."""
    run = shutil.copytree(light_run, tmp_path / "run")
    facts = json.loads((run / "environment.json").read_text())
    facts["steps_per_epoch"] += 1
    (run / "environment.json").write_text(json.dumps(facts))
    assert "is not trained to its end" in unfinished_note(open_weights(run))
    (run / "environment.json").unlink()
    if words is not None:
        (run / "environment.json").write_text(words)
    assert unfinished_note(open_weights(run)) == ""


def test_a_checkpoint_under_another_name_is_still_known(light_run, tmp_path):
    copy = tmp_path / "mine.pth"
    copy.write_bytes((light_run / "checkpoints/last.pt").read_bytes())
    assert open_weights(copy).origin == "run"
    assert isinstance(load(copy), Encoder)


def test_another_network_than_the_runs_is_refused(light_run):
    with pytest.raises(InputError, match="was trained with light, not resnet18"):
        open_weights(light_run, backbone="resnet18")


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_torchvisions_state_dicts_give_torchvisions_features(tmp_path, name):
    network = disturb(torchvision.models.get_model(name, weights=None))
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    found = open_weights(tmp_path / "weights.pth")
    assert str(found.architecture) == name
    assert (found.left_out, found.image_size) == (("fc",), 224)
    assert torch.equal(features(found.backbone), features(without_head(network)))


@pytest.mark.parametrize(
    ("name", "named"), [("resnet18", None), ("resnet10t", "timm:resnet10t"), ("resnet101", None)]
)
def test_timms_state_dicts_give_timms_features(tmp_path, name, named):
    network = disturb(timm.create_model(name, pretrained=False))
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    found = open_weights(tmp_path / "model.safetensors", backbone=named)
    network.reset_classifier(0)
    torch.testing.assert_close(features(found.backbone), features(network), rtol=1e-5, atol=1e-6)
    assert found.left_out == ("fc",)


def test_a_vision_transformer_of_timm_is_read_when_it_is_named(tmp_path):
    name = "vit_tiny_patch16_224"
    network = timm.create_model(name, pretrained=False).eval()
    torch.save({"model": network.state_dict()}, tmp_path / "vit.pth")
    with pytest.raises(InputError, match=r"does not tell which network .* --backbone"):
        open_weights(tmp_path / "vit.pth")
    found = open_weights(tmp_path / "vit.pth", backbone=f"timm:{name}")
    images = torch.randn(1, 3, 224, 224)
    network.reset_classifier(0)
    assert torch.equal(features(found.backbone, images), features(network, images))
    assert (found.left_out, found.image_size, found.feature_dim) == (("head",), 224, 192)


@pytest.mark.parametrize("prefix", ["module.encoder_q.", "module.encoder.", "backbone."])
def test_checkpoints_of_moco_and_simsiam_give_their_backbones_features(tmp_path, prefix):
    network = disturb(torchvision.models.resnet18(weights=None))
    network.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128))
    state = {prefix + name: value for name, value in network.state_dict().items()}
    wrapper = prefix.split("encoder")[0].removesuffix("backbone.")
    state |= {f"{wrapper}encoder_k.{n}": v + 1 for n, v in network.state_dict().items()}
    state |= {f"{wrapper}queue": torch.zeros(128, 8)}
    torch.save({"epoch": 200, "arch": "resnet18", "state_dict": state}, tmp_path / "c.pth.tar")
    found = open_weights(tmp_path / "c.pth.tar")
    assert f"{prefix}fc" in found.left_out
    assert f"{wrapper}queue" in found.left_out
    assert torch.equal(features(found.backbone), features(without_head(network)))


def test_weights_of_another_architecture_are_recognised_and_the_right_one_is_named(tmp_path):
    torch.save(resnet(18).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(InputError) as refusal:
        open_weights(tmp_path / "weights.pth", backbone="resnet50")
    text = str(refusal.value)
    assert "does not fit resnet50: " in text
    assert "layer1.0.conv3.weight" in text
    assert "It looks like resnet18: leave out --backbone." in text
    with pytest.raises(InputError, match=r"1 of another shape \(conv1.weight \(64, 3, 7, 7\)"):
        open_weights(tmp_path / "weights.pth", backbone="resnet18", stem="small")


def test_a_backbone_of_the_users_takes_its_own_weights(tmp_path):
    encoder = Encoder(disturb(LightEncoder()), linear_head(256, 8))
    torch.save(encoder.state_dict(), tmp_path / "mine.pt")
    found = open_weights(tmp_path / "mine.pt", backbone=LightEncoder())
    assert torch.equal(features(found.backbone), features(encoder.backbone))
    assert found.architecture is None
    with pytest.raises(InputError, match="no untrained one"):
        random_like(found)


def test_torchvisions_own_weights_come_from_its_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    network = disturb(torchvision.models.resnet18(weights=None))
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(network.state_dict(), cache / "resnet18-f37072fd.pth")
    found = open_weights("torchvision:resnet18")
    assert found.name == "torchvision:resnet18 (supervised)"
    assert torch.equal(features(found.backbone), features(without_head(network)))


def test_torchvisions_own_weights_offline_are_refused_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"could not be downloaded .*resnet18-f37072fd.pth"):
        open_weights("torchvision:resnet18")


def test_the_baselines_are_an_untrained_network_and_the_pixels():
    untrained = open_weights("random", backbone="resnet18", stem="small", seed=4)
    like = random_like(untrained, seed=4)
    images = IMAGES[:, :, :32, :32]
    assert torch.equal(features(untrained.backbone, images), features(like.backbone, images))
    assert (untrained.image_size, untrained.feature_dim) == (32, 512)
    raw = open_weights("pixels", image_size=16)
    assert raw.feature_dim == pixels(16).feature_dim == 768
    assert torch.equal(
        features(raw.backbone, images[..., :16, :16]), images[..., :16, :16].flatten(1)
    )


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ("random", {}, "random weights of which network"),
        ("torchvision:resnet19", {}, "torchvision has no ImageNet weights for 'resnet19'"),
        ("nowhere", {}, "there is no nowhere. Give a run directory"),
        ("random", {"backbone": "resnet19"}, "Did you mean"),
        ("random", {"backbone": "light", "image_size": 0}, "image_size=0"),
        ("random", {"stem": "small"}, "Give --backbone"),
        ("pixels", {"image_size": 0}, "image_size=0"),
        ("random", {"backbone": "timm:vit_tiny_patch16_224", "image_size": 8}, "image_size=8"),
    ],
)
def test_what_cannot_be_opened_is_refused(given, settings, message):
    with pytest.raises(InputError, match=message):
        open_weights(given, **settings)


@pytest.mark.parametrize(
    ("name", "given"),
    [("width", "wide"), ("width", "0"), ("image_size", "1.5"), ("stem", "huge"), ("stem", "")],
)
def test_an_exported_file_whose_words_were_changed_is_refused(tmp_path, name, given):
    words = {"backbone": "light", "width": "1", "stem": "imagenet", "image_size": "32", name: given}
    state = {name: value.contiguous() for name, value in LightEncoder().state_dict().items()}
    save_file(state, tmp_path / "mine.safetensors", metadata=words)
    with pytest.raises(InputError, match=f"mine.safetensors says of itself {name}='{given}'"):
        open_weights(tmp_path / "mine.safetensors")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no checkpoint at"):
        open_weights(tmp_path)
