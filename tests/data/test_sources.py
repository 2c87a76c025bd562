"""What a folder, a name or a Dataset becomes, and how the unusable is refused."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from eqco.data import open_source, source_from_dataset
from eqco.data.images import MemoryImages
from eqco.data.named import memory_split
from eqco.data.sources import Source, Split, with_fewer_images, write_unreadable
from eqco.runtime.errors import InputError


def counts(source) -> dict[str, int]:
    return {name: len(split) for name, split in source.splits.items()}


def test_the_embedded_set_has_its_published_splits():
    source = open_source()
    assert counts(source) == {"train": 675, "val": 57, "test": 661}
    assert source["train"].size == (64, 64)
    assert len(source.classes) == 14
    assert set(source["train"].labels.tolist()) == set(range(14))
    assert len(open_source("groceries-coarse").classes) == 5


def test_split_folders_are_splits_and_their_folders_classes(folder):
    source = open_source(folder)
    assert counts(source) == {"train": 12, "test": 4}
    assert source.classes == ("cat", "dog")
    assert source["test"].labels.tolist() == [0, 0, 1, 1]
    assert Path(source["train"].images.name(0)) == folder / "train" / "cat" / "0.png"


def test_images_of_one_size_are_kept_in_memory_and_others_are_not(tmp_path, folder, save_image):
    for number in range(3):
        save_image(tmp_path / "alike" / f"{number}.png", (10, 12), seed=number)
    assert open_source(tmp_path / "alike")["train"].size == (12, 10)
    assert open_source(tmp_path / "alike", memory_gib=0)["train"].size is None
    assert open_source(folder)["train"].size is None


def test_classes_without_splits_are_divided_by_a_seed(tmp_path, save_image):
    for name in ("a", "b"):
        for number in range(20):
            save_image(tmp_path / "set" / name / f"{number}.png", seed=number)
    source, again = (open_source(tmp_path / "set", split_seed=1) for _ in range(2))
    assert counts(source) == {"train": 32, "val": 4, "test": 4}
    assert [int((source["val"].labels == label).sum()) for label in (0, 1)] == [2, 2]
    assert torch.equal(source["train"].images.pixels, again["train"].images.pixels)
    other = open_source(tmp_path / "set", split_seed=2)
    assert not torch.equal(source["train"].images.pixels, other["train"].images.pixels)
    assert counts(open_source(tmp_path / "set", val_fraction=0)) == {"train": 36, "test": 4}


def test_images_without_folders_are_one_unlabelled_split(tmp_path, save_image):
    for number in range(3):
        save_image(tmp_path / f"{number}.jpg", seed=number)
    (tmp_path / "notes.txt").write_text("words")
    source = open_source(tmp_path)
    assert counts(source) == {"train": 3}
    assert source["train"].labels is None
    assert [Path(name).name for name in source.ignored] == ["notes.txt"]


def test_unlabelled_takes_everything_below(folder):
    source = open_source(folder, unlabelled=True)
    assert counts(source) == {"train": 16}
    assert source["train"].labels is None


def test_an_unlabelled_folder_may_stand_beside_train(folder, save_image):
    save_image(folder / "unlabeled" / "x.png")
    source = open_source(folder)
    assert counts(source) == {"train": 12, "test": 4, "unlabelled": 1}
    assert source["unlabelled"].labels is None


def require_refusal(path, message: str, **options) -> None:
    with pytest.raises(InputError, match=message):
        open_source(path, **options)


def test_unusable_folders_are_refused_with_what_was_looked_for(tmp_path, folder, save_image):
    require_refusal(tmp_path / "nowhere", "neither a folder that exists nor a data set by name")
    require_refusal("cifar-10", r"Did you mean 'cifar10'\? The names are groceries")
    (tmp_path / "empty").mkdir()
    require_refusal(tmp_path / "empty", r"holds no images; looked for images \(\.jpg")
    (tmp_path / "hollow" / "class").mkdir(parents=True)
    require_refusal(tmp_path / "hollow", "holds no images")
    file = save_image(tmp_path / "one" / "only" / "0.png")
    require_refusal(file, "is a file; give the folder")
    assert counts(open_source(tmp_path / "one", unlabelled=True)) == {"train": 1}
    save_image(tmp_path / "one" / "loose.png")
    require_refusal(tmp_path / "one", r"holds images \(loose.png\) beside folders \(only\)")
    (folder / "train" / "emu").mkdir()
    require_refusal(folder, r"emu holds no images .*fill or remove")
    (folder / "train" / "emu").rmdir()
    save_image(folder / "test" / "emu" / "0.png")
    require_refusal(folder, "has a class 'emu' that the training split does not have")


def test_one_folder_of_images_is_taken_without_classes(tmp_path, save_image):
    for number in range(3):
        save_image(tmp_path / "one" / "holiday" / f"{number}.png", seed=number)
    source = open_source(tmp_path / "one")
    assert counts(source) == {"train": 3}
    assert source["train"].labels is None
    assert source.notes == (
        f"{tmp_path / 'one'} has one folder, holiday: its images are taken without classes",
    )


@pytest.mark.parametrize("name", ["valid", "validation", "dev", "Val"])
def test_splits_by_other_usual_names_are_taken_and_said(name, folder):
    (folder / "test").rename(folder / name)
    (folder / "drafts").mkdir()
    source = open_source(folder)
    assert counts(source) == {"train": 12, "val": 4}
    renamed = (f"the folder {name} is taken as the split val",) if name != "Val" else ()
    assert source.notes == ("not used, since there are splits beside: drafts", *renamed)


def test_a_class_called_dev_is_a_class_where_nothing_is_called_train(tmp_path, save_image):
    for name in ("dev", "ops"):
        for number in range(2):
            save_image(tmp_path / "people" / name / f"{number}.png", seed=number)
    assert open_source(tmp_path / "people").classes == ("dev", "ops")


def test_a_collection_of_data_sets_is_answered_with_one_of_them():
    given = {"train": [np.zeros((8, 8, 3), dtype=np.uint8)], "test": []}
    require_refusal(
        given, r"dict is a collection of data sets \('train', 'test'\).*such as data\['train'\]"
    )
    rows = [{"image": np.full((8, 8, 3), 7, dtype=np.uint8), "label": 1}]
    assert np.asarray(open_source(rows)["train"].images.read(0)).max() == 7


def test_unreadable_files_are_found_at_the_start_or_skipped(folder):
    (folder / "train" / "cat" / "bad.png").write_text("words")
    (folder / "train" / "dog" / "bad.png").write_text("words")
    require_refusal(folder, r"cat/bad.png cannot be read: .*not that of an image \(and 1 more")
    source = open_source(folder, on_unreadable="skip")
    assert counts(source) == {"train": 12, "test": 4}
    assert [Path(error.name).parent.name for error in source.unreadable] == ["cat", "dog"]
    assert source["train"].labels.tolist() == [0] * 6 + [1] * 6
    for parent in ("train/cat", "train/dog"):
        for file in (folder / parent).iterdir():
            file.write_text("words")
    require_refusal(folder, "none of the 14 images", on_unreadable="skip")


def test_a_name_that_is_not_utf_8_is_listed_as_it_is(folder, tmp_path):
    try:
        Path(os.fsdecode(bytes(folder / "train" / "cat") + b"/caf\xe9.jpg")).touch()
    except OSError:
        pytest.skip("this file system has names of UTF-8 alone")
    source = open_source(folder, on_unreadable="skip")
    write_unreadable(tmp_path / "unreadable.txt", source.unreadable)
    listed = (tmp_path / "unreadable.txt").read_bytes()
    assert listed == bytes(folder) + b"/train/cat/caf\xe9.jpg\tthe file is empty\n"


def test_a_split_that_is_not_there_is_named(folder):
    with pytest.raises(InputError, match=r"split='val', but .* has train, test"):
        open_source(folder)["val"]


class Squares(Dataset):
    """Items (pixels, label) of one size; item 5 can be broken."""

    def __init__(self, broken: bool = False):
        self.broken = broken
        self.targets = [i % 2 for i in range(10)]

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if self.broken and i == 5:
            raise KeyError("no such row")
        return torch.full((3, 8, 8), i, dtype=torch.uint8), i % 2


def test_labels_are_those_of_targets_not_of_items():
    """Items are not read for labels, which would take decoding all of them."""
    items = [(torch.zeros(3, 8, 8), 1) for _ in range(4)]
    assert source_from_dataset(items)["train"].labels is None
    assert source_from_dataset(Squares())["train"].labels.tolist() == [0, 1] * 5


def test_any_map_style_dataset_is_a_source():
    source = open_source(Squares())
    assert counts(source) == {"train": 10}
    assert source["train"].images.pixels[7].unique().tolist() == [7]
    assert source["train"].labels.tolist() == [0, 1] * 5
    lazy = source_from_dataset(Squares(), memory_gib=0, labels=[3] * 10, split="val")
    assert np.asarray(lazy["val"].images.read(4)).max() == 4
    assert lazy["val"].labels.tolist() == [3] * 10


def test_a_dataset_that_fails_or_transforms_is_named():
    with pytest.raises(InputError, match=r"item 5 of Squares cannot be read: KeyError"):
        open_source(Squares(broken=True))
    with pytest.raises(InputError, match=r"from -2 to 0.5; floating point must lie in \[0, 1\]"):
        open_source([torch.tensor([-2.0, 0.5]).expand(3, 4, 2)])
    with pytest.raises(InputError, match="no map-style Dataset"):
        open_source(iter([]))
    with pytest.raises(InputError, match=r"item 0 of list is list: numpy cannot make an array"):
        open_source([([[1, 2], [3]], 0)])


def test_a_picture_of_a_dataset_whose_file_was_closed_is_named(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        pass
    pictures = [Image.new("RGB", (8, 8)), picture]
    with pytest.raises(InputError, match=r"item 1 of list cannot be read: its file was closed"):
        open_source(pictures)


def test_arrays_of_torchvision_become_three_channels():
    grey = memory_split("train", torch.zeros(2, 28, 28, dtype=torch.uint8), [0, 1], ["a", "b"])
    assert grey.images.pixels.shape == (2, 3, 28, 28)
    last = memory_split("train", np.zeros((2, 32, 30, 3), np.uint8), [0, 1], ["a", "b"])
    assert last.images.pixels.shape == (2, 3, 32, 30)
    first = memory_split("unlabelled", np.zeros((2, 3, 96, 96), np.uint8), [-1, -1], ["a"])
    assert first.images.pixels.shape == (2, 3, 96, 96)
    assert first.labels is None


def test_fashion_mnist_is_read_from_its_own_files(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 5), ("t10k", 3)):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + bytes(range(28)) * 28 * count
        labels = struct.pack(">II", 0x801, count) + bytes(range(count))
        for kind, data in (("images-idx3", images), ("labels-idx1", labels)):
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(data)
            (raw / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(data))
    source = open_source("fashion-mnist", root=tmp_path, download=False)
    assert counts(source) == {"train": 5, "test": 3}
    assert source["train"].images.pixels[0, 2, 0].tolist() == list(range(28))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10", "imagenette", "imagenet"])
def test_a_set_that_was_not_downloaded_is_answered_with_what_to_do(name, tmp_path):
    advice = "Put its archives" if name == "imagenet" else f"Run `eqco data {name} --root FOLDER`"
    message = f"{name} could not be opened below .*{advice}.*{tmp_path}"
    require_refusal(name, message, root=tmp_path, download=False)


def test_a_folder_of_real_jpegs_has_grey_ones_among_them(shared_data, tmp_path):
    import tarfile

    with tarfile.open(shared_data / "tiny-imagenet-20.tar.xz") as archive:
        chosen = [member for member in archive.getmembers() if "/val/" in member.name]
        archive.extractall(tmp_path, chosen[:300], filter="data")
    found = next(tmp_path.rglob("val"))
    source = open_source(found)
    assert sum(counts(source).values()) == sum(path.suffix == ".JPEG" for path in found.rglob("*"))
    assert source["train"].size == (64, 64)


def test_every_class_keeps_an_image_for_training(tmp_path, save_image):
    for name, count in (("rare", 1), ("common", 10)):
        for number in range(count):
            save_image(tmp_path / "set" / name / f"{number}.png", seed=number)
    source = open_source(tmp_path / "set", val_fraction=0.6, test_fraction=0.3)
    assert set(source["train"].labels.tolist()) == {0, 1}
    assert sum(counts(source).values()) == 11


def test_fewer_images_keep_the_share_of_each_class():
    labels = torch.tensor([0] * 60 + [1] * 30)
    whole = Split("train", MemoryImages(torch.zeros(90, 3, 4, 4)), labels, ("a", "b"))
    few = with_fewer_images(Source("set", {"train": whole}), 30)["train"]
    assert few.labels.bincount().tolist() == [20, 10]
    assert few.name == "train"


@pytest.mark.parametrize("count", [1, 4, 7, 88])
def test_as_many_images_as_asked_for_are_taken_whatever_the_classes(count):
    labels = torch.arange(90) % 7
    whole = Split("train", MemoryImages(torch.zeros(90, 3, 4, 4)), labels, tuple("abcdefg"))
    few = with_fewer_images(Source("set", {"train": whole}), count)["train"]
    assert len(few) == count
    assert int(few.labels.bincount(minlength=7).max()) - count // 7 <= 1


@pytest.mark.parametrize("count", [0, 90, 91])
def test_as_many_images_as_there_are_is_no_part(count):
    whole = Split("train", MemoryImages(torch.zeros(90, 3, 4, 4)), torch.zeros(90).long(), ("a",))
    with pytest.raises(InputError, match=r"choose 1 to 89"):
        with_fewer_images(Source("set", {"train": whole}), count)


@pytest.mark.parametrize("broken", [b"words", None])
def test_a_closer_look_moves_no_image_from_one_part_to_another(tmp_path, save_image, broken):
    """What headers do not show is found by decoding: the others stay where they were."""
    for number in range(20):
        place = tmp_path / "set" / "ab"[number % 2] / f"{number:02d}.jpg"
        file = save_image(place, (90, number + 80))
        if number in (4, 7):
            file.write_bytes(broken or file.read_bytes()[:-300])

    def names(**how):
        source = open_source(tmp_path / "set", on_unreadable="skip", **how)
        splits = source.splits.values()
        return {
            part.name: {part.images.name(number) for number in range(len(part))} for part in splits
        }

    whole, looked = names(check="header"), names(check="decode")
    assert sum(map(len, looked.values())) == 18
    assert sum(map(len, whole.values())) == (18 if broken else 20)
    assert all(looked[name] <= whole[name] for name in looked)
    alone = {name: {file for file in whole[name] if file in looked[name]} for name in looked}
    assert alone == looked
