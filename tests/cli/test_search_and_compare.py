"""`eqco index`, `eqco search` and `eqco compare`, as their pages have them."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from photos import save_photos, train_shortly
from PIL import Image

from eqco.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"


def blocks(language, page):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def commands(page):
    lines = "\n".join(blocks("bash", page)).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("eqco ")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photos, a run on them, and two more that differ in α."""
    here = tmp_path_factory.mktemp("place")
    photos = save_photos(here / "photos", 32)
    shutil.copy(photos / "0003.jpg", photos / "again.jpg")
    save_photos(here / "new", 2)
    (here / "new" / "0000.jpg").rename(here / "new" / "a.jpg")
    (here / "new" / "0001.jpg").rename(here / "new" / "b.jpg")
    train_shortly(photos, here / "runs" / "photos")
    train_shortly(photos, here / "runs" / "plain", epochs=2)
    train_shortly(photos, here / "runs" / "eqco", epochs=2, alpha=256.0)
    return here


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Lines are not folded."""
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """A copy of it, and in it."""
    shutil.copytree(place, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def test_the_commands_about_similar_photos_do_what_they_say(here, capsys):
    for command in commands("similar_photos.md"):
        assert main(command) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "written: index: 33 photos" in said
    assert re.search(r"0003\.jpg +1\.0000\n *again\.jpg +1\.0000", said)
    for name in ("similar-0003.png", "new.png", "duplicates.png"):
        with Image.open(name) as sheet:
            assert sheet.width > 200


def test_the_python_about_similar_photos_runs(here, capsys):
    names = {}
    for block in blocks("python", "similar_photos.md"):
        exec(compile(block, "similar_photos.md", "exec"), names)
    assert "1.000  0003.jpg" in capsys.readouterr().out


def test_the_page_about_runs_does_what_it_says(here, capsys):
    for block in blocks("python", "comparing_runs.md"):
        exec(compile(block, "comparing_runs.md", "exec"), {})
    for command in commands("comparing_runs.md"):
        assert main(command) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert re.search(r"objective\.alpha +None +256\.0", said)
    assert "Losses are not comparable: they are of different α (None, 256)." in said
    assert re.search(r"images/s +\d", said)
    assert (here / "comparison.png").stat().st_size > 10_000


def test_photos_that_are_gone_are_named(here, capsys):
    assert main(["index", "runs/photos", "photos"]) == 0
    (here / "photos" / "again.jpg").unlink()
    assert main(["search", "index", "photos/0003.jpg", "--count", "2"]) == 0
    said = capsys.readouterr().err
    assert f"not there any more: {here / 'photos' / 'again.jpg'}" in said
    assert "give --folder if they were moved" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "photos", "photos/0003.jpg"], "photos holds no index. Make one with"),
        (["search", "photos"], "give a photo to search for, or --duplicates"),
        (["search", "photos", "a.jpg", "--duplicates"], "one of the two"),
        (["search", "photos", "a.jpg", "--at-least", "0.9"], "belongs to --duplicates"),
        (["index", "nowhere", "photos"], "there is no nowhere. Give a run directory"),
        (["index", "runs/photos", "nowhere"], "there is no folder nowhere"),
        (["compare", "runs/plain"], "1 run given; name two or more"),
        (["compare", "runs/plain", "photos"], "photos is not a run directory"),
        (["compare", "runs/plain", "runs/eqco", "--out", "a"], "call it a.png"),
    ],
)
def test_what_cannot_be_done_is_refused_without_traceback(
    arguments, message, place, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_what_is_not_there_is_named_before_a_sheet_that_is(here, capsys):
    assert main(["index", "runs/photos", "photos/"]) == 0
    (here / "similar-gone.png").touch()
    assert main(["search", "index", "gone.jpg"]) == 2
    assert "gone.jpg is no file" in capsys.readouterr().err
    assert main(["search", "nowhere", "gone.jpg"]) == 2
    assert "nowhere" in capsys.readouterr().err
