"""Data sets of the library `datasets`, opened from disk: the same pixels, labels and splits."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from eqco.data import open_source
from eqco.data.hugging_face import RowImages
from eqco.data.index import ScanIndex
from eqco.runtime.errors import InputError, MissingExtraError

datasets = pytest.importorskip("datasets")
CLASSES = ["cat", "dog"]


@pytest.fixture(autouse=True)
def without_network(monkeypatch, tmp_path):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def picture(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (10, 12 + seed % 3, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def table(start: int, count: int, **others):
    """Pictures with labels, numbered from `start`."""
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    values = {
        "image": [picture(number) for number in range(start, start + count)],
        "label": [number % 2 for number in range(start, start + count)],
    }
    features |= {name: kind for name, (kind, _) in others.items()}
    values |= {name: own for name, (_, own) in others.items()}
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def assert_pictures(split, start):
    for number in range(len(split)):
        ours = np.asarray(split.images.read(number))
        assert np.array_equal(ours, np.asarray(picture(start + number)))


def test_saved_to_disk_keeps_splits_labels_and_pixels(tmp_path):
    splits = {"train": table(0, 6), "validation": table(6, 2), "test": table(8, 2)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    source = open_source(f"hf:{tmp_path / 'saved'}", memory_gib=0)
    assert list(source.splits) == ["train", "val", "test"]
    assert source.classes == tuple(CLASSES)
    assert source["val"].labels.tolist() == [0, 1]
    assert source.notes == ("the split validation is taken as val",)
    for name, start in (("train", 0), ("val", 6), ("test", 8)):
        assert_pictures(source[name], start)


def test_one_split_is_divided_and_unlabelled_takes_all(tmp_path):
    table(0, 20).save_to_disk(str(tmp_path / "saved"))
    source = open_source(f"hf:{tmp_path / 'saved'}")
    assert {name: len(split) for name, split in source.splits.items()} == {
        "train": 16,
        "val": 2,
        "test": 2,
    }
    assert "divided into train, val and test" in source.notes[0]
    splits = {"train": table(0, 4), "test": table(4, 3)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "two"))
    everything = open_source(f"hf:{tmp_path / 'two'}", unlabelled=True, memory_gib=0)
    assert everything["train"].labels is None
    assert_pictures(everything["train"], 0)
    assert len(everything["train"]) == 7


def test_parquet_files_belong_to_the_splits_in_their_names(tmp_path):
    (tmp_path / "data").mkdir()
    for name, start, count in (("train-00000-of-00001", 0, 6), ("dev", 6, 2)):
        table(start, count).to_parquet(str(tmp_path / "data" / f"{name}.parquet"))
    source = open_source(f"hf:{tmp_path / 'data'}", memory_gib=0)
    assert list(source.splits) == ["train", "val"]
    assert_pictures(source["train"], 0)
    assert_pictures(source["val"], 6)


def test_an_imagefolder_is_read_from_its_files(tmp_path):
    for number in range(6):
        folder = tmp_path / "pets" / ("train", "test")[number >= 4] / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture(number).save(folder / f"{number}.png")
    source = open_source(f"hf:{tmp_path / 'pets'}", memory_gib=0)
    assert {name: len(split) for name, split in source.splits.items()} == {"train": 4, "test": 2}
    assert source.classes == tuple(CLASSES)
    named = {source["train"].images.name(number).split("/")[-1] for number in range(4)}
    assert named == {"0.png", "1.png", "2.png", "3.png"}


def test_labels_are_a_class_label_or_a_plain_column_called_label(tmp_path):
    coarse = (datasets.ClassLabel(names=["animal"]), [0] * 4)
    table(0, 4, coarse=coarse).save_to_disk(str(tmp_path / "two"))
    source = open_source(f"hf:{tmp_path / 'two'}", val_fraction=0, test_fraction=0)
    assert source.classes == tuple(CLASSES)
    assert "labels are of the column label, not of coarse" in source.notes
    plain = table(0, 4).cast_column("label", datasets.Value("int64"))
    plain.save_to_disk(str(tmp_path / "plain"))
    source = open_source(f"hf:{tmp_path / 'plain'}", val_fraction=0, test_fraction=0)
    assert (source.classes, source["train"].labels.tolist()) == (("0", "1"), [0, 1, 0, 1])


def test_a_test_split_without_labels_is_taken_without(tmp_path):
    hidden = table(4, 2).remove_columns("label").add_column("label", [-1, -1])
    hidden = hidden.cast_column("label", datasets.ClassLabel(names=CLASSES))
    splits = {"train": table(0, 4), "test": hidden}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    source = open_source(f"hf:{tmp_path / 'saved'}")
    assert source["test"].labels is None
    assert source["train"].labels.tolist() == [0, 1, 0, 1]


def test_rows_are_decoded_as_files_are_and_known_the_second_time(tmp_path):
    """A picture lying on its side is turned; a cell that is no image is named by its row."""
    lying = Image.Exif()
    lying[0x0112] = 6
    picture(0).save(tmp_path / "lying.jpg", exif=lying)
    cells = [{"bytes": (tmp_path / "lying.jpg").read_bytes(), "path": None}]
    cells += [{"bytes": b"no image", "path": None}]
    features = datasets.Features({"image": datasets.Image(decode=False)})
    datasets.Dataset.from_dict({"image": cells}, features=features).save_to_disk(
        str(tmp_path / "saved")
    )
    name = f"hf:{tmp_path / 'saved'}"
    with pytest.raises(InputError, match=r"row 1 of .*saved \(all\) cannot be read: its content"):
        open_source(name)
    index = ScanIndex()
    for _ in range(2):
        source = open_source(name, memory_gib=0, on_unreadable="skip", index=index)
        assert source.sizes == {(12, 10): 1}
        assert source["train"].images.read(0).size == (10, 12)


def test_a_subset_reads_its_own_rows_in_worker_processes_too(tmp_path):
    import pickle

    table(0, 6).save_to_disk(str(tmp_path / "saved"))
    images = open_source(f"hf:{tmp_path / 'saved'}", unlabelled=True, memory_gib=0)["train"].images
    assert isinstance(images, RowImages)
    chosen = pickle.loads(pickle.dumps(images.subset([5, 2]).subset([1])))
    assert np.array_equal(np.asarray(chosen.read(0)), np.asarray(picture(2)))
    assert chosen.digest() != images.digest()


def test_what_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"hf:user/none is neither a folder .* Go online, or copy"):
        open_source("hf:user/none")
    table(0, 2).remove_columns("image").save_to_disk(str(tmp_path / "words"))
    with pytest.raises(InputError, match="has the columns label, of which 0 are of the type"):
        open_source(f"hf:{tmp_path / 'words'}")
    splits = {"validation": table(0, 2), "test": table(0, 2)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "held"))
    with pytest.raises(InputError, match="has the splits validation, test; none of them is to be"):
        open_source(f"hf:{tmp_path / 'held'}")


def test_without_the_package_the_install_line_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[hf\]"'):
        open_source("hf:anything")


@pytest.mark.end_to_end
def test_a_run_on_rows_resumes_by_their_path(tmp_path, monkeypatch):
    from dataclasses import replace

    from eqco.assembly import resume, train
    from eqco.recipes import named_recipe

    table(0, 16).save_to_disk(str(tmp_path / "saved"))
    monkeypatch.chdir(tmp_path)
    recipe = named_recipe("simo", "smoke")
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=8),
        method=replace(recipe.method, count=3),
        training=replace(recipe.training, num_queries=4, epochs=1),
    )
    assert train("hf:saved", recipe).step == 3
    run = tmp_path / "runs" / "saved"
    assert torch.load(run / "checkpoints" / "last.pt", weights_only=True)["step"] == 3
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(run).step == 3
