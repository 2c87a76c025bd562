"""The cache of decoded images: the same pixels, whole after a stop, never of other files."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from together import ended, start

from eqco.assembly import resume, train
from eqco.data import StepLoader, find_pipeline
from eqco.data import cache as caching
from eqco.data.bands import Layout
from eqco.data.cache import CachedImages, cached_side, estimate_bytes, fill_cache
from eqco.data.decoding import UnreadableImageError
from eqco.data.images import FileImages
from eqco.data.sources import Split
from eqco.data.views import ViewSpec
from eqco.recipes import named_recipe
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory

VIEWS = [ViewSpec(find_pipeline("mocov2"), 8)] * 2
SIDE = cached_side(VIEWS)  # ⌈8 / √0.2⌉ = 18


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(caching, "CHUNK", 4)


def files(folder: Path, save_image, sizes) -> FileImages:
    paths = [
        save_image(folder / "photos" / f"{number:03d}.png", size, seed=number)
        for number, size in enumerate(sizes)
    ]
    return FileImages([str(path) for path in paths])


def cached(images: FileImages, folder: Path) -> CachedImages:
    found = CachedImages(images, folder / "cache", SIDE)
    fill_cache(found, workers=0)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "cache").iterdir()}


def batches(images, skip=False):
    loader = StepLoader(
        Split("train", images, None),
        VIEWS,
        num_queries=3,
        seed=0,
        on_unreadable="skip" if skip else "error",
    )
    return [batch for step in range(4) for batch in loader.micro_batches(step)]


def test_images_that_are_not_larger_give_the_same_views(tmp_path, save_image):
    assert SIDE == 18
    images = files(tmp_path, save_image, [(18, 30), (40, 18), (9, 7)] * 3)
    for ours, theirs in zip(batches(cached(images, tmp_path)), batches(images), strict=True):
        assert torch.equal(ours.index, theirs.index)
        assert all(torch.equal(*each) for each in zip(ours.views, theirs.views, strict=True))


def test_larger_images_are_shrunk_to_the_side_and_keep_their_shape(tmp_path, save_image):
    images = cached(files(tmp_path, save_image, [(36, 54), (72, 36), (19, 18)]), tmp_path)
    assert [images.read(number).size for number in range(3)] == [(18, 27), (36, 18), (19, 18)]
    original = images.files.read(0)
    assert isinstance(original, Image.Image)
    expected = original.resize((18, 27), Image.Resampling.BILINEAR)
    assert np.array_equal(np.asarray(images.read(0)), np.asarray(expected))


def test_bands_of_16_bits_keep_their_depth(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2**16, (12, 10, 5), dtype=np.uint16)
    np.save(tmp_path / "a.npy", pixels)
    images = cached(FileImages([str(tmp_path / "a.npy")], Layout(5, deep=True)), tmp_path)
    assert np.array_equal(np.asarray(images.read(0)), pixels.astype(np.float32) / 65535)


def test_what_it_will_hold_is_known_before(tmp_path, save_image):
    images = files(tmp_path, save_image, [(36, 54), (9, 7), (72, 36)] * 4)
    cached(images, tmp_path)
    pixels = 4 * 3 * (18 * 27 + 9 * 7 + 36 * 18)
    assert estimate_bytes(images, SIDE) == pixels
    written = sum(len(each) for name, each in contents(tmp_path).items() if "pixels" in name)
    # two numbers of 8 bytes for each image, a checksum of 8 for each of three files
    assert written == pixels + 12 * 16 + 3 * 8


def test_after_a_stop_only_what_is_missing_is_decoded(tmp_path, save_image, monkeypatch):
    images = files(tmp_path, save_image, [(36, 54), (20, 30)] * 5)
    cached(images, tmp_path)
    whole = contents(tmp_path)
    (tmp_path / "cache" / "000001.pixels").unlink()
    last = tmp_path / "cache" / "000002.pixels"
    last.write_bytes(last.read_bytes()[:-1])  # cut off by a disk that was full
    decoded: list[int] = []
    read = FileImages.read
    monkeypatch.setattr(FileImages, "read", lambda s, n: decoded.append(n) or read(s, n))
    cached(images, tmp_path)
    assert decoded == [4, 5, 6, 7, 8, 9]
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("place", [0, 8, 100, -1])
def test_a_file_with_a_changed_byte_is_written_anew(place, tmp_path, save_image):
    """Of the checksum, of the heights, of the pixels, and the last."""
    images = files(tmp_path, save_image, [(36, 54), (20, 30)] * 5)
    cached(images, tmp_path)
    whole = contents(tmp_path)
    file = tmp_path / "cache" / "000001.pixels"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    cached(images, tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("length", [0, 1, 8, 30])
def test_a_file_that_was_cut_off_is_written_anew(length, tmp_path, save_image):
    images = files(tmp_path, save_image, [(36, 54), (20, 30)] * 5)
    cached(images, tmp_path)
    whole = contents(tmp_path)
    file = tmp_path / "cache" / "000001.pixels"
    file.write_bytes(file.read_bytes()[:length])
    cached(images, tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("change", ["a file", "the side"])
def test_a_cache_of_other_files_or_another_side_is_not_used(change, tmp_path, save_image):
    images = files(tmp_path, save_image, [(36, 54)] * 5)
    before = np.asarray(cached(images, tmp_path).read(4))
    if change == "a file":
        save_image(Path(images.name(4)), (36, 54), seed=99)
        os.utime(images.name(4), ns=(1, 1))
        assert not np.array_equal(np.asarray(cached(images, tmp_path).read(4)), before)
    else:
        other = CachedImages(images, tmp_path / "cache", 9)
        fill_cache(other, workers=0)
        assert other.read(4).size == (9, 14)


def test_an_unreadable_image_is_named_or_replaced_as_without_a_cache(tmp_path, save_image):
    images = files(tmp_path, save_image, [(10, 12)] * 9)
    Path(images.name(3)).write_bytes(b"no image")
    ours = cached(images, tmp_path)
    with pytest.raises(UnreadableImageError, match=r"003\.png cannot be read: its content"):
        ours.read(3)
    for one, other in zip(batches(ours, skip=True), batches(images, skip=True), strict=True):
        assert torch.equal(one.index, other.index)
        assert all(torch.equal(*each) for each in zip(one.views, other.views, strict=True))


def test_a_subset_reads_its_own_images_in_worker_processes_too(tmp_path, save_image):
    import pickle

    images = cached(files(tmp_path, save_image, [(10, 12)] * 9), tmp_path)
    images.read(0)
    chosen = pickle.loads(pickle.dumps(images.subset([7, 2])))
    assert len(chosen) == 2
    assert chosen.name(0).endswith("007.png")
    assert np.array_equal(np.asarray(chosen.read(1)), np.asarray(images.read(2)))


@pytest.mark.parametrize("name", ["cat.jpg", "my.pixels", "film.partial", "deep/0.pixels"])
def test_a_folder_of_other_things_is_no_place_for_a_cache(name, tmp_path, save_image):
    images = files(tmp_path, save_image, [(10, 12)] * 2)
    stranger = tmp_path / "cache" / name
    stranger.parent.mkdir(parents=True)
    stranger.write_text("the user's")
    message = rf"cache holds {name.split('/')[0]}, which is not of a cache .* with --cache-gib 0"
    with pytest.raises(InputError, match=message):
        cached(images, tmp_path)
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == [stranger]
    assert stranger.read_text() == "the user's"


def test_what_a_stopped_cache_of_other_files_has_left_is_removed(tmp_path, save_image):
    images = files(tmp_path, save_image, [(10, 12)] * 2)
    cached(images, tmp_path)
    whole = contents(tmp_path)
    for name in ("plan.json", "000007.pixels", "000008.pixels.12.partial"):
        (tmp_path / "cache" / name).write_text("of other files")
    cached(images, tmp_path)
    assert contents(tmp_path) == whole


def test_a_disk_that_cannot_be_written_is_named_with_a_remedy(tmp_path, save_image):
    images = files(tmp_path, save_image, [(10, 12)] * 2)
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(InputError, match="with --cache-gib 0"):
        cached(images, tmp_path)


def tiny(epochs: int = 2):
    recipe = named_recipe("simo", "smoke")
    return replace(
        recipe,
        data=replace(recipe.data, image_size=8),
        method=replace(recipe.method, count=3),
        training=replace(recipe.training, num_queries=4, epochs=epochs, log_every=1, save_every=1),
    )


def photos(tmp_path: Path, save_image, count: int = 16) -> Path:
    """Of two sizes: small images of one size are kept in memory, without a cache."""
    files(tmp_path, save_image, [(60, 48), (64, 48)] * (count // 2))
    return tmp_path / "photos"


@pytest.mark.end_to_end
def test_a_run_with_a_cache_stopped_and_resumed_equals_one_never_stopped(tmp_path, save_image):
    folder = photos(tmp_path, save_image)
    train(folder, tiny(), out=tmp_path / "whole")
    train(
        folder,
        tiny(),
        out=tmp_path / "cut",
        show=lambda report: os.kill(os.getpid(), signal.SIGTERM) if report.step == 3 else None,
    )
    began = RunDirectory(tmp_path / "cut").read_environment()
    assert (began["cache_side"], began["cached"]) == (18, True)
    assert any((tmp_path / "cut" / "cache").glob("*.pixels"))
    resume(tmp_path / "cut")
    runs = [RunDirectory(tmp_path / name) for name in ("whole", "cut")]
    first, second = (read_checkpoint(run.last)["method"] for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].read_metrics() == runs[1].read_metrics()
    assert not (tmp_path / "whole" / "cache").exists()  # complete: nobody reads it again


@pytest.mark.end_to_end
def test_a_run_resumes_with_or_without_a_cache_as_it_began(tmp_path, save_image, monkeypatch):
    folder = photos(tmp_path, save_image)
    stop = {"show": lambda report: os.kill(os.getpid(), signal.SIGTERM)}
    filled: list[Path] = []
    monkeypatch.setattr("eqco.assembly.runs.fill_cache", lambda images: filled.append(images))
    train(folder, tiny(), out=tmp_path / "off", cache_gib=0, **stop)
    resume(tmp_path / "off")
    too_small = train(folder, tiny(), out=tmp_path / "small", cache_gib=1e-6, **stop)
    assert too_small.step == 1
    resume(tmp_path / "small")
    assert not filled
    with pytest.raises(InputError, match=r"cache_gib=-1; it must be 0"):
        train(folder, tiny(), out=tmp_path / "refused", cache_gib=-1)


@pytest.mark.end_to_end
def test_two_processes_share_the_cache_of_the_first(warm, tmp_path, save_image):
    folder = photos(tmp_path, save_image)
    settings = ["--training.num-queries", "4", "--method.count", "3", "--training.epochs", "2"]
    command = ["-m", "eqco", "train", folder, "--profile", "smoke", *settings]
    for count in (1, 2):
        done = ended(start(warm, [*command, "--out", tmp_path / str(count)], count))
        assert [code for code, *_ in done] == [0] * count, done
        said = "".join(said for _, said, _ in done)
        assert "images are decoded once, their shorter side shrunk to 36 pixels" in said
        assert said.count("decoded once") == 1
    one, two = (read_checkpoint(RunDirectory(tmp_path / each).last)["method"] for each in "12")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-4, msg=name)
