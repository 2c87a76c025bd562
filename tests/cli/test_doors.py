"""The examples about data, the Hub and loggers, run as they stand in the documents."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eqco.cli.main import main
from eqco.cli.train import parse

DOCS = Path(__file__).parents[2] / "docs"


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)


def commands(document, section):
    """The lines of one of a document's code blocks, less their comments."""
    lines = blocks(document, "bash")[section].splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def picture(number):
    pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(40):
        picture(number).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path


def test_the_examples_of_data_run(photos, capsys):
    datasets, webdataset = (pytest.importorskip(name) for name in ("datasets", "webdataset"))
    lines = [f"photos/{number}.png,{('cat', 'dog')[number % 2]}" for number in range(40)]
    Path("list.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    Path("shards").mkdir()
    for name in ("train", "valid"):
        pattern = f"shards/{name}-%04d.tar"
        with webdataset.ShardWriter(pattern, maxcount=20, verbose=0) as writer:
            for number in range(40):
                content = Path(f"photos/{number}.png").read_bytes()
                writer.write({"__key__": str(number), "png": content, "cls": number % 2})
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    values = {"image": [picture(n) for n in range(40)], "label": [n % 2 for n in range(40)]}
    table = datasets.Dataset.from_dict(values, features=datasets.Features(features))
    table.save_to_disk("saved")
    for name, *arguments in (line[1:] for line in commands("data.md", 0)):
        assert main([name, *arguments]) == 0
    said = capsys.readouterr().out
    assert "shards named valid are taken as the split val" in said
    assert "one split with classes (all): divided into train, val and test" in said
    assert all(Path(f"{name}.png").exists() for name in ("list", "shards", "saved"))
    assert Path("runs/shards/index.npz").exists()


def test_the_examples_of_sharing_run(photos, capsys):
    train = ["train", "photos", "--profile", "smoke", "--encoder.backbone", "timm:resnet10t"]
    assert main([*train, "--data.image-size", "32", "--out", "runs/photos"]) == 0
    (export,) = commands("sharing.md", 0)
    assert main(export[1:]) == 0
    (block,) = blocks("sharing.md", "python")
    exec(compile(block, "sharing.md", "exec"), {})
    (logged,) = commands("sharing.md", 1)
    assert main([*logged[1:], "--out", "runs/logged"]) == 0
    assert Path("runs/logged/metrics.csv").read_text().startswith("step,")
    assert Path("runs/logged/tensorboard").is_dir()


def test_loggers_are_understood_as_the_examples_give_them():
    loggers = [
        parse(line[line.index("train") + 1 :]).training.logger for line in commands("sharing.md", 2)
    ]
    assert loggers == [("tensorboard", "wandb"), ("mlflow",)]
