"""What a look at many files has found is kept, and looked for anew when the files change."""

import os

import numpy as np
import pytest

from eqco.data import open_source
from eqco.data.images import FileImages
from eqco.data.index import ScanIndex


@pytest.fixture
def looked(monkeypatch):
    """The files whose headers were read."""
    names: list[str] = []
    real = FileImages.size_of

    def size_of(self, number):
        names.append(self.name(number))
        return real(self, number)

    monkeypatch.setattr(FileImages, "size_of", size_of)
    return names


def opened(folder, file):
    index = ScanIndex(file)
    source = open_source(folder, memory_gib=0, on_unreadable="skip", index=index)
    index.write(file)
    return source


def test_a_folder_that_has_not_changed_is_not_looked_at_again(folder, tmp_path, looked):
    (folder / "train" / "cat" / "broken.png").write_bytes(b"no image")
    first = opened(folder, tmp_path / "index.npz")
    assert len(looked) == 17
    looked.clear()
    again = opened(folder, tmp_path / "index.npz")
    assert not looked
    assert again.sizes == first.sizes
    assert [(e.name, e.reason) for e in again.unreadable] == [
        (e.name, e.reason) for e in first.unreadable
    ]
    assert len(again.unreadable) == 1
    names = [[s["train"].images.name(n) for n in range(12)] for s in (first, again)]
    assert names[0] == names[1]


def test_it_is_the_same_folder_from_another_one(folder, tmp_path, looked, monkeypatch):
    monkeypatch.chdir(folder.parent)
    opened(folder.name, tmp_path / "index.npz")
    looked.clear()
    monkeypatch.chdir(folder)
    opened(folder, tmp_path / "index.npz")
    assert not looked


@pytest.mark.parametrize("change", ["a new file", "another time", "one less"])
def test_a_folder_that_has_changed_is(change, folder, tmp_path, looked, save_image):
    opened(folder, tmp_path / "index.npz")
    looked.clear()
    if change == "a new file":
        save_image(folder / "train" / "cat" / "new.png")
    elif change == "another time":
        os.utime(folder / "train" / "cat" / "0.png", ns=(1, 1))
    else:
        (folder / "train" / "cat" / "0.png").unlink()
    opened(folder, tmp_path / "index.npz")
    expected = {"a new file": 13, "another time": 12, "one less": 11}
    assert len(looked) == expected[change]  # the test split is as it was


def test_a_damaged_index_holds_nothing(tmp_path):
    file = tmp_path / "index.npz"
    index = ScanIndex()
    index.keep("key", {"sizes": np.arange(3)})
    index.write(file)
    assert np.array_equal(ScanIndex(file).get("key")["sizes"], np.arange(3))
    file.write_bytes(file.read_bytes()[:40])
    assert ScanIndex(file).get("key") is None


def test_many_classes_are_numbered_in_no_time(tmp_path):
    """A million files in a thousand classes: the number of a class is not searched for."""
    from eqco.data.folders import list_splits

    for name in range(30):
        (tmp_path / f"class-{name:03d}").mkdir()
        (tmp_path / f"class-{name:03d}" / "a.jpg").touch()
    (listing,) = list_splits(tmp_path, False, [], [])
    assert listing.labels == tuple(range(30))
