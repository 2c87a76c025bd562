"""Shards of WebDataset: the samples that webdataset reads, at any position, in the same order."""

import io
import os
import signal
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eqco.assembly import resume, train
from eqco.data import StepLoader, find_pipeline, open_source, shards
from eqco.data.index import ScanIndex
from eqco.data.shards import expand_braces
from eqco.data.views import ViewSpec
from eqco.recipes import named_recipe
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory

webdataset = pytest.importorskip("webdataset")
VIEWS = [ViewSpec(find_pipeline("mocov2"), 8)] * 2


def png(seed: int, size: tuple[int, int] = (12, 10)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write(folder: Path, name: str = "train", count: int = 12, labels: bool = True) -> str:
    """Shards of five samples each, by webdataset's own writer; their pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    pattern = str(folder / f"{name}-%04d.tar")
    with webdataset.ShardWriter(pattern, maxcount=5, verbose=0) as writer:
        for number in range(count):
            sample = {"__key__": f"{number:06d}", "png": png(number, (12 + number % 3, 10))}
            writer.write(sample | ({"cls": number % 3} if labels else {}))
    return str(folder / f"{name}-{{0000..{(count - 1) // 5:04d}}}.tar")


def read_by_webdataset(path: str) -> list[dict]:
    """The samples of a shard; `WebDataset` itself leaves its files open."""
    with open(path, "rb") as file:
        members = webdataset.tariterators.tar_file_expander([{"url": path, "stream": file}])
        return list(webdataset.tariterators.group_by_keys(members))


def test_every_position_holds_what_webdataset_reads_there(tmp_path):
    pattern = write(tmp_path)
    source = open_source(pattern, memory_gib=0)
    images, labels = source["train"].images, source["train"].labels
    theirs = [sample for path in expand_braces(pattern) for sample in read_by_webdataset(path)]
    assert len(images) == len(theirs) == 12
    for number in (11, 0, 7, 3):  # in any order
        assert images.encoded(number) == theirs[number]["png"]
        assert source.classes[labels[number]] == theirs[number]["cls"].decode()
        assert images.name(number).endswith(f"{theirs[number]['__key__']}.png")


def test_the_views_are_those_of_the_same_images_in_a_folder(tmp_path):
    write(tmp_path / "shards", labels=False)
    (tmp_path / "photos").mkdir()
    for number in range(12):
        file = tmp_path / "photos" / f"{number:06d}.png"
        file.write_bytes(png(number, (12 + number % 3, 10)))
    splits = [
        open_source(data, memory_gib=0)["train"]
        for data in (str(tmp_path / "shards" / "*.tar"), tmp_path / "photos")
    ]
    loaders = [StepLoader(split, VIEWS, num_queries=4, seed=0) for split in splits]
    for step in (5, 0):
        ours, theirs = (loader.micro_batches(step)[0] for loader in loaders)
        assert torch.equal(ours.index, theirs.index)
        assert all(torch.equal(*each) for each in zip(ours.views, theirs.views, strict=True))


def test_two_processes_take_their_halves_of_the_same_batches(tmp_path):
    split = open_source(write(tmp_path), memory_gib=0)["train"]

    def batch(step, **where):
        loader = StepLoader(split, VIEWS, num_queries=4, seed=0, **where)
        return loader.micro_batches(step)[0].views[0]

    for step in (0, 4):
        halves = [batch(step, rank=rank, world_size=2) for rank in (0, 1)]
        assert torch.equal(torch.cat(halves), batch(step))


def test_shards_belong_to_the_split_that_their_names_or_folders_say(tmp_path):
    write(tmp_path, "imagenet-train")
    write(tmp_path, "imagenet-valid", count=3)
    write(tmp_path / "test", "a", count=3)
    pattern = str(tmp_path / "{imagenet-*,test/*}.tar")
    source = open_source(pattern)
    assert {name: len(split) for name, split in source.splits.items()} == {
        "train": 12,
        "val": 3,
        "test": 3,
    }
    assert source.classes == ("0", "1", "2")
    assert "shards named valid are taken as the split val" in source.notes
    everything = open_source(pattern, unlabelled=True)
    assert (len(everything["train"]), everything["train"].labels) == (18, None)


def test_members_that_are_no_images_are_counted_and_the_first_image_is_the_samples(tmp_path):
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number in range(3):
            extra = {"json": {"place": number}, "seg.png": png(9, (5, 5))}
            writer.write({"__key__": f"x/{number}", "png": png(number), **extra})
    source = open_source(str(tmp_path / "a.tar"), memory_gib=0)
    assert len(source["train"]) == 3
    assert source["train"].images.read(0).size == (12, 10)
    assert source.notes == ("members of the shards that are not used: 3 .json, 3 .seg.png",)


def test_the_index_is_kept_and_made_anew_when_a_shard_changes(tmp_path, monkeypatch):
    pattern, file = write(tmp_path), tmp_path / "index.npz"
    index = ScanIndex(file)
    first = open_source(pattern, memory_gib=0, index=index)
    index.write(file)
    looked: list[str] = []
    real = shards.index_shard
    monkeypatch.setattr(shards, "index_shard", lambda path: looked.append(path) or real(path))
    again = open_source(pattern, memory_gib=0, index=ScanIndex(file))
    assert not looked
    assert np.array_equal(again["train"].images.places, first["train"].images.places)
    assert again["train"].images.encoded(7) == first["train"].images.encoded(7)
    assert torch.equal(again["train"].labels, first["train"].labels)
    os.utime(tmp_path / "train-0001.tar", ns=(1, 1))
    open_source(pattern, memory_gib=0, index=ScanIndex(file))
    assert len(looked) == 3


@pytest.mark.end_to_end
def test_a_run_stopped_in_the_middle_of_an_epoch_goes_on_as_if_never_stopped(tmp_path, monkeypatch):
    recipe = named_recipe("simo", "smoke")
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=8),
        method=replace(recipe.method, count=3),
        training=replace(recipe.training, num_queries=4, epochs=2, log_every=1),
    )
    write(tmp_path / "shards", count=20)
    monkeypatch.chdir(tmp_path)
    pattern = "shards/train-{0000..0003}.tar"
    train(pattern, recipe, out=tmp_path / "whole")
    train(
        pattern,
        recipe,
        out=tmp_path / "cut",
        show=lambda report: os.kill(os.getpid(), signal.SIGTERM) if report.step == 3 else None,
    )
    assert RunDirectory(tmp_path / "cut").index.exists()
    monkeypatch.chdir(tmp_path / "shards")  # from another folder
    monkeypatch.setattr(shards, "index_shard", None)  # it is not indexed again
    assert resume(tmp_path / "cut").step == 10
    runs = [RunDirectory(tmp_path / name) for name in ("whole", "cut")]
    first, second = (read_checkpoint(run.last)["method"] for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].read_metrics() == runs[1].read_metrics()


def tar(path: Path, **members: bytes) -> str:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return str(path)


def test_what_cannot_be_used_is_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(InputError, match=r"1 of the 4 shards of .* the first is .*train-0003\.tar"):
        open_source(str(tmp_path / "train-{0000..0003}.tar"))
    with pytest.raises(InputError, match=r"none-\*\.tar names no file that exists"):
        open_source(str(tmp_path / "none-*.tar"))
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(InputError, match=r"is compressed.*gunzip"):
        open_source(str(tmp_path / "a.tar.gz"))
    (tmp_path / "b.tar").write_bytes(b"no tar file at all" * 100)
    with pytest.raises(InputError, match=r"b\.tar cannot be read as a tar file"):
        open_source(str(tmp_path / "b.tar"))
    with pytest.raises(InputError, match="holds no images; looked for members that end in"):
        open_source(tar(tmp_path / "c.tar", a_txt=b"words"))
    mixed = tar(tmp_path / "d.tar", a_png=png(0), a_cls=b"0", b_png=png(1))
    with pytest.raises(InputError, match=r"1 of the 2 images .* have no \.cls beside them"):
        open_source(mixed)
    broken = tar(tmp_path / "e.tar", a_png=png(0), b_png=b"no image")
    with pytest.raises(InputError, match=r"e\.tar/b\.png cannot be read"):
        open_source(broken)
    assert len(open_source(broken, on_unreadable="skip")["train"]) == 1


def test_braces_are_expanded_in_order():
    assert expand_braces("a.tar") == ["a.tar"]
    assert expand_braces("s-{8..11}.tar") == ["s-8.tar", "s-9.tar", "s-10.tar", "s-11.tar"]
