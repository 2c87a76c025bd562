"""A folder for the Hugging Face Hub: what timm and huggingface_hub open, and `eqco.load`."""

import inspect
import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import eqco
from eqco.assembly import load, open_weights, push_to_hub, train
from eqco.cli.main import main
from eqco.data import source_from_dataset
from eqco.encoders import resnet
from eqco.recipes import named_recipe
from eqco.runtime.errors import InputError, MissingExtraError
from eqco.runtime.run_directory import write_json

timm = pytest.importorskip("timm")
huggingface_hub = pytest.importorskip("huggingface_hub")
filter_repo_objects = huggingface_hub.utils.filter_repo_objects
VALIDATION = {
    "images": 57,
    "of": "val",
    "rows": [
        {
            "name": name,
            "knn": {"value": value, "low": value - 0.1, "high": value + 0.1},
            "probe": {"value": value + 0.05, "low": value, "high": value + 0.1},
        }
        for name, value in (("raw pixels, 16×16", 0.4), ("run", 0.5))
    ],
}


def trained(place, backbone, name="simo"):
    recipe = named_recipe(name, "smoke")
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=32),
        encoder=replace(recipe.encoder, backbone=backbone),
        method=replace(recipe.method, count=3),
        training=replace(recipe.training, num_queries=4),
    )
    pixels = torch.randint(0, 256, (8, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    train(source_from_dataset(pixels.to(torch.uint8)), recipe, out=place)
    write_json(place / "validation.json", VALIDATION)
    return place


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    names = {"timm:resnet10t": "convolutions", "timm:test_vit": "transformer", "light": "light"}
    runs = {name: trained(place / name, backbone) for backbone, name in names.items()}
    return {**runs, "two networks": trained(place / "two", "light", "cmc")}


def export(run, folder, *more):
    assert main(["export", str(run), "--to", "hub", "--out", str(folder), *more]) == 0
    return folder


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ["convolutions", "transformer"])
def test_timm_and_huggingface_hub_build_the_same_network(name, runs, tmp_path, capsys):
    folder = export(runs[name], tmp_path / "mine")
    ours = open_weights(runs[name])
    images = torch.randn(2, 3, 32, 32)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(model(images), ours.backbone(images))
    config = timm.data.resolve_model_data_config(model)
    assert tuple(config["input_size"]) == (3, 32, 32)
    assert config["mean"] == pytest.approx((0.485, 0.456, 0.406))
    classifier = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=5)
    assert classifier(images).shape == (2, 5)
    size = {"img_size": 32} if name == "transformer" else {}
    bare = timm.create_model(ours.architecture.name.removeprefix("timm:"), num_classes=0, **size)
    huggingface_hub.load_torch_model(bare, folder, strict=True)
    assert torch.equal(bare.eval()(images), ours.backbone(images))
    assert f'timm.create_model("local-dir:{folder}", pretrained=True)' in capsys.readouterr().out


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ["convolutions", "light", "two networks"])
def test_load_gives_the_encoder_of_the_run_with_its_head(name, runs, tmp_path):
    folder = export(runs[name], tmp_path / "mine")
    ours, theirs = load(f"hf:{folder}"), load(runs[name])
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours(images), theirs(images))
    photo = torch.zeros(3, 40, 50, dtype=torch.uint8)
    assert torch.equal(ours.embed(photo), theirs.embed(photo))
    weights = open_weights(f"hf:{folder}")
    assert (weights.image_size, weights.name) == (32, f"hf:{folder}")
    assert torch.equal(weights.backbone(images), theirs.features(images))


@pytest.mark.end_to_end
def test_the_card_is_one_that_the_hub_reads_with_the_measured_table(runs, tmp_path):
    folder = export(runs["convolutions"], tmp_path / "mine")
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "timm"
    assert card.data.pipeline_tag == "image-feature-extraction"
    assert {"timm", "contrastive-learning", "eqco"} <= set(card.data.tags)
    assert "| run | 50.0 % (40.0 to 60.0) | 55.0 % (50.0 to 60.0) |" in card.text
    assert "Accuracy on 57 validation images (val), not test images" in card.text
    light = export(runs["light"], tmp_path / "light")
    assert huggingface_hub.ModelCard.load(light / "README.md").data.library_name == "eqco"
    assert json.loads((light / "config.json").read_text())["architecture"] == "light"
    assert "timm" not in (light / "README.md").read_text()


@pytest.mark.end_to_end
def test_a_repository_is_found_where_huggingface_hub_keeps_it(runs, tmp_path, monkeypatch):
    """As it lies in the cache after a download; nothing is fetched."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "cache" / "models--me--mine"
    commit = "0" * 40
    export(runs["light"], place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(load("hf:me/mine")(images), load(runs["light"])(images))
    with pytest.raises(InputError, match=r"hf:me/none is no folder .* Go online, or copy its"):
        load("hf:me/none")
    with pytest.raises(InputError, match="as a repository of the Hub it cannot be had"):
        open_weights("hf:not/a/name")


@pytest.mark.end_to_end
def test_a_hub_that_does_not_answer_is_an_error_in_words(runs, tmp_path, monkeypatch):
    """An address of this machine where nothing listens: the client's own error, in one sentence."""
    folder = export(runs["light"], tmp_path / "mine")
    nobody = partial(huggingface_hub.HfApi, endpoint="http://127.0.0.1:9", token="none")
    monkeypatch.setattr(huggingface_hub, "HfApi", nobody)
    with pytest.raises(InputError, match=r"could not be uploaded to me/mine: .* Go online, log in"):
        push_to_hub(folder, "me/mine")


@pytest.mark.end_to_end
def test_what_is_pushed_is_what_is_loaded(runs, tmp_path, monkeypatch, capsys):
    """The two calls of huggingface_hub, with its own signatures, against a folder."""
    calls = []

    def create_repo(self, *arguments, **options):
        bound = inspect.signature(real_create).bind(self, *arguments, **options).arguments
        calls.append(bound)
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{bound['repo_id']}")

    def upload_folder(self, **options):
        bound = inspect.signature(real_upload).bind(self, **options).arguments
        folder = Path(bound["folder_path"])
        files = [str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()]
        for name in filter_repo_objects(files, allow_patterns=bound["allow_patterns"]):
            file = tmp_path / "hub" / bound["repo_id"] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / name, file)

    real_create, real_upload = (
        getattr(huggingface_hub.HfApi, name) for name in ("create_repo", "upload_folder")
    )
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("mine")
    export(runs["light"], tmp_path / "mine", "--push", "me/mine", "--private", "--overwrite")
    assert "uploaded to https://huggingface.co/me/mine" in capsys.readouterr().out
    assert calls[0]["private"] is True
    images = torch.randn(2, 3, 32, 32)
    pushed = load(f"hf:{tmp_path / 'hub' / 'me' / 'mine'}")
    assert not (tmp_path / "hub" / "me" / "mine" / "letter.txt").exists()
    assert (tmp_path / "hub" / "me" / "mine" / "README.md").exists()
    assert torch.equal(pushed(images), load(runs["light"])(images))


def test_no_head_of_another_run_stays_beside_a_backbone(tmp_path):
    torch.save(resnet(18).state_dict(), tmp_path / "mine.pth")
    folder = tmp_path / "mine"
    (folder / "eqco").mkdir(parents=True)
    (folder / "eqco" / "head.safetensors").write_text("of another run")
    (folder / "letter.txt").write_text("mine")
    export(tmp_path / "mine.pth", folder, "--image-size", "64", "--overwrite")
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert files == {"README.md", "config.json", "letter.txt", "model.safetensors"}


def test_what_cannot_be_written_loaded_or_pushed_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save(resnet(18).state_dict(), "mine.pth")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("words")
    for arguments, message in (
        (["--out", "full"], "full holds files. Pass --overwrite"),
        (["--out", "mine.pth"], "--out mine.pth is a file; give the name of a folder"),
        (["--to", "moco", "--push", "me/mine"], "--push me/mine with --to moco"),
    ):
        assert main(["export", "mine.pth", "--to", "hub", *arguments]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(InputError, match=r"hf:full has no model\.safetensors"):
        load("hf:full")
    with pytest.raises(InputError, match=r"hf:full has no model\.safetensors"):
        push_to_hub("full", "me/mine")
    export("mine.pth", "backbone", "--image-size", "64")
    with pytest.raises(InputError, match=r"a backbone alone.*open_weights\('hf:backbone'\)"):
        eqco.load("hf:backbone")
    assert eqco.open_weights("hf:backbone").image_size == 64
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"backbone could not be uploaded to me/mine: .*Go online"):
        push_to_hub("backbone", "me/mine")


def test_without_huggingface_hub_the_install_line_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[hub\]"'):
        load("hf:me/mine")
