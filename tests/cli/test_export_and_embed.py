"""`eqco export` and `eqco embed` as a user calls them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from eqco.cli.main import main
from eqco.encoders import resnet


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """In an empty folder, a file of weights."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save(resnet(18).state_dict(), "mine.pth")
    return "mine.pth"


def test_export_writes_a_file_and_a_card_and_says_how_to_load_it(weights, tmp_path, capsys):
    assert main(["export", weights, "--to", "torchvision"]) == 0
    said, noted = capsys.readouterr()
    assert "written: mine-torchvision.pth" in said
    assert "image size not known: 224 taken; give --image-size" in noted
    assert "model = torchvision.models.resnet18()" in said
    assert "None were measured" in (tmp_path / "mine-torchvision.md").read_text()
    model = torchvision.models.resnet18()
    model.fc = torch.nn.Identity()
    model.load_state_dict(torch.load("mine-torchvision.pth", weights_only=True))


def test_a_card_says_where_others_prepare_images_otherwise(weights, tmp_path, capsys):
    assert main(["export", weights, "--to", "timm", "--image-size", "32"]) == 0
    difference = "timm's transform resizes to a shorter side of 36 (8/7 of 32); eqco resizes images"
    assert f"# {difference}" in capsys.readouterr().out
    assert difference in (tmp_path / "mine-timm.md").read_text()
    assert main(["export", weights, "--to", "onnx", "--preprocess", "--image-size", "32"]) == 0
    card = (tmp_path / "mine-onnx.md").read_text()
    assert "features may differ from those of `eqco embed` by 1 % of the largest one" in card


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.pth", "--to", "moco", "--out", "mine.pth"], "mine.pth exists. Pass --overwrite"),
        (["mine.pth", "--to", "moco", "--out", "card.md"], "is the name of the card"),
        (["nowhere", "--to", "onnx"], "there is no nowhere. Give a run directory"),
        ([".", "--to", "onnx"], ". is not a run directory; give one that eqco train has left"),
        (["no", "--to", "moco", "--out", "/proc/a.pth"], "eqco: /proc/a.pth cannot be written"),
        (["mine.pth", "--to", "timm", "--backbone", "resnet50"], "It looks like resnet18"),
        (["random", "--to", "timm", "--backbone", "resnet18"], "random is a baseline"),
    ],
)
def test_export_refuses_without_traceback(weights, arguments, message, capsys):
    assert main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err


def save_photos(folder, count, side=40):
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = random.integers(0, 256, (side, side + number % 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}.jpg")


def test_embed_writes_vectors_of_any_weights(weights, tmp_path, capsys):
    save_photos(tmp_path / "photos", 5)
    (tmp_path / "photos" / "bad.jpg").write_text("no image")
    small = ["--image-size", "32"]
    assert main(["embed", weights, "photos", *small]) == 2
    assert "bad.jpg cannot be read" in capsys.readouterr().err
    assert main(["embed", weights, "photos", *small, "--on-unreadable", "skip"]) == 0
    said = capsys.readouterr().out
    assert "features (5, 512) of mine.pth" in said
    assert "listed in features.unreadable.txt" in said
    assert "bad.jpg\t" in (tmp_path / "features.unreadable.txt").read_text()
    assert np.load("features.npz")["names"].tolist() == [f"{n:04d}.jpg" for n in range(5)]
    pixels = ["embed", "pixels", "groceries", "--image-size", "4", "--out", "pixels.npz"]
    assert main(pixels) == 0
    assert np.load("pixels.npz")["features"].shape[1] == 48


def test_photos_of_names_that_are_not_utf_8_are_listed_as_they_are(weights, tmp_path, capfd):
    save_photos(tmp_path / "photos", 5)
    try:
        Path(os.fsdecode(b"photos/caf\xe9.jpg")).touch()
    except OSError:
        pytest.skip("this file system has names of UTF-8 alone")
    skip = ["photos", "--image-size", "32", "--on-unreadable", "skip"]
    for command, listed in (
        ("embed", Path("features.unreadable.txt")),
        ("index", Path("index", "unreadable.txt")),
    ):
        assert main([command, weights, *skip]) == 0, capfd.readouterr().err
        assert b"caf\xe9.jpg\tthe file is empty\n" in listed.read_bytes()
    assert "jpg: the file is empty" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.pth", "nowhere"], "there is no folder nowhere"),
        (["no", "nowhere", "--out", "/proc/a.npz"], "eqco: /proc/a.npz cannot be written"),
        (
            ["mine.pth", "groceries", "--device", "toaster"],
            "--device toaster is no device; choose cpu",
        ),
        (["mine.pth", "groceries", "--batch-size", "0"], "batch_size=0"),
        (["mine.pth", "groceries", "--out", "a.csv"], "written as .npz"),
    ],
)
def test_embed_refuses_without_traceback(weights, arguments, message, capsys):
    assert main(["embed", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_embed_refuses_several_processes(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["embed", weights, "groceries"]) == 2
    assert "embedding is the work of one. Start it without torchrun" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [weights]


def test_an_embedding_that_was_killed_resumes_to_the_same_file(warm, tmp_path, monkeypatch):
    save_photos(tmp_path / "photos", 1500, side=20)
    monkeypatch.chdir(tmp_path)
    command = ["embed", "random", "photos", "--backbone", "light"]
    assert main([*command, "--out", "whole.npz"]) == 0
    parts, process = tmp_path / "features.npz.parts", warm.start(*command)
    process.until((parts / "000000.npz").exists)
    process.kill()
    assert (parts / "000000.npz").exists()
    assert not (tmp_path / "features.npz").exists()
    assert main(command) == 0
    assert (tmp_path / "features.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
