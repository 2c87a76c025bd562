"""From images of any number of bands to a trained encoder, its figures and its exports."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from PIL import Image
from torch.testing import assert_close

from eqco.assembly import load, open_weights, resume, train
from eqco.assembly.export import export_weights
from eqco.assembly.model_card import model_card
from eqco.cli.main import main
from eqco.recipes import named_recipe
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory

pytestmark = pytest.mark.end_to_end

COUNTS = [1, 2, 4, 13]


def recipe():
    demo = named_recipe("simo", "demo")
    return replace(
        demo,
        training=replace(demo.training, epochs=2, num_queries=32),
        optimiser=replace(demo.optimiser, warmup_epochs=0),
    )


def write_classes(folder, channels, *, kind=np.uint8):
    """Two classes that differ in their last band alone, in train and test."""
    random = np.random.default_rng(0)
    most = np.iinfo(kind).max
    for split, count in (("train", 40), ("test", 10)):
        for name, level in (("dark", 0.2), ("bright", 0.8)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                image = random.random((32, 32, channels))
                image[:, :, -1] = level + 0.1 * image[:, :, -1]
                np.save(folder / split / name / f"{number}.npy", (image * most).astype(kind))
    return folder


@pytest.fixture(scope="module", params=COUNTS)
def run(request, tmp_path_factory):
    """A short training on images of that many bands: number, data, run directory, run info."""
    place = tmp_path_factory.mktemp("bands")
    kind = np.uint16 if request.param == 13 else np.uint8
    data = write_classes(place / "data", request.param, kind=kind)
    about = []
    train(data, recipe(), out=place / "run", on_start=about.append)
    return request.param, data, place / "run", about[0]


def test_every_number_of_bands_trains_and_the_run_says_what_was_left_out(run):
    channels, _, place, about = run
    encoder = load(place)
    with torch.no_grad():
        embeddings = encoder(torch.rand(2, channels, 32, 32))
    assert embeddings.isfinite().all()
    assert (about.source.channels, about.left_out) == (channels, ("saturation", "hue", "greyscale"))
    met = RunDirectory(place).read_environment()
    assert (met["channels"], tuple(met["left_out"])) == (channels, about.left_out)


def test_it_is_evaluated_beside_pixels_of_as_many_bands(run, tmp_path, capsys):
    channels, data, place, _ = run
    assert main(["eval", str(place), str(data), "--out", str(tmp_path / "of")]) == 0
    shown = capsys.readouterr().out
    assert "raw pixels" in shown
    assert "random weights" in shown
    assert (tmp_path / "of").is_dir()
    embed = ["embed", str(place), str(data), "--out", str(tmp_path / "f.npz")]
    assert main(embed) == 0
    with np.load(tmp_path / "f.npz") as stored:
        assert stored["features"].shape == (100, 256)
    pixels = ["eval", "pixels", str(data), "--image-size", "8", "--channels", str(channels)]
    assert main([*pixels, "--out", str(tmp_path / "pixels")]) == 0


@pytest.mark.parametrize("to", ["safetensors", "onnx"])
def test_exports_take_as_many_bands(run, to, tmp_path):
    channels, _, place, _ = run
    weights = open_weights(place)
    assert weights.in_channels == weights.architecture.in_channels == channels
    images = torch.randn(3, channels, 32, 32)
    file = tmp_path / f"e.{to}"
    usage = export_weights(weights, to, file).usage
    if to == "onnx":
        session = onnxruntime.InferenceSession(str(file))
        found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        assert any(f"(N, {channels}, 32, 32)" in line for line in usage)
    else:
        again = open_weights(file)
        assert again.architecture == weights.architecture
        found = again.backbone(images)
    assert_close(found, weights.backbone(images), rtol=1e-4, atol=1e-4)
    page = model_card(weights, {}, file=file.name, usage=usage)
    assert f"{channels}-band images" in page
    assert str([0.5] * channels) in page


def test_other_images_than_it_was_trained_on_are_refused(run, capsys):
    channels, _, place, _ = run
    assert main(["eval", str(place), "groceries"]) == 2
    bands = f"{channels} band{'s' * (channels > 1)}"
    said = f"{place} takes images of {bands}, but groceries can be had with 3"
    assert said in capsys.readouterr().err


def test_a_resnet_of_bands_goes_to_timm_and_not_to_torchvision(tmp_path):
    weights = open_weights("random", backbone="resnet18", in_channels=13, image_size=64)
    weights = replace(weights, origin="file")
    usage = export_weights(weights, "timm", tmp_path / "t.pth").usage
    assert "in_chans=13" in usage[1]
    model = timm.create_model("resnet18", num_classes=0, in_chans=13)
    model.load_state_dict(torch.load(tmp_path / "t.pth", weights_only=True))
    named = open_weights(tmp_path / "t.pth", backbone="resnet18")  # nobody names the bands
    assert named.in_channels == 13
    for to in ("torchvision", "moco"):
        with pytest.raises(InputError, match=r"resnet18 for 13-band images is none of them"):
            export_weights(weights, to, tmp_path / "x.pth")


def test_one_channel_of_grey_pictures_is_kept_when_resumed(tmp_path, capsys):
    random = np.random.default_rng(0)
    (tmp_path / "grey").mkdir()
    for number in range(64):
        picture = random.integers(0, 256, (32, 32), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / "grey" / f"{number}.png")
    settings = ["--profile", "demo", "--training.epochs", "2", "--training.num-queries", "32"]
    settings += ["--optimiser.warmup-epochs", "0", "--out", str(tmp_path / "run")]
    assert main(["train", str(tmp_path / "grey"), "--channels", "1", *settings]) == 0
    said = capsys.readouterr().out
    assert "1 band in each image; left out, since they need three colour channels: satur" in said
    outcome = resume(tmp_path / "run")
    assert outcome.step == 4
    assert open_weights(tmp_path / "run").in_channels == 1


def test_views_and_data_tell_of_bands(run, tmp_path, capsys):
    channels, data, _, _ = run
    assert main(["data", str(data), "--sheet", str(tmp_path / "sheet.png")]) == 0
    depth = "16 bits or floating point" if channels == 13 else "8 bits"
    assert f"every image: {channels} band{'s' * (channels > 1)} of {depth}" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main(["views", str(data), "--out", str(tmp_path / "views.png")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "need three colour channels: saturation, hue, greyscale" in said


def test_a_backbone_of_the_users_own_must_take_the_bands(tmp_path):
    data = torch.zeros(64, 4, 32, 32, dtype=torch.uint8)
    own = timm.create_model("resnet10t", num_classes=0)
    with pytest.raises(InputError, match="32 pixels and 4 bands"):
        train(data, recipe(), out=tmp_path / "run", encoder=own)


def test_pictures_of_other_bands_are_refused_without_a_word_of_channels(run, tmp_path, capsys):
    channels, _, place, _ = run
    picture = tmp_path / "photos" / "a.png"
    picture.parent.mkdir()
    Image.new("RGB", (32, 32)).save(picture)
    fact = f"{channels} band{'s' * (channels > 1)}, but {picture} has 3 bands of 8 bits"
    for command in ("embed", "index"):
        out = ["--out", str(tmp_path / f"{command}.npz")]
        assert main([command, str(place), str(picture.parent), *out]) == 2
        said = capsys.readouterr().err
        assert f"{place} takes images of {fact}. Give images like those" in said
        assert "--channels" not in said
    with pytest.raises(InputError, match=f"the encoder takes images of {fact}"):
        load(place).embed(picture)


@pytest.mark.parametrize("flag", ["--init", "--extend"])
def test_first_weights_of_other_bands_are_refused_by_both_numbers(run, flag, tmp_path, capsys):
    channels, _, place, _ = run
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "groceries", flag, str(place), *out]) == 2
    bands = f"{channels} band{'s' * (channels > 1)}"
    said = capsys.readouterr().err
    assert f"{flag} {place} takes images of {bands}, and groceries has 3. Give images" in said
    assert ("grey pictures stay grey by --channels 1" in said) == (channels == 1)
    assert not (tmp_path / "run").exists()
