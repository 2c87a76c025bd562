"""`eqco transfer detection` as a user calls it."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from eqco.cli.main import main
from eqco.cli.transfer import parse, settings_of
from eqco.detection import write_squares
from eqco.detection.settings import learning_rate_at
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.run_directory import RunDirectory

SMALL = [
    *("--num-images", "2", "--sides", "64", "--channels", "16", "--proposals", "20"),
    *("--sampled-boxes", "8", "--precise-images", "4", "--device", "cpu"),
]
TINY = ["--profile", "desk", "--epochs", "2", "--drops", "1", "--warmup-steps", "1", *SMALL]


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


def test_epochs_alone_shorten_a_profile_to_any_data_and_say_so(squares, capsys):
    command = ["transfer", "detection", "random", squares, "--backbone", "resnet18", *SMALL]
    assert main([*command, "--profile", "desk", "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    # 4 images, 2 in a step: half of the 2 steps
    assert "--epochs 1 (was 6), so drops=() (was (4, 5)) and warmup_steps=1 (was 50)" in said
    used = json.loads(Path("runs/detection/recipe.json").read_text())["detection"]
    assert (used["epochs"], used["drops"], used["warmup_steps"]) == (1, [], 1)


@pytest.mark.parametrize(
    ("given", "drops", "warmup_steps"),
    [
        (["--epochs", "3"], (2,), 25),
        (["--epochs=3", "--warmup_steps", "7"], (2,), 7),
        (["--epochs", "3", "--drops", "1"], (1,), 25),
        (["--epochs", "6"], (4, 5), 50),
        (["--drops", "1", "--warmup-steps=0"], (1,), 0),
    ],
)
def test_drops_and_warmup_follow_the_epochs_unless_they_are_given(given, drops, warmup_steps):
    options = parse(["detection", "random", "data", "--profile", "desk", *given])
    settings = settings_of(options)
    assert (settings.drops, settings.warmup_steps) == (drops, warmup_steps)


def test_a_warmup_that_was_given_is_not_made_to_fit(squares, capsys):
    command = ["transfer", "detection", "random", squares, "--backbone", "resnet18", *SMALL]
    assert main([*command, "--profile", "desk", "--epochs", "1", "--warmup-steps", "9"]) == 2
    assert "warmup_steps=9 in a training of total_steps=2" in capsys.readouterr().err


def test_usage_names_the_task_and_a_missing_task_is_an_error(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for words in (["detection", "--help"], ["--help"]):
        with pytest.raises(SystemExit):
            main(["transfer", *words])
        said = capsys.readouterr().out
        assert said.startswith("usage: eqco transfer detection [-h] [OPTIONS] WEIGHTS DATA")
    assert main(["transfer", "runs/simo", "coco"]) == 2
    message = "eqco transfer runs/simo: to what? The first word is what to transfer to"
    assert message in capsys.readouterr().err
    assert main(["transfer"]) == 2
    assert "eqco transfer detection WEIGHTS DATA" in capsys.readouterr().err


def test_without_pycocotools_no_process_is_started(squares, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.cocoeval", None)
    monkeypatch.setattr("eqco.cli.launch.launch", lambda *words, **how: pytest.fail("started"))
    assert main(["transfer", "detection", "random", squares, "--processes", "2"]) == 2
    assert 'pip install ".[detection]"' in capsys.readouterr().err


def test_a_job_that_is_started_again_resumes_and_another_is_refused(squares, capsys, monkeypatch):
    command = ["transfer", "detection", "random", squares, "--backbone", "resnet18", *TINY]

    def lost_at_the_last_step(settings, steps_per_epoch, step):
        if step == 3:
            raise KeyboardInterrupt
        return learning_rate_at(settings, steps_per_epoch, step)

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    with monkeypatch.context() as patched:
        patched.setattr("eqco.detection.fine_tuning.learning_rate_at", lost_at_the_last_step)
        assert main(command) == 130
    last = RunDirectory(Path("runs/detection")).last
    assert read_checkpoint(last)["step"] == 2  # of 4
    capsys.readouterr()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "other")
    assert main(command) == 2
    assert "holds a run already" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "started again after a process was lost: resuming runs/detection" in said
    assert read_checkpoint(last)["step"] == 4


def test_restarts_are_for_several_processes(squares, capsys, monkeypatch):
    command = ["transfer", "detection", "random", squares, "--restarts", "3"]
    assert main(command) == 2
    assert "--restarts 3 without --processes" in capsys.readouterr().err
    calls = []
    monkeypatch.setattr("eqco.cli.launch.launch", lambda words, **how: calls.append((words, how)))
    assert main([*command, "--processes", "2"]) == 0
    assert calls == [
        (["transfer", "detection", "random", squares], {"count": 2, "restarts": 3}),
    ]


def test_a_resumed_run_keeps_its_settings(capsys):
    code = main(["transfer", "detection", "--resume", "runs/detection", "--epochs", "3"])
    assert code == 2
    assert "--epochs was given beside --resume" in capsys.readouterr().err


def test_missing_and_superfluous_words_are_reported(squares, capsys):
    assert main(["transfer", "detection"]) == 2
    assert "give WEIGHTS and DATA" in capsys.readouterr().err
    assert main(["transfer", "detection", "random", squares, "--resume", "runs/detection"]) == 2
    assert "which knows its weights" in capsys.readouterr().err
    assert main(["transfer", "detection", "runs/none", squares]) == 2
    assert "there is no runs/none" in capsys.readouterr().err
