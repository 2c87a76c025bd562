"""`eqco eval` as a user calls it: tables, files, refusals."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from eqco.assembly import open_weights
from eqco.assembly.comparison import compare_encoder, labelled_splits
from eqco.cli.main import main
from eqco.data import Source, Split, fonts, open_source
from eqco.data.fonts import drawable
from eqco.data.images import MemoryImages
from eqco.encoders import LightEncoder
from eqco.report.evaluation import print_evaluation, write_evaluation
from eqco.runtime.errors import InputError


def save_photos(folder, per_class, classes=("Apple", "Melon"), first=0):
    split = open_source("groceries-coarse")["train"]
    for name in classes:
        label = split.classes.index(name)
        members = (split.labels == label).nonzero()[:, 0][first : first + per_class]
        (folder / name).mkdir(parents=True)
        for number in members.tolist():
            image = split.images.read(number)
            image.resize((32, 32)).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """Weights of an untrained light encoder in a plain file."""
    path = tmp_path_factory.mktemp("weights") / "light.pt"
    torch.manual_seed(3)
    torch.save(LightEncoder().state_dict(), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    save_photos(folder / "train", 12)
    save_photos(folder / "test", 6, first=12)
    return folder


@pytest.mark.parametrize("protocol", ["knn", "probe", "linear"])
def test_every_table_has_pixels_random_weights_and_the_encoder(
    protocol, light, photos, tmp_path, capsys
):
    quick = ["--epochs", "2", "--batch-size", "8"] if protocol == "linear" else []
    arguments = ["eval", str(light), str(photos), "--protocol", protocol, *quick]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    result = json.loads((tmp_path / f"{protocol}.json").read_text())
    names = [row["name"] for row in result["rows"]]
    assert names[:3] == ["raw pixels, 32×32", "random weights, light", "light.pt"]
    assert all(name in text for name in names)
    for row in result["rows"]:
        assert row["top1"]["low"] <= row["top1"]["value"] <= row["top1"]["high"]
    assert sum(map(sum, result["confusion"])) == result["test_images"] == 12
    assert {line["name"] for line in result["classes"]} == {"Apple", "Melon"}
    pictures = [f"{protocol}-{name}.png" for name in ("confusion", "map", "gallery")]
    for name in pictures:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert ("stand-in" in text) == (protocol == "probe")
    assert result["is_the_papers_protocol"] == (protocol == "linear")
    if protocol == "linear":
        last = result["rows"][-1]
        assert last["by"] == "linear"
        assert last["backbone_before"] == last["backbone_after"]
        assert len(last["losses"]) == 2


def test_fine_tuning_stands_beside_the_same_network_untrained(light, photos, tmp_path, capsys):
    quick = ["--epochs", "2", "--batch-size", "4", "--labels", "0.5"]
    arguments = ["eval", str(light), str(photos), "--protocol", "finetune", *quick]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    result = json.loads((tmp_path / "finetune.json").read_text())
    assert [row["name"] for row in result["rows"]] == ["random weights, light", "light.pt"]
    for row in result["rows"]:
        assert (row["by"], row["labelled_images"], len(row["losses"])) == ("fine-tuning", 12, 2)
        assert row["top1"]["low"] <= row["top1"]["value"] <= row["top1"]["high"]
    assert (result["settings"]["label_share"], result["settings"]["epochs"]) == (0.5, 2)
    assert "12 labelled images (50 % of each class)" in " ".join(text.split())
    # both trainings are done, and found so by their checkpoints
    assert (tmp_path / "finetune.pt").exists()
    assert (tmp_path / "finetune-random.pt").exists()
    assert main([*arguments, "--out", str(tmp_path), "--overwrite"]) == 0
    assert json.loads((tmp_path / "finetune.json").read_text())["rows"] == result["rows"]
    capsys.readouterr()
    assert main([*arguments, "--head-layers", "1", "--out", str(tmp_path / "head")]) == 2
    assert "--head-layers 1, but this head has 0 linear layers" in capsys.readouterr().err


def test_a_network_that_bfloat16_cannot_train_is_fine_tuned_in_float32(
    photos, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("timm")
    monkeypatch.setattr("eqco.encoders.precision.has_native_bfloat16", lambda device: True)
    network = ["random", str(photos), "--backbone", "timm:test_resnet", "--image-size", "16"]
    command = ["eval", *network, "--protocol", "finetune", "--epochs", "1", "--out", str(tmp_path)]
    assert main([*command, "--precision", "bfloat16"]) == 2
    assert "16 pixels the convolution 'layer4.0.conv1' of ResNet" in capsys.readouterr().err
    assert main([*command, "--precision", "auto"]) == 0
    result = json.loads((tmp_path / "finetune.json").read_text())
    assert result["settings"]["precision"] == "float32"


def test_bad_input_is_reported_without_traceback(light, photos, tmp_path, capsys):
    save_photos(tmp_path / "other" / "train", 4)
    save_photos(tmp_path / "other" / "test", 3, classes=("Apple", "Pear"))
    save_photos(tmp_path / "one" / "train", 4)
    save_photos(tmp_path / "one" / "test", 2)
    (tmp_path / "flat").mkdir()
    for number, path in enumerate((tmp_path / "other").rglob("*.png")):
        (tmp_path / "flat" / f"{number}.png").write_bytes(path.read_bytes())
    broken = tmp_path / "broken.pt"
    state = LightEncoder().state_dict()
    state["stem.0.weight"] *= float("nan")
    torch.save(state, broken)

    def error_of(*arguments):
        assert main(["eval", *map(str, arguments), "--out", str(tmp_path / "out")]) == 2
        return capsys.readouterr().err

    assert "a class 'Pear' that the training split does not have" in error_of(
        light, tmp_path / "other"
    )
    said = error_of(light, tmp_path / "flat")
    assert "it has train alone" in said
    assert "Give a folder with train/CLASS/… and test/CLASS/…" in said
    assert "NaN" in error_of(broken, photos)
    assert "neighbours=25, but there are 24 reference images" in error_of(
        light, photos, "--neighbours", 25
    )
    assert "batch_size=256, but there are 24" in error_of(light, photos, "--protocol", "linear")
    assert "epochs=0" in error_of(light, photos, "--protocol", "linear", "--epochs", 0)
    assert "--device toaster" in error_of(light, photos, "--device", "toaster")
    assert "split='holdout'" in error_of(light, photos, "--test", "holdout")
    assert "there is no" in error_of(tmp_path / "nowhere", photos)
    assert "is not a run directory" in error_of(tmp_path / "flat", photos)


def test_damaged_images_are_left_out_and_listed_on_request(light, tmp_path, capsys):
    """Of two sizes, so that they stay on disk, and cut off where their headers are whole."""
    save_photos(tmp_path / "photos" / "train", 8)
    save_photos(tmp_path / "photos" / "test", 6, first=12)
    for split in ("train", "test"):
        folder = tmp_path / "photos" / split / "Apple"
        whole = Image.open(min(folder.iterdir())).resize((90, 60))
        whole.save(folder / "0-wide.png")
        damaged = (folder / "0-wide.png").read_bytes()[:4000]
        (folder / "1-cut.png").write_bytes(damaged)
    out = tmp_path / "out"
    command = ["eval", str(light), str(tmp_path / "photos"), "--out", str(out)]
    assert main(command) == 2
    assert "1-cut.png cannot be read" in capsys.readouterr().err
    assert main([*command, "--on-unreadable", "skip"]) == 0
    said = capsys.readouterr().out.replace("\n", "")
    assert f"cannot be read: 2, listed in {out / 'knn.unreadable.txt'}" in said
    names = [line.split("\t")[0] for line in (out / "knn.unreadable.txt").read_text().splitlines()]
    assert [name.rsplit("/photos/")[1] for name in names] == [
        "train/Apple/1-cut.png",
        "test/Apple/1-cut.png",
    ]
    result = json.loads((out / "knn.json").read_text())
    assert (result["train_images"], result["test_images"]) == (17, 13)
    assert result["settings"]["unreadable"] == 2
    for name in names:
        Path(name).unlink()
    assert main([*command, "--overwrite"]) == 0
    assert not (out / "knn.unreadable.txt").exists()


def test_a_place_that_cannot_be_written_is_reported_before_any_work(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["eval", "no-weights", "no-data", "--out", str(tmp_path / "file")]) == 2
    assert "knn.json cannot be written (Not a directory)" in capsys.readouterr().err


def test_a_result_is_replaced_only_on_request(photos, tmp_path, capsys):
    (tmp_path / "knn.json").write_text("mine")
    arguments = ["eval", "pixels", str(photos), "--out", str(tmp_path)]
    assert main(arguments) == 2
    assert "knn.json exists. Pass --overwrite to replace it" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["knn.json"]
    assert (tmp_path / "knn.json").read_text() == "mine"
    assert main([*arguments, "--protocol", "probe"]) == 0
    assert (tmp_path / "knn.json").read_text() == "mine"
    assert main([*arguments, "--overwrite"]) == 0
    assert json.loads((tmp_path / "knn.json").read_text())["protocol"] == "knn"


def test_several_processes_are_refused(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["eval", "pixels", str(photos), "--out", str(tmp_path / "out")]) == 2
    assert "an evaluation is the work of one. Start it without torchrun" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_images_without_labels_are_refused(light, tmp_path, capsys):
    save_photos(tmp_path / "train", 4)
    (tmp_path / "test").mkdir()
    photo = next((tmp_path / "train").rglob("*.png")).read_bytes()
    (tmp_path / "test" / "a.png").write_bytes(photo)
    assert main(["eval", str(light), str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "'test'" in (message := capsys.readouterr().err)
    assert "has no labels" in message
    assert "test/CLASS/…" in message


def test_test_images_without_labels_give_way_to_those_of_val():
    pixels = MemoryImages(torch.zeros(4, 3, 8, 8, dtype=torch.uint8))
    labelled = Split("train", pixels, torch.tensor([0, 1, 0, 1]), ("red", "green"))
    splits = {"train": labelled, "val": replace(labelled, name="val")}
    splits["test"] = replace(labelled, name="test", labels=None)
    assert labelled_splits(Source("photos", splits), None)[1].name == "val"
    with pytest.raises(InputError, match="'test' has no labels"):
        labelled_splits(Source("photos", splits), "test")


def test_a_class_without_training_images_is_reported_by_its_name():
    source = open_source("groceries-coarse")
    train = source["train"]
    others = (train.labels != train.classes.index("Pear")).nonzero()[:, 0].tolist()
    few = Source("few", {"train": train.subset(others), "test": source["test"]})
    with pytest.raises(InputError, match=r"no image of \(Pear\)"):
        compare_encoder(open_weights("pixels", image_size=4), few)


def test_a_missing_row_of_random_weights_is_reported_with_its_reason(light, photos, tmp_path):
    data = open_source(str(photos))
    own = open_weights(light, backbone=LightEncoder())
    console = Console(file=io.StringIO(), width=400)
    found = compare_encoder(own, data)
    print_evaluation(console, found)
    assert not any("random" in row.name for row in found.rows)
    reason = f"no row of random weights: {light} is not a network by name"
    assert reason in console.file.getvalue()
    write_evaluation(found, tmp_path, {})
    assert reason in json.loads((tmp_path / "knn.json").read_text())["left_out"]
    assert compare_encoder(open_weights(light), data).left_out == ""


def test_one_test_image_is_refused_before_anything_is_computed(light):
    source = open_source("groceries")
    few = Source("few", {"train": source["train"], "test": source["test"].subset([0])})
    with pytest.raises(InputError, match="1 test image; an accuracy with an interval needs"):
        compare_encoder(open_weights(light), few)


def train_briefly(folder, out, *arguments):
    settings = ["--profile", "smoke", "--training.num-queries", "8", "--method.count", "3"]
    assert main(["train", str(folder), "--out", str(out), *settings, *arguments]) == 0


def test_a_run_is_tested_on_its_own_data_by_default(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_briefly(photos, "run")
    capsys.readouterr()
    assert main(["eval", "run"]) == 0
    file = Path("run/evaluation/knn.json")
    result = json.loads(file.read_text())
    assert (result["data"], result["test_images"]) == (str(photos), 12)
    assert result["weights"] == "run"
    said = "".join(capsys.readouterr().out.split())
    assert "nottrainedtoitsend" not in said
    assert f"written:{file}" in said
    assert main(["eval", "run"]) == 0, "a second one leaves the first as it is"
    assert json.loads(Path("run/evaluation-2/knn.json").read_text()) == result
    assert main(["eval", "run", "--overwrite"]) == 0
    assert sorted(path.name for path in Path("run").glob("evaluation*")) == [
        "evaluation",
        "evaluation-2",
    ]


def test_a_run_on_its_own_data_leaves_out_what_its_training_has(
    photos, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos, "photos")
    for place in ("train/Apple/0.png", "test/Apple/0.png"):
        Path("photos", place).write_text("words")
    train_briefly("photos", "run", "--data.on-unreadable", "skip")
    assert "left out, since they cannot be read: 2, listed in run/" in capsys.readouterr().out
    assert main(["eval", "run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "left out, as in the training of run (--on-unreadable error stops at them)" in said
    assert len(Path("run/evaluation/knn.unreadable.txt").read_text().splitlines()) == 2
    for command in (["run", "--on-unreadable", "error"], ["run", "photos/train"]):
        assert main(["eval", *command, "--out", "other"]) == 2
        assert "0.png cannot be read" in capsys.readouterr().err


def test_an_unfinished_run_is_named_with_its_step(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_briefly(photos, "run", "--training.epochs", "2", "--training.keep-every", "1")
    capsys.readouterr()
    assert main(["eval", "run/checkpoints/step-00000003.pt"]) == 0
    assert "is not trained to its end: step 3 of 6" in " ".join(capsys.readouterr().out.split())
    result = json.loads(Path("run/evaluation/knn.json").read_text())
    assert result["rows"][-1]["name"] == "step-00000003.pt (step 3 of 6)"


def test_training_and_exporting_name_the_step_of_an_unfinished_run(
    photos, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    train_briefly(photos, "run", "--training.epochs", "2", "--training.keep-every", "1")
    shutil.copytree("run", "half")
    shutil.copy("run/checkpoints/step-00000003.pt", "half/checkpoints/last.pt")
    for run, step in (("half", "half is not trained to its end: step 3 of 6\n"), ("run", "")):
        capsys.readouterr()
        for command in (
            ["train", "--extend", run, "--training.epochs", "1"],
            ["train", str(photos), "--init", run, "--minutes", "0.01", "--out", f"from-{run}"],
            ["export", run, "--to", "safetensors"],
        ):
            assert main(command) == 0
            said = capsys.readouterr().out
            assert step in said
            assert ("not trained to its end" in said) == bool(step)


def test_weights_without_data_of_their_own_need_some(light, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(light)]) == 2
    assert "is no run directory, so that there are no images of its own" in capsys.readouterr().err
    shutil.copytree(photos, "photos")
    train_briefly("photos", "run", "--unlabelled")
    capsys.readouterr()
    assert main(["eval", "run"]) == 0
    assert "those it is tested on were among them" in " ".join(capsys.readouterr().out.split())
    Path("photos").rename("moved")
    assert main(["eval", "run", "--overwrite"]) == 2
    assert "photos, which is not there any more. Say what to test" in capsys.readouterr().err


def test_names_that_no_font_here_has_are_drawn_by_their_numbers(light, tmp_path, recwarn):
    save_photos(tmp_path / "photos", 10)
    (tmp_path / "photos" / "Apple").rename(tmp_path / "photos" / "苹果")
    (tmp_path / "photos" / "Melon").rename(tmp_path / "photos" / "Мед")
    out = ["--out", str(tmp_path / "out")]
    assert main(["eval", str(light), str(tmp_path / "photos"), *out]) == 0
    assert not [each for each in recwarn if "Glyph" in str(each.message)]
    result = json.loads((tmp_path / "out" / "knn.json").read_text())
    assert {line["name"] for line in result["classes"]} == {"苹果", "Мед"}
    assert drawable("Мед", ["DejaVu Sans"]) == "Мед"
    assert drawable("苹果 1", ["DejaVu Sans"]) == "\\u82f9\\u679c 1"


def test_where_no_font_has_chinese_names_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(fonts, "font_families", lambda: ["DejaVu Sans"])
    fonts.hint_at_fonts.cache_clear()
    for name in ("苹果", "梨", "Äpfel"):
        fonts.drawable(name)
    said = capsys.readouterr().err
    assert said.count("fonts-noto-cjk") == 1
