"""The demo tells its story from an empty folder; a second call repeats nothing."""

import re

from eqco.cli.main import main


def test_the_demo_leaves_tables_plots_and_encoders(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--profile", "smoke"]) == 0
    text = capsys.readouterr().out
    assert "max/min" in text
    for row in ("raw pixels", "random weights", "InfoNCE", "EqCo, α=256"):
        assert re.search(rf"{row} +[\d.]+ \[[\d.]+–[\d.]+\]", text), f"{row} with its interval"
    assert re.search(r"EqCo less InfoNCE in this seed: [+−][\d.]+ points", text)
    for way in ("the encoder", "colours alone"):
        assert re.search(rf"{way}: of the 10 nearest, \d+% are", text)
    assert "eqco train photos/" in text.split("Where to go next")[1]
    assert {path.name for path in (tmp_path / "demo").iterdir()} >= {
        "rule.png",
        "demo-smoke.png",
        "gallery.png",
        "gallery-colours.png",
        "runs",
        "records",
    }
    stamps = {path: path.stat().st_mtime for path in (tmp_path / "demo").rglob("*.json")}
    assert main(["demo", "--profile", "smoke"]) == 0
    again = {path: path.stat().st_mtime for path in (tmp_path / "demo").rglob("*.json")}
    assert again == stamps


def test_an_unknown_profile_is_refused(capsys, tmp_path):
    assert main(["demo", "--profile", "big", "--out", str(tmp_path)]) == 2
    assert "no profile 'big'" in capsys.readouterr().err


def test_a_file_in_place_of_its_folder_is_refused(capsys, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    assert main(["demo", "--profile", "smoke", "--out", str(file)]) == 2
    assert f"--out {file} is a file; give the name of a folder." in capsys.readouterr().err
