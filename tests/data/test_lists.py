"""A list of paths: columns by their usual names, labels and splits where it has them."""

import pytest
import torch

from eqco.data import open_source
from eqco.runtime.errors import InputError, MissingExtraError


@pytest.fixture
def photos(tmp_path, save_image):
    for number in range(12):
        save_image(tmp_path / "photos" / f"{number}.png", seed=number)
    return tmp_path


def counts(source):
    return {name: len(split) for name, split in source.splits.items()}


def test_paths_alone_are_one_unlabelled_split(photos):
    file = photos / "list.csv"
    file.write_text("".join(f"photos/{number}.png\n" for number in range(12)))
    source = open_source(file, memory_gib=0)
    assert counts(source) == {"train": 12}
    assert source["train"].labels is None
    assert source["train"].images.name(3) == str(photos / "photos" / "3.png")


def test_labels_make_classes_which_are_divided(photos):
    file = photos / "list.tsv"
    lines = [f"photos/{number}.png\t{('dog', 'cat')[number % 2]}" for number in range(12)]
    file.write_text("Filename\tclass\n" + "\n".join(lines) + "\n")
    source = open_source(file, val_fraction=0.2, test_fraction=0.2)
    assert source.classes == ("cat", "dog")
    assert counts(source) == {"train": 8, "val": 2, "test": 2}
    assert open_source(file, unlabelled=True)["train"].labels is None


def test_a_column_of_splits_is_taken_by_the_usual_names(photos):
    splits = ["train"] * 8 + ["validation"] * 2 + ["Test"] * 2
    lines = [f"photos/{n}.png,{10 - n % 2},{split}" for n, split in enumerate(splits)]
    file = photos / "list.csv"
    file.write_text("path,label,split\n" + "\n".join(lines) + "\n")
    source = open_source(file)
    assert counts(source) == {"train": 8, "val": 2, "test": 2}
    assert source.classes == ("9", "10")  # as numbers
    assert source["val"].labels.tolist() == [1, 0]
    assert source.notes == ("validation in the list is taken as the split val",)


def test_parquet_is_the_same_list(photos):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    paths = [f"photos/{number}.png" for number in range(12)]
    table = pyarrow.table({"path": paths, "label": [n % 2 for n in range(12)], "area": [1.5] * 12})
    parquet.write_table(table, photos / "list.parquet")
    (photos / "list.csv").write_text(
        "path,label\n" + "\n".join(f"{path},{n % 2}" for n, path in enumerate(paths)) + "\n"
    )
    ours, theirs = (open_source(photos / f"list.{kind}") for kind in ("parquet", "csv"))
    assert torch.equal(ours["train"].images.pixels, theirs["train"].images.pixels)
    assert torch.equal(ours["train"].labels, theirs["train"].labels)
    images = pyarrow.table({"image": [{"bytes": b"", "path": ""}]})
    parquet.write_table(images, photos / "images.parquet")
    with pytest.raises(InputError, match=r"holds images themselves.*Give it as hf:"):
        open_source(photos / "images.parquet")
    (photos / "broken.parquet").write_bytes(b"words")
    with pytest.raises(InputError, match=r"broken\.parquet is no Parquet file"):
        open_source(photos / "broken.parquet")


def test_without_pyarrow_the_install_line_is_shown(photos, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (photos / "list.parquet").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[parquet\]"'):
        open_source(photos / "list.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; a list has a line for each image"),
        ("name,kind\na,b\n", "has the columns name, kind; none of them is a path. Call it path"),
        ("path,label\n", "lists no images"),
        ("path,label\nphotos/0.png,cat,3\n", "line 2 of .* has 3 cells instead of 2"),
        ("path,split\nphotos/0.png,other\n", "has the split 'other'; there are train,"),
        ("path,label\nphotos/0.png,cat\nphotos/1.png,\n", "1 of the 2 images .* have no label"),
        ("path\nphotos/none.png\n", r"none\.png cannot be read: No such file"),
        (
            "path,label,split\nphotos/0.png,a,train\nphotos/1.png,b,val\n",
            r"\(val\) has a class 'b' that the training split does not have",
        ),
    ],
)
def test_what_is_no_list_is_refused(photos, text, message):
    file = photos / "list.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        open_source(file)
