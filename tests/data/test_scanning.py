"""A look at many files keeps in memory what fits, and nothing of what does not."""

import tracemalloc

import pytest

from eqco.data import scanning
from eqco.data.images import FileImages
from eqco.data.scanning import scan

SMALL, LARGE = (4, 3), (400, 300)  # width and height


@pytest.fixture
def decoded(monkeypatch):
    """The numbers of the images that were decoded."""
    numbers: list[int] = []
    read = FileImages.read
    monkeypatch.setattr(FileImages, "read", lambda self, n: numbers.append(n) or read(self, n))
    return numbers


def saved(folder, save_image, sizes) -> FileImages:
    paths = [save_image(folder / f"{n}.png", size, seed=n) for n, size in enumerate(sizes)]
    return FileImages([str(path) for path in paths])


def test_images_of_one_size_are_decoded_and_kept(tmp_path, save_image, decoded):
    found = scan(saved(tmp_path, save_image, [SMALL] * 5), workers=0)
    assert decoded == [0, 0, 1, 2, 3, 4]  # the first tells the size
    assert found.sizes == {(3, 4): 5}
    assert found.pixels.shape == (5, 3, 3, 4)


def test_from_the_first_other_size_on_headers_are_read_alone(tmp_path, save_image, decoded):
    images = saved(tmp_path, save_image, [SMALL, SMALL, LARGE, SMALL, LARGE])
    found = scan(images, workers=0)
    assert decoded == [0, 0, 1, 2]
    assert found.sizes == {(3, 4): 3, (300, 400): 2}
    assert found.readable == (0, 1, 2, 3, 4)
    assert found.pixels is None


def test_nothing_is_kept_if_one_chunk_has_another_size(tmp_path, save_image, monkeypatch):
    monkeypatch.setattr(scanning, "CHUNK", 2)
    found = scan(saved(tmp_path, save_image, [SMALL] * 4 + [LARGE] * 2 + [SMALL]), workers=0)
    assert found.sizes == {(3, 4): 5, (300, 400): 2}
    assert found.pixels is None


def test_large_images_behind_a_small_one_are_not_held_together(tmp_path, save_image, decoded):
    images = saved(tmp_path, save_image, [SMALL] + [LARGE] * 12)
    tracemalloc.start()
    try:
        found = scan(images, check="decode", workers=0)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert decoded == [0, *range(13)]
    assert found.pixels is None
    assert most < 6 * 400 * 300 * 3
