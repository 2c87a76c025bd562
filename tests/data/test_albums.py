"""An album takes every image of a folder, whatever its layout, and labels it where that tells."""

import pytest

from eqco.data.albums import open_album
from eqco.runtime.errors import InputError


def test_folders_of_classes_in_splits_give_names_and_labels(folder):
    (album,) = open_album(str(folder))
    assert len(album) == 16
    assert album.names[0] == "test/cat/0.png"
    assert album.classes == ("cat", "dog")
    for name, label in zip(album.names, album.labels.tolist(), strict=True):
        assert album.classes[label] in name


def test_images_outside_the_classes_are_taken_without_a_label(folder, save_image):
    save_image(folder / "found" / "deep" / "down.png")
    (album,) = open_album(str(folder))
    assert album.names[0] == "found/deep/down.png"
    assert album.labels.tolist().count(-1) == 1


def test_a_layout_that_tells_no_classes_is_taken_without_labels_and_says_why(tmp_path, save_image):
    save_image(tmp_path / "loose.png")
    save_image(tmp_path / "holidays" / "2020" / "a.png")
    (album,) = open_album(str(tmp_path))
    assert sorted(album.names) == ["holidays/2020/a.png", "loose.png"]
    assert album.labels is None
    assert "not clear what the classes are" in album.note


def test_images_alone_have_no_labels_and_nothing_to_explain(tmp_path, save_image):
    save_image(tmp_path / "a.png")
    (album,) = open_album(str(tmp_path))
    assert (album.names, album.labels, album.note) == (("a.png",), None, "")


def test_a_data_set_by_name_is_an_album_for_each_split():
    albums = open_album("groceries")
    assert {name.split("/")[0] for album in albums for name in album.names} >= {"train", "test"}
    assert all(len(album.names) == len(album.labels) == len(album) for album in albums)


def test_no_folder_and_no_images_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"there is no folder nowhere\. Give a folder of images"):
        open_album("nowhere")
    with pytest.raises(InputError, match="holds no images"):
        open_album(str(tmp_path))


def test_images_of_a_list_have_the_names_of_their_files(tmp_path, save_image):
    for number in range(20):
        save_image(tmp_path / "photos" / f"{number}.png", seed=number)
    lines = [f"photos/{number}.png,{number % 2}" for number in range(20)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *lines]))
    albums = open_album(str(tmp_path / "list.csv"))
    names = [name for album in albums for name in album.names]
    assert sorted(names) == sorted(str(tmp_path / "photos" / f"{n}.png") for n in range(20))
