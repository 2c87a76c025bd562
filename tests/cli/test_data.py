"""`eqco data` and `eqco views` on the embedded set and on folders."""

import numpy as np
import pytest
from PIL import Image

from eqco.cli.main import main


@pytest.fixture
def photos(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 30, 20, 3), dtype=np.uint8)
    for name, images in zip("ab", pixels, strict=True):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_data_describes_the_embedded_set(tmp_path, capsys):
    sheet = tmp_path / "sheet.png"
    assert main(["data", "--sheet", str(sheet)]) == 0
    text = capsys.readouterr().out
    for words in ("675", "661", "Anjou", "64 x 64 (1,393)", "unreadable: 0"):
        assert words in text
    assert np.asarray(Image.open(sheet)).shape[1] > 600


def test_data_lists_what_cannot_be_read(photos, tmp_path, capsys):
    (photos / "a" / "bad.jpg").write_text("words")
    (photos / "b" / "notes.txt").write_text("words")
    assert main(["data", str(photos), "--sheet", str(tmp_path / "sheet.png")]) == 0
    text = capsys.readouterr().out
    assert "unreadable: 1" in text
    assert "its content is not that of an image" in text.replace("\n", " ")
    assert "ignored by their names: 1 .txt" in text


def test_views_draws_originals_and_views(photos, tmp_path):
    out = tmp_path / "views.png"
    options = ["--images", "3", "--views", "4", "--size", "32", "--pipeline", "simclr"]
    assert main(["views", str(photos), *options, "--out", str(out)]) == 0
    first = np.asarray(Image.open(out))
    assert first.shape[0] > 3 * 64
    assert first.shape[1] > 5 * 64
    assert main(["views", str(photos), *options, "--out", str(out), "--overwrite"]) == 0
    assert np.array_equal(first, np.asarray(Image.open(out)))


def test_views_of_different_sizes_are_read_from_disk(photos, tmp_path):
    Image.new("RGB", (300, 200), (250, 0, 0)).save(photos / "a" / "large.png")
    out = tmp_path / "views.png"
    assert main(["views", str(photos), "--images", "2", "--out", str(out)]) == 0
    assert out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["data", "nowhere"], "'nowhere' is neither a folder that exists nor a data set by name"),
        (["views", "--images", "700"], "images=700, but the split 'train' has 675 images"),
        (["views", "--size", "0"], "size=0; a view needs at least 2 pixels a side"),
        (["views", "--pipeline", "sepia"], "pipeline='sepia'; there are mocov1"),
        (["views", "--split", "tests"], "split='tests', but groceries has train, val, test"),
        (["views", "--views", "0"], "views=0; draw at least 1"),
    ],
)
def test_what_cannot_be_done_is_answered_with_what_can(
    options, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("command", "option"), [("data", "--sheet"), ("views", "--out")])
def test_a_picture_is_replaced_only_on_request(command, option, tmp_path, capsys):
    picture = tmp_path / "a.png"
    picture.write_text("mine")
    assert main([command, option, str(picture)]) == 2
    assert f"Pass --overwrite to replace it, or choose another {option}" in capsys.readouterr().err
    assert picture.read_text() == "mine"
    assert main([command, option, str(picture), "--overwrite"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
