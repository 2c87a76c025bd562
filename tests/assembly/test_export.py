"""Exported weights load elsewhere strictly and give the same features there."""

import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
import torchvision
from safetensors import safe_open
from torch import nn
from torch.testing import assert_close

import eqco
from eqco.assembly import load, open_weights
from eqco.assembly.export import SUFFIXES, export_weights
from eqco.assembly.model_card import model_card, run_facts
from eqco.cli.main import main
from eqco.runtime.errors import InputError

pytestmark = pytest.mark.end_to_end


def images_of(size, count=3):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(7))


@torch.no_grad()
def features(network, images):
    # all in one memory layout, so that the same weights give the same bits
    return network.eval().to(memory_format=torch.channels_last)(images)


@pytest.fixture(scope="module")
def plain_run(make_run):
    return make_run(backbone="resnet18")


@pytest.fixture(scope="module")
def small_run(make_run):
    return make_run(backbone="resnet18", stem="small", head="normalised")


@pytest.fixture(scope="module")
def wide_run(make_run):
    return make_run(backbone="resnet18", width=2)


def exported(run, to, out, **settings):
    return export_weights(open_weights(run), to, out, **settings)


@pytest.mark.parametrize("depth", [18, 50])
def test_torchvision_loads_the_file_strictly_and_gives_our_features(make_run, tmp_path, depth):
    run, file = make_run(backbone=f"resnet{depth}"), tmp_path / "encoder.pth"
    exported(run, "torchvision", file)
    model = getattr(torchvision.models, f"resnet{depth}")()
    model.fc = nn.Identity()
    model.load_state_dict(torch.load(file, weights_only=True), strict=True)
    images = images_of(64)
    assert_close(features(model, images), features(load(run).backbone, images), rtol=0, atol=0)


def test_torchvision_runs_the_usage_lines(plain_run, tmp_path, monkeypatch):
    usage = exported(plain_run, "torchvision", tmp_path / "encoder.pth").usage
    monkeypatch.chdir(tmp_path)
    names = {}
    exec("\n".join(usage), names)
    images = images_of(64)
    theirs = features(names["model"], images)
    assert torch.equal(theirs, features(load(plain_run).backbone, images))


@pytest.mark.parametrize("backbone", ["resnet18", "timm:resnet18", "timm:vit_tiny_patch16_224"])
def test_timm_loads_the_file_strictly_and_gives_our_features(make_run, tmp_path, backbone):
    run = make_run(backbone=backbone)
    weights = open_weights(run)
    usage = export_weights(weights, "timm", tmp_path / "encoder.pth").usage
    name = backbone.removeprefix("timm:")
    size = {"img_size": 64} if "vit" in name else {}  # of images of the run
    model = timm.create_model(name, num_classes=0, **size)
    model.load_state_dict(torch.load(tmp_path / "encoder.pth", weights_only=True), strict=True)
    images = images_of(64, count=1)
    ours = features(weights.backbone, images)
    assert_close(features(model, images), ours, rtol=1e-5, atol=1e-6)
    names = {}
    exec("\n".join(usage), names)
    assert torch.equal(features(names["model"], images), features(model, images))


@pytest.mark.parametrize("name", ["light", "small"])
def test_onnxruntime_gives_our_features_for_any_number_of_images(
    light_run, small_run, tmp_path, name
):
    run, file = {"light": light_run, "small": small_run}[name], tmp_path / "encoder.onnx"
    weights = open_weights(run)
    export_weights(weights, "onnx", file)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (1, 2, 5):
        images = images_of(weights.image_size, count)
        theirs = session.run(None, {"images": images.numpy()})[0]
        ours = features(weights.backbone, images).numpy()
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)
    words = {entry.key: entry.value for entry in onnx.load(file).metadata_props}
    assert words["image_size"] == str(weights.image_size)
    assert [entry.name for entry in tmp_path.iterdir()] == ["encoder.onnx"]
    with pytest.raises(InputError, match="is an ONNX graph"):
        open_weights(file)


class Unlike(nn.Module):
    """Gives other features when it is exported than when it is not."""

    feature_dim = 3

    def forward(self, images):
        shift = 1.0 if torch.compiler.is_exporting() else 0.0
        return images.mean((2, 3)) + shift


def test_a_graph_that_gives_other_features_is_not_left_behind(plain_run, tmp_path):
    weights = replace(open_weights(plain_run), backbone=Unlike().eval())
    with pytest.raises(InputError, match="onnxruntime gives features that differ"):
        export_weights(weights, "onnx", tmp_path / "encoder.onnx")
    assert not list(tmp_path.iterdir())


def test_safetensors_keep_what_is_needed_to_build_the_network(light_run, tmp_path):
    file = tmp_path / "encoder.safetensors"
    exported(light_run, "safetensors", file)
    with safe_open(file, framework="pt") as opened:
        words = opened.metadata()
    assert (words["backbone"], words["format"]) == ("light", "pt")
    (tmp_path / "beside").touch()
    assert file.stat().st_mode == (tmp_path / "beside").stat().st_mode
    assert json.loads(words["recipe"]) == json.loads((light_run / "recipe.json").read_text())


def main_lincls(file, model):
    """How MoCo's main_lincls.py takes a checkpoint into a network of torchvision."""
    state = torch.load(file, map_location="cpu")["state_dict"]
    for name in list(state):
        if name.startswith("module.encoder_q") and not name.startswith("module.encoder_q.fc"):
            state[name[len("module.encoder_q.") :]] = state[name]
        del state[name]
    answer = model.load_state_dict(state, strict=False)
    assert set(answer.missing_keys) == {"fc.weight", "fc.bias"}
    assert answer.unexpected_keys == []


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("linear", {"fc.weight", "fc.bias"}),
        ("mlp", {"fc.0.weight", "fc.0.bias", "fc.2.weight", "fc.2.bias"}),
    ],
)
def test_mocos_linear_evaluation_takes_the_file(make_run, tmp_path, head, names):
    run, file = make_run(backbone="resnet18", head=head), tmp_path / "encoder.pth"
    exported(run, "moco", file, epoch=4)
    content = torch.load(file, weights_only=True)
    assert (content["arch"], content["epoch"]) == ("resnet18", 4)
    heads = {name for name in content["state_dict"] if ".fc." in name}
    assert heads == {f"module.encoder_q.{name}" for name in names}
    model = torchvision.models.get_model(content["arch"])
    main_lincls(file, model)
    model.fc = nn.Identity()
    images = images_of(64)
    assert torch.equal(features(model, images), features(load(run).backbone, images))


def to_detectron(name):
    """What MoCo's converter calls a weight of torchvision's in detectron2."""
    place = name if "layer" in name else f"stem.{name}"
    for stage in range(1, 5):
        place = place.replace(f"layer{stage}", f"res{stage + 1}")
    for number in range(1, 4):
        place = place.replace(f"bn{number}", f"conv{number}.norm")
    return place.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")


def test_mocos_converter_for_detection_finds_every_weight(plain_run, tmp_path):
    exported(plain_run, "moco", tmp_path / "encoder.pth")
    state = torch.load(tmp_path / "encoder.pth", map_location="cpu")["state_dict"]
    prefix = "module.encoder_q."
    model = {to_detectron(n.replace(prefix, "")): v.numpy() for n, v in state.items()}
    assert pickle.loads(pickle.dumps(model)).keys() == model.keys()
    assert {"stem.conv1.weight", "stem.conv1.norm.weight", "res2.0.conv1.weight"} <= set(model)
    assert {"res3.0.shortcut.weight", "res5.1.conv2.norm.running_var"} <= set(model)


@pytest.mark.parametrize("to", ["torchvision", "timm", "safetensors", "moco"])
def test_every_format_read_again_gives_bit_equal_features(plain_run, tmp_path, to):
    file = tmp_path / "file"
    exported(plain_run, to, file)
    again, images = open_weights(file), images_of(64)
    assert torch.equal(features(again.backbone, images), features(load(plain_run).backbone, images))
    assert str(again.architecture) == "resnet18"
    assert (again.image_size, again.size_is_known) == (64, True)
    exported(file, to, tmp_path / "again")
    assert open_weights(tmp_path / "again").image_size == 64
    assert "RGB images of 64 × 64 pixels" in card_of(tmp_path / "again")


@pytest.mark.parametrize("to", ["torchvision", "timm", "safetensors", "moco"])
def test_a_file_of_weights_given_to_load_is_answered_with_the_call_that_opens_it(
    plain_run, tmp_path, to
):
    file = exported(plain_run, to, tmp_path / f"weights{SUFFIXES[to]}").file
    with pytest.raises(InputError) as refused:
        load(file)
    said = str(refused.value)
    assert "damaged" not in said
    assert "eqco.load reads a run directory, one of its checkpoints, or as hf:FOLDER" in said
    assert f"eqco.open_weights({str(file)!r}).backbone" in said
    assert eqco.open_weights(file).feature_dim == 512


def test_a_graph_or_a_folder_of_the_hub_given_to_load_is_answered_with_its_own_call(
    plain_run, tmp_path
):
    graph = tmp_path / "encoder.onnx"
    graph.touch()
    with pytest.raises(InputError) as refused:
        load(graph)
    assert f"onnxruntime.InferenceSession({str(graph)!r})" in str(refused.value)
    folder = tmp_path / "encoder"
    exported(plain_run, "hub", folder)
    with pytest.raises(InputError) as refused:
        load(folder)
    assert f"eqco.load('hf:{folder}')" in str(refused.value)
    assert eqco.load(f"hf:{folder}").recipe == load(plain_run).recipe


@pytest.mark.parametrize("name", ["light", "small", "wide"])
def test_networks_of_ours_alone_travel_as_safetensors(
    light_run, small_run, wide_run, tmp_path, name
):
    run = {"light": light_run, "small": small_run, "wide": wide_run}[name]
    exported(run, "safetensors", tmp_path / "a.safetensors")
    again, first = open_weights(tmp_path / "a.safetensors"), open_weights(run)
    images = images_of(first.image_size)
    assert torch.equal(features(again.backbone, images), features(first.backbone, images))
    assert (again.architecture, again.image_size) == (first.architecture, first.image_size)


@pytest.mark.parametrize("to", ["torchvision", "timm", "moco"])
@pytest.mark.parametrize("name", ["light", "small", "wide"])
def test_networks_that_others_do_not_have_are_refused_with_a_remedy(
    light_run, small_run, wide_run, tmp_path, to, name
):
    run = {"light": light_run, "small": small_run, "wide": wide_run}[name]
    message = r"Export it --to safetensors, .* or --to onnx.*train with --encoder.backbone resnet18"
    with pytest.raises(InputError, match=message):
        exported(run, to, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_weights_of_others_can_be_exported_too(tmp_path):
    network = torchvision.models.resnet18()
    torch.save(network.state_dict(), tmp_path / "theirs.pth")
    exported(tmp_path / "theirs.pth", "moco", tmp_path / "moco.pth")
    again = open_weights(tmp_path / "moco.pth")
    network.fc = nn.Identity()
    images = images_of(64)
    assert torch.equal(features(again.backbone, images), features(network, images))


def test_a_size_that_nobody_gave_is_called_a_guess_and_stays_one(tmp_path):
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "theirs.pth")
    theirs = open_weights(tmp_path / "theirs.pth")
    assert theirs.size_note == "image size not known: 224 taken; give --image-size"
    assert open_weights(tmp_path / "theirs.pth", image_size=224).size_note == ""
    assert "a size that is not known (try 224 × 224)" in card_of(tmp_path / "theirs.pth")
    for to in ("torchvision", "moco", "safetensors"):
        export_weights(theirs, to, tmp_path / to)
        assert not open_weights(tmp_path / to).size_is_known


def test_a_network_without_a_name_still_tells_its_size(plain_run, tmp_path):
    nameless = replace(open_weights(plain_run), architecture=None)
    export_weights(nameless, "safetensors", tmp_path / "a.safetensors")
    network = open_weights("random", backbone="resnet18").backbone
    again = open_weights(tmp_path / "a.safetensors", backbone=network)
    assert (again.image_size, again.size_is_known) == (64, True)


def test_a_file_that_is_there_is_replaced_only_on_request(light_run, tmp_path):
    file = tmp_path / "a.safetensors"
    file.write_text("precious")
    with pytest.raises(InputError, match=r"exists\. Pass --overwrite"):
        exported(light_run, "safetensors", file)
    assert file.read_text() == "precious"
    exported(light_run, "safetensors", file, overwrite=True)
    assert open_weights(file).feature_dim == 256
    with pytest.raises(InputError, match="is a folder"):
        exported(light_run, "safetensors", tmp_path, overwrite=True)


def test_a_file_is_called_by_the_whole_name_of_its_run(plain_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(plain_run, tmp_path / "runs" / "lr0.1")
    assert main(["export", str(run), "--to", "safetensors"]) == 0
    assert main(["export", str(run / "checkpoints" / "last.pt"), "--to", "safetensors"]) == 0
    files = sorted(file.name for file in tmp_path.iterdir() if file.is_file())
    names = ("last-safetensors", "lr0.1-safetensors")
    assert files == [f"{name}{suffix}" for name in names for suffix in (".md", ".safetensors")]


def test_baselines_are_not_exported(tmp_path):
    with pytest.raises(InputError, match="pixels is a baseline"):
        exported("pixels", "onnx", tmp_path / "a.onnx")


def card_of(path):
    weights = open_weights(path)
    return model_card(weights, run_facts(weights, path), file="a.pth", usage=["how to"])


def test_the_card_tells_recipe_data_figures_versions_and_loading(plain_run):
    card = card_of(plain_run)
    assert "A resnet18 backbone, without a classifier: images in, 512 features out." in card
    assert "* data: photos, 1,000 images" in card
    assert "/home/me" not in card
    assert "* epochs: 4 of" in card
    assert "* knn20_test: 81.2 %" in card
    assert "* trained by eqco 0.1.0" in card
    assert "how to" in card
    assert '"num_queries"' in card


def test_the_card_of_weights_without_a_run_claims_nothing(plain_run, tmp_path):
    copy = tmp_path / "taken.pt"
    copy.write_bytes((plain_run / "checkpoints/last.pt").read_bytes())
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "theirs.pth")
    for file in (copy, tmp_path / "theirs.pth"):
        assert "None were measured on these weights" in card_of(file)
    assert "Unknown: taken from theirs.pth" in card_of(tmp_path / "theirs.pth")


def test_a_checkpoint_from_before_the_end_does_not_get_the_figures_of_the_end(plain_run):
    result = plain_run / "result.json"
    kept = result.read_text()
    result.write_text(json.dumps({"steps": 99, "probe": {"knn20_test": 0.9}}))
    try:
        assert "knn20_test" not in card_of(plain_run)
    finally:
        result.write_text(kept)
