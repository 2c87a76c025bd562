"""`eqco transfer detection` as a user calls it."""

from pathlib import Path

import pytest
from PIL import Image

from eqco.cli.main import main
from eqco.evaluation.detection import write_squares

TINY = [
    *("--profile", "desk", "--epochs", "2", "--drops", "1", "--num-images", "2"),
    *("--warmup-steps", "1", "--sides", "64", "--channels", "16", "--proposals", "20"),
    *("--sampled-boxes", "8", "--precise-images", "4", "--device", "cpu"),
]


@pytest.fixture
def squares(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return str(write_squares(tmp_path / "squares", images={"train": 4, "val": 2}, side=64))


def test_a_detector_is_trained_tested_and_drawn_and_tested_again(squares, capsys):
    command = ["transfer", "detection", "random", squares, "--backbone", "resnet18", *TINY]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "AP50" in said
    assert "square" in said
    with Image.open("runs/detection/detections.png") as picture:
        assert picture.width > 300
    assert main(command) == 2
    assert "--resume runs/detection" in capsys.readouterr().err
    Path(squares).rename("moved")
    assert main(["transfer", "detection", "--resume", "runs/detection"]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["transfer", "detection", "moved", "--resume", "runs/detection"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == said.splitlines()[-3:]


def test_a_resumed_run_keeps_its_settings(capsys):
    code = main(["transfer", "detection", "--resume", "runs/detection", "--epochs", "3"])
    assert code == 2
    assert "--epochs was given beside --resume" in capsys.readouterr().err


def test_missing_and_superfluous_words_are_told(squares, capsys):
    assert main(["transfer", "detection"]) == 2
    assert "give WEIGHTS and DATA" in capsys.readouterr().err
    assert main(["transfer", "detection", "random", squares, "--resume", "runs/detection"]) == 2
    assert "which knows its weights" in capsys.readouterr().err
    assert main(["transfer", "detection", "runs/none", squares]) == 2
    assert "there is no runs/none" in capsys.readouterr().err
