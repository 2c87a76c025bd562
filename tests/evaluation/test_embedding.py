"""Vectors of a folder: as the backbone gives them, in order, and the same after any stop."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from eqco.data import EvaluationLoader, Split, UnreadableImageError
from eqco.data.albums import open_album
from eqco.encoders import LightEncoder
from eqco.evaluation import embedding
from eqco.evaluation.embedding import Embedding, embed, parts_folder
from eqco.runtime.errors import InputError


@pytest.fixture
def photos(tmp_path):
    """Twenty-three pictures of many sizes in two classes, two levels deep."""
    random = np.random.default_rng(0)
    for number in range(23):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2] / "deep"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (30 + number, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(embedding, "PART", 6)


def how(**settings):
    torch.manual_seed(0)
    return Embedding(backbone=LightEncoder().eval(), size=32, batch_size=4, **settings)


def test_vectors_are_the_backbones_in_the_order_of_the_names(photos, tmp_path):
    (album,) = open_album(str(photos))
    shown = []
    done = embed(how(), [album], tmp_path / "features.npz", show=shown.append)
    assert (done.count, done.feature_dim, sum(shown)) == (23, 256, 23)
    with np.load(tmp_path / "features.npz", allow_pickle=False) as file:
        assert file["features"].dtype == np.float32
        assert file["names"].tolist() == list(album.names)
        assert file["classes"][file["labels"]].tolist() == [n.split("/")[0] for n in album.names]
        values = file["features"]
    loader = EvaluationLoader(Split("all", album.images, None), size=32, batch_size=1)
    with torch.no_grad():
        expected = torch.cat([how().backbone(images) for images, _ in loader])
    np.testing.assert_allclose(values, expected.numpy(), rtol=1e-4, atol=1e-6)
    assert not parts_folder(tmp_path / "features.npz").exists()


class Stopped(BaseException):
    """A stop that nothing catches."""


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("workers", [0, 1])
def test_stopped_and_resumed_is_byte_for_byte_never_stopped(photos, tmp_path, after, workers):
    albums = open_album(str(photos))
    embed(how(), albums, tmp_path / "whole.npz")
    out, calls = tmp_path / "features.npz", []

    def stop(count):
        calls.append(count)
        if len(calls) > after:
            raise Stopped

    with pytest.raises(Stopped):
        embed(how(workers=workers), albums, out, show=stop)
    assert not out.exists()
    kept = {path.name: path.stat().st_mtime_ns for path in parts_folder(out).iterdir()}
    assert len(kept) == after + 2  # a plan, and the parts
    embed(how(workers=workers), albums, out)
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_stop_in_the_middle_of_a_part_leaves_no_half_of_it(photos, tmp_path):
    albums, out = open_album(str(photos)), tmp_path / "features.npz"
    embed(how(), albums, tmp_path / "whole.npz")
    stopping = how()
    calls = []

    def stop(*_):
        calls.append(1)
        if len(calls) == 4:  # the second batch of the second part
            raise Stopped

    handle = stopping.backbone.register_forward_pre_hook(stop)
    with pytest.raises(Stopped):
        embed(stopping, albums, out)
    handle.remove()
    assert sorted(p.name for p in parts_folder(out).iterdir()) == ["000000.npz", "plan.json"]
    embed(stopping, albums, out)
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def stopped_once(how_, albums, out):
    def stop(count):
        raise Stopped

    with pytest.raises(Stopped):
        embed(how_, albums, out, show=stop)


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"normalise": True}, "normalise"),
        ({"size": 16}, "image_size"),
        ({"batch_size": 5}, "batch_size"),
        ({"precision": "bfloat16"}, "precision"),
        ({"backbone": LightEncoder()}, "weights"),
    ],
)
def test_parts_of_another_call_are_never_mixed_in(photos, tmp_path, change, differing):
    albums, out = open_album(str(photos)), tmp_path / "features.npz"
    stopped_once(how(), albums, out)
    settings = {"backbone": how().backbone, "size": 32, "batch_size": 4} | change
    with pytest.raises(InputError, match=rf"parts of another call \({differing} differ\)"):
        embed(Embedding(**settings), albums, out)
    embed(Embedding(**settings), albums, out, overwrite=True)
    embed(Embedding(**settings), albums, tmp_path / "whole.npz")
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_changed_image_is_noticed(photos, tmp_path):
    out = tmp_path / "features.npz"
    stopped_once(how(), open_album(str(photos)), out)
    Image.new("RGB", (32, 32)).save(photos / "cat" / "deep" / "00.png")
    with pytest.raises(InputError, match="images differ"):
        embed(how(), open_album(str(photos)), out)


def test_before_the_first_part_is_computed_an_unreadable_image_may_be_removed(photos, tmp_path):
    bad = photos / "cat" / "deep" / "00.png"
    bad.write_bytes(b"not an image")
    out = tmp_path / "features.npz"
    with pytest.raises(UnreadableImageError, match="Replace or remove it"):
        embed(how(), open_album(str(photos)), out)
    bad.unlink()
    assert embed(how(), open_album(str(photos)), out).count == 22


def test_unreadable_images_are_named_or_left_out_and_listed(photos, tmp_path):
    bad = photos / "cat" / "deep" / "04.png"
    bad.write_bytes(b"not an image")
    albums, out = open_album(str(photos)), tmp_path / "features.npz"
    with pytest.raises(UnreadableImageError, match=r"04\.png cannot be read"):
        embed(how(), albums, out)
    done = embed(how(on_unreadable="skip"), albums, out)  # resumes from what was done
    assert done.count == 22
    assert done.unreadable == [f"{bad}\tits content is not that of an image"]
    with np.load(out) as file:
        assert "cat/deep/04.png" not in file["names"]
        assert len(file["names"]) == len(file["labels"]) == len(file["features"]) == 22
    stopped_once(how(on_unreadable="skip"), albums, tmp_path / "second.npz")
    with pytest.raises(UnreadableImageError):
        embed(how(), albums, tmp_path / "second.npz")


def test_normalised_vectors_have_length_one(photos, tmp_path):
    albums = open_album(str(photos))
    embed(how(normalise=True), albums, tmp_path / "features.npz")
    with np.load(tmp_path / "features.npz") as file:
        lengths = np.linalg.norm(file["features"], axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)


class Broken(nn.Module):
    feature_dim = 3

    def forward(self, images):
        return images.mean((2, 3)) / 0


def test_features_that_are_not_finite_are_refused(photos, tmp_path):
    broken = Embedding(backbone=Broken(), size=16)
    with pytest.raises(InputError, match=r"the features of cat/deep/00\.png are not finite"):
        embed(broken, open_album(str(photos)), tmp_path / "features.npz")


def test_one_image_without_a_label_is_enough(tmp_path):
    (tmp_path / "one").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "one" / "a.png")
    embed(how(), open_album(str(tmp_path / "one")), tmp_path / "features.npz")
    with np.load(tmp_path / "features.npz") as file:
        assert sorted(file) == ["features", "names"]
        assert file["features"].shape == (1, 256)


def test_bad_places_are_refused(photos, tmp_path):
    albums = open_album(str(photos))
    with pytest.raises(InputError, match=r"written as \.npz"):
        embed(how(), albums, tmp_path / "features.csv")
    (tmp_path / "features.npz").write_text("precious")
    with pytest.raises(InputError, match="exists"):
        embed(how(), albums, tmp_path / "features.npz")
