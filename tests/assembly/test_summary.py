"""What a loaded encoder shows of itself."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import pytest
from PIL import Image

import eqco
from eqco.runtime.run_directory import write_json

ROW = {"value": 0.5, "low": 0.4, "high": 0.6}


@pytest.fixture
def assessed(light_run, tmp_path):
    """A run as `eqco train` leaves it, in a folder whose name wants to be HTML."""
    place = tmp_path / "<script>x&y"
    shutil.copytree(light_run, place)
    rows = [{"name": f"<b>{place.name}", "knn": ROW, "probe": ROW}]
    write_json(place / "validation.json", {"images": 10, "of": "val", "rows": rows})
    Image.new("RGB", (30, 20), "red").save(place / "neighbours.png")
    return place


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.words = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.words.append(data)


def read(html):
    reader = Reader()
    reader.feed(html)
    return reader


def test_a_notebook_shows_recipe_curve_accuracy_and_neighbours(assessed):
    html = eqco.load(assessed)._repr_html_()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    curve, neighbours = (Image.open(io.BytesIO(base64.b64decode(each))) for each in pictures)
    assert neighbours.size == (30, 20)
    assert curve.width > 200
    assert "50.0 (40.0–60.0)" in html
    assert "objective.temperature" in html
    assert "http" not in html  # nothing is fetched


def test_all_words_are_escaped(assessed):
    reader = read(eqco.load(assessed)._repr_html_())
    assert not {"script", "x"} & set(reader.tags)
    assert str(assessed) in reader.words
    assert f"<b>{assessed.name}" in reader.words


def test_a_run_without_accuracies_shows_what_it_has(light_run):
    encoder = eqco.load(light_run)
    reader = read(encoder._repr_html_())
    assert reader.tags.count("img") == 1  # the curve
    assert "kNN, %" not in reader.words
    text = repr(encoder)
    assert text.startswith(f"LoadedEncoder({str(light_run)!r})")
    assert "light at 32 pixels" in text
    assert "simo, N = 64" in text


def test_a_checkpoint_that_left_its_run_is_shown_too(light_run, tmp_path):
    file = shutil.copy(light_run / "checkpoints" / "last.pt", tmp_path / "mine.pt")
    encoder = eqco.load(file)
    assert "light at 32 pixels" in repr(encoder)
    assert read(encoder._repr_html_()).tags.count("img") == 0
