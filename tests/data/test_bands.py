"""Images of 1, 2, 4 or 13 bands: read as they are, cut and blurred alike, colours left out."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from torchvision.transforms.v2 import functional as tv

from eqco.data import Augment, Pipeline, draw_parameters, evaluation_view, open_source
from eqco.data.albums import open_album
from eqco.data.bands import COLOUR, Bands, Layout, from_array
from eqco.data.decoding import UnreadableImageError, find_layout, read_header, read_image
from eqco.data.images import MemoryImages
from eqco.data.loading import EvaluationLoader
from eqco.data.pictures import contact_sheet, views_picture
from eqco.data.pipelines import MOCO_V1, MOCO_V2, PIPELINES, SIMCLR
from eqco.data.sources import Source, Split
from eqco.data.steps import StepLoader
from eqco.data.views import ViewSpec
from eqco.runtime.errors import InputError

COUNTS = [1, 2, 4, 13]
bands = pytest.mark.parametrize("channels", COUNTS)


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save_arrays(folder: Path, arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
    return folder


def write_tiff(path: Path, array: np.ndarray, *, photometric: int = 1, extra: int = 0) -> Path:
    """An uncompressed TIFF of one strip, (H, W, C) of uint8 or uint16: tags by the book."""
    height, width, channels = array.shape
    data = np.ascontiguousarray(array).tobytes()
    colours = 3 if photometric == 2 else 1
    tags = [
        (256, (width,)),
        (257, (height,)),
        (258, (8 * array.itemsize,) * channels),
        (259, (1,)),  # no compression
        (262, (photometric,)),
        (273, None),  # where the strip begins
        (277, (channels,)),
        (278, (height,)),
        (279, (len(data),)),
        (284, (1,)),  # samples of a pixel side by side
        *([(338, (extra,) * (channels - colours))] if channels > colours else []),
    ]
    place = 8 + 2 + 12 * len(tags) + 4
    tail = b""
    entries = b""
    for tag, values in tags:
        if values is None:
            entries += struct.pack("<HHII", tag, 4, 1, 0xFFFFFFFF)
            continue
        kind, code = (3, "H") if tag != 279 else (4, "I")
        packed = struct.pack(f"<{len(values)}{code}", *values)
        if len(packed) > 4:
            entries += struct.pack("<HHII", tag, kind, len(values), place + len(tail))
            tail += packed
        else:
            entries += struct.pack("<HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    strip = struct.pack("<I", place + len(tail))
    entries = entries.replace(b"\xff\xff\xff\xff", strip)
    head = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + entries + b"\0\0\0\0" + tail + data)
    return path


# --- augmentation


@bands
@pytest.mark.parametrize("size", [24, 56])  # crops as matrix products, and in turn
def test_every_band_is_cut_flipped_and_blurred_as_if_it_were_alone(channels, size):
    pipeline = Pipeline(crop_scale=(0.2, 1.0), blur_probability=0.5)
    images = torch.from_numpy(pixels(6, channels, 40, 30))
    draws = draw_parameters(pipeline, 6, seed=0, step=0)
    views = Augment(pipeline, size)(images, draws)
    assert views.shape == (6, channels, size, size)
    for band in range(channels):
        alone = Augment(pipeline, size)(images[:, band : band + 1], draws)
        assert_close(views[:, band : band + 1], alone, rtol=0, atol=1e-6)


@bands
def test_cut_and_blur_of_a_band_are_those_of_a_colour(channels):
    """Draws do not depend on the bands: each is what red, green or blue would have become."""
    pipeline = Pipeline(
        crop_scale=(0.2, 1.0), blur_probability=0.5, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    images = torch.from_numpy(pixels(5, channels, 32, 32))
    draws = draw_parameters(pipeline, 5, seed=3, step=7)
    views = Augment(pipeline, 24)(images, draws)
    for band in range(channels):
        colour = images[:, band : band + 1].expand(-1, 3, -1, -1).contiguous()
        assert_close(views[:, band], Augment(pipeline, 24)(colour, draws)[:, 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("pipeline", [MOCO_V1, MOCO_V2, SIMCLR])
def test_one_band_is_jittered_as_torchvision_does_grey(pipeline):
    """Brightness and contrast, in the drawn order; hue and saturation do nothing to grey."""
    count = 24
    grey = torch.from_numpy(pixels(count, 1, 16, 16))
    draws = draw_parameters(pipeline, count, seed=1, step=0)
    views = Augment(pipeline, 16).after_crop(grey, draws)  # 16 px: no blur
    for i in range(count):
        image = grey[i].float() / 255
        for operation in draws.order[i].tolist() if draws.jittered[i] else []:
            factor = float(draws.factors[i, operation])
            if operation == 0:
                image = tv.adjust_brightness(image, factor)
            elif operation == 1:
                image = tv.adjust_contrast(image, factor)
        if draws.flipped[i]:
            image = image.flip(2)
        assert_close(views[i], (image - 0.5) / 0.5, rtol=0, atol=3e-6)


@bands
def test_jitter_treats_each_band_as_one_of_its_own(channels):
    images = torch.from_numpy(pixels(9, channels, 16, 16))
    draws = draw_parameters(SIMCLR, 9, seed=2, step=1)
    views = Augment(SIMCLR, 16)(images, draws)
    for band in range(channels):
        alone = Augment(SIMCLR, 16)(images[:, band : band + 1], draws)
        assert_close(views[:, band : band + 1], alone, rtol=0, atol=1e-6)


def test_a_dark_band_is_not_driven_out_by_the_contrast_of_a_bright_one():
    images = torch.full((1, 2, 8, 8), 230, dtype=torch.uint8)
    images[:, 0] = torch.tensor([4, 8], dtype=torch.uint8).repeat(4)
    pipeline = Pipeline(crop_scale=(1, 1), crop_aspect=(1, 1), jitter_probability=1, contrast=0.8)
    draws = draw_parameters(pipeline, 1, seed=0, step=0)
    dark = Augment(pipeline, 8)(images, draws)[0, 0] * 0.5 + 0.5
    factor = float(draws.factors[0, 1])
    # mean 6 of 4 and 8, which lie 2 from it: 6 ± 2·factor
    assert_close(dark.mean(), torch.tensor(6 / 255), rtol=1e-4, atol=0)
    assert_close((dark.max() - dark.min()) * 255, torch.tensor(4 * factor), rtol=1e-3, atol=0)


def test_what_is_left_out_is_named_where_the_pipeline_has_it():
    for name, pipeline in PIPELINES.items():
        assert pipeline.left_out(3) == ()
        colours = pipeline.jitter_probability > 0
        expected = ("saturation", "hue", "greyscale") if colours else ()
        expected += ("RandAugment's colour",) * (name == "infomin")
        assert [pipeline.left_out(channels) for channels in COUNTS] == [expected] * 4
    assert Pipeline(crop_scale=(1, 1), grayscale_probability=0.1).left_out(1) == ("greyscale",)


def test_normalisation_is_imagenets_of_three_and_a_half_of_others():
    assert MOCO_V2.normalisation(3) == (MOCO_V2.mean, MOCO_V2.std)
    assert MOCO_V2.normalisation(4) == ((0.5,) * 4, (0.5,) * 4)
    own = Pipeline(crop_scale=(1, 1), mean=(0.1, 0.2), std=(0.3, 0.4))
    assert own.normalisation(2) == ((0.1, 0.2), (0.3, 0.4))
    with pytest.raises(InputError, match=r"has 2 numbers, but the images have 4 bands"):
        own.normalisation(4)
    with pytest.raises(InputError, match="one of each per band"):
        Pipeline(crop_scale=(1, 1), mean=(0.1,))
    white = torch.full((1, 4, 8, 8), 255, dtype=torch.uint8)
    assert evaluation_view(white, 8, MOCO_V2).unique().tolist() == [1.0]


# --- files


@bands
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_npy_is_taken_as_it_is(tmp_path, channels, kind):
    eight = [pixels(20, 24, channels, seed=n) for n in range(3)]
    scale = {np.uint8: 1, np.uint16: 257, np.float32: np.float32(1 / 255)}[kind]
    arrays = [each.astype(kind) * kind(scale) for each in eight]
    source = open_source(save_arrays(tmp_path / "set", arrays))
    images = source["train"].images
    assert source.channels == images.channels == channels
    assert isinstance(images, MemoryImages)
    found = images.pixels.permute(0, 2, 3, 1).numpy()
    if kind is np.uint8:
        assert (found == np.stack(eight)).all()
    else:
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.stack(eight) / 255, rtol=0, atol=1e-7)


@pytest.mark.parametrize("memory_gib", [0.0, 2.0])
def test_three_bands_of_npy_are_the_same_set_as_the_pictures(tmp_path, memory_gib):
    """To the bit: RGB from npy, from PNG, on disk and in memory."""
    arrays = [pixels(30, 26, 3, seed=n) for n in range(4)]
    save_arrays(tmp_path / "npy", arrays)
    (tmp_path / "png").mkdir()
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(tmp_path / "png" / f"{number}.png")
    views = []
    for kind in ("npy", "png"):
        split = open_source(tmp_path / kind, memory_gib=memory_gib)["train"]
        loader = StepLoader(split, 2 * [ViewSpec(MOCO_V2, 20)], num_queries=4, seed=0)
        (batch,) = loader.micro_batches(0)
        views.append(torch.cat(batch.views))
    assert torch.equal(*views)


@bands
@pytest.mark.parametrize("deep", [False, True])
def test_a_band_cut_on_disk_is_cut_as_a_colour_would_be(tmp_path, channels, deep):
    arrays = [pixels(30, 26, channels, seed=n) for n in range(4)]
    kept = [each.astype(np.uint16) * 257 for each in arrays] if deep else arrays
    pipeline = Pipeline(crop_scale=(0.2, 1), blur_probability=0.5, mean=(0.5,) * 3, std=(0.5,) * 3)
    save_arrays(tmp_path / "bands", kept)
    save_arrays(tmp_path / "colour", [np.repeat(each[:, :, :1], 3, axis=2) for each in arrays])
    views = []
    for kind in ("bands", "colour"):
        split = open_source(tmp_path / kind, memory_gib=0)["train"]
        loader = StepLoader(split, [ViewSpec(pipeline, 20)], num_queries=4, seed=0)
        (batch,) = loader.micro_batches(0)
        views.append(batch.views[0][:, 0])
        (evaluated, _), *_ = EvaluationLoader(split, size=20)
        assert evaluated.shape == (4, channels if kind == "bands" else 3, 20, 20)
    # eight bits are rounded after the cut, twice (rows, then columns); floating point is not
    assert_close(*views, rtol=0, atol=2 * 1.01 / 255 if deep else 0)


def test_pictures_are_colour_unless_one_channel_is_requested(tmp_path):
    for number in range(3):
        Image.fromarray(pixels(9, 8, seed=number)).save(tmp_path / f"{number}.png")
    assert open_source(tmp_path).channels == 3
    one = open_source(tmp_path, channels=1)["train"].images
    assert one.channels == 1
    assert (one.pixels[2, 0].numpy() == pixels(9, 8, seed=2)).all()
    Image.fromarray(pixels(9, 8, 3)).save(tmp_path / "3.png")
    assert open_source(tmp_path).channels == 3
    with pytest.raises(InputError, match=r"3.png .*it has 3 bands of 8 bits, and its set has 1 ba"):
        open_source(tmp_path, channels=1)
    with pytest.raises(InputError, match=r"channels=4, but .*0.png has 1 band of 8 bits"):
        open_source(tmp_path, channels=4)


@pytest.mark.parametrize(("mode", "channels"), [("LA", 2), ("RGBA", 4)])
def test_transparency_is_a_band_on_request(tmp_path, mode, channels):
    kept = pixels(9, 8, channels)
    Image.fromarray(kept, mode=None).save(tmp_path / "0.png")
    assert open_source(tmp_path).channels == 3
    images = open_source(tmp_path, channels=channels)["train"].images
    assert (images.pixels[0].permute(1, 2, 0).numpy() == kept).all()


def test_sixteen_bit_grey_is_one_deep_band_and_colour_on_request(tmp_path):
    deep = np.array([[0, 257, 13107, 65535]] * 4, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    images = open_source(tmp_path)["train"].images
    assert images.layout == Layout(1, deep=True)
    assert_close(images.pixels[0, 0, 0], torch.tensor([0, 1 / 255, 0.2, 1]))
    assert open_source(tmp_path, channels=3)["train"].images.pixels[0, :, 0, 1].tolist() == [1] * 3
    Image.fromarray(pixels(4, 4, 3)).save(tmp_path / "b.png")
    with pytest.raises(InputError, match=r"b.png .*3 bands of 8 .* as colour, pass --channels 3"):
        open_source(tmp_path)
    assert open_source(tmp_path, channels=3).channels == 3


def test_among_colour_pictures_sixteen_bit_grey_becomes_colour(tmp_path):
    Image.fromarray(pixels(4, 4, 3)).save(tmp_path / "a.png")
    Image.fromarray(np.full((4, 4), 25700, dtype=np.uint16)).save(tmp_path / "b.png")
    assert open_source(tmp_path)["train"].images.pixels[1].unique().tolist() == [100]


def test_a_floating_point_tiff_is_one_band(tmp_path):
    Image.fromarray(np.array([[0, 0.25], [0.5, 1]], np.float32)).save(tmp_path / "a.tiff")
    images = open_source(tmp_path)["train"].images
    assert images.pixels[0, 0].tolist() == [[0, 0.25], [0.5, 1]]


@pytest.mark.parametrize("channels", [2, 4, 13])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_a_tiff_of_bands_is_read_by_tifffile(tmp_path, channels, kind):
    pytest.importorskip("tifffile")
    eight = [pixels(10, 12, channels, seed=n) for n in range(2)]
    for number, array in enumerate(eight):
        kept = array.astype(kind) * kind(257 if kind is np.uint16 else 1)
        write_tiff(tmp_path / f"{number}.tif", kept)
    images = open_source(tmp_path)["train"].images
    assert images.layout == Layout(channels, deep=kind is np.uint16)
    found = images.pixels.permute(0, 2, 3, 1).numpy() * (1 if kind is np.uint8 else 255)
    np.testing.assert_allclose(found, np.stack(eight), atol=1e-4)


def test_bands_that_pillow_would_leave_out_are_not_lost_silently(tmp_path):
    """Red, green, blue and a fourth sample that is no transparency: Pillow reads three."""
    pytest.importorskip("tifffile")
    kept = pixels(10, 12, 4)
    write_tiff(tmp_path / "a.tif", kept, photometric=2)
    images = open_source(tmp_path)["train"].images
    assert (images.pixels[0].permute(1, 2, 0).numpy() == kept).all()
    write_tiff(tmp_path / "a.tif", kept, photometric=2, extra=2)  # transparency: a picture
    assert open_source(tmp_path).channels == 3


def test_without_tifffile_the_install_line_is_shown(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    path = write_tiff(tmp_path / "a.tif", pixels(10, 12, 13).astype(np.uint16))
    for policy in ("error", "skip"):
        with pytest.raises(InputError, match=r'has 13 bands, which .*pip install "\.\[tiff\]"'):
            open_source(tmp_path, on_unreadable=policy)
    with pytest.raises(UnreadableImageError, match="tifffile"):
        read_image(path, COLOUR)


def test_headers_tell_what_decoding_finds(tmp_path):
    np.save(tmp_path / "a.npy", pixels(9, 8, 5))
    Image.fromarray(pixels(9, 8)).save(tmp_path / "b.png")
    found = [read_header(tmp_path / name) for name in ("a.npy", "b.png")]
    assert [(each.height, each.width, each.layout) for each in found] == [
        (9, 8, Layout(5)),
        (9, 8, Layout(1)),
    ]
    assert find_layout([str(tmp_path / "b.png")]) == COLOUR
    assert find_layout([str(tmp_path / "missing.png"), str(tmp_path / "a.npy")]) == Layout(5)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pixels(4, 9, 8, 1), r"its shape is \(4, 9, 8, 1\); it must be \(height, width\)"),
        (pixels(9, 0), r"its shape is \(9, 0\)"),
        (pixels(9, 8).astype(np.int32), r"its type is int32; it must be uint8, uint16"),
        (pixels(9, 8) > 3, "its type is bool"),
        (np.full((9, 8), 1.5), r"from 1.5 to 1.5; floating point must lie in \[0, 1\]"),
        (np.full((9, 8), np.nan), "from nan to nan"),
        (np.linspace(-0.1, 1, 12).reshape(4, 3), "from -0.1 to 1"),
        (pixels(13, 32, 32), r"looks like \(bands, height, width\); .*moveaxis\(array, 0, 2\)"),
    ],
)
def test_npy_that_is_no_image_is_refused_with_value_and_limit(tmp_path, array, reason):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InputError, match=rf"a\.npy cannot be read: .*{reason}"):
        open_source(tmp_path)


def test_damaged_npy_is_refused_by_name(tmp_path):
    np.save(tmp_path / "whole.npy", pixels(40, 40, 4))
    whole = (tmp_path / "whole.npy").read_bytes()
    np.savez(tmp_path / "archive.npz", pixels(4, 4))
    for data in (b"", b"words", whole[:300], whole[:40], (tmp_path / "archive.npz").read_bytes()):
        (tmp_path / "bad.npy").write_bytes(data)
        for read in (read_header, lambda path: read_image(path, Layout(4))):
            with pytest.raises(UnreadableImageError, match=r"bad\.npy cannot be read"):
                read(tmp_path / "bad.npy")
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UnreadableImageError, match="Python objects"):
        read_header(tmp_path / "object.npy")
    with pytest.raises(UnreadableImageError, match="No such file"):
        read_image(tmp_path / "missing.npy", Layout(4))


@pytest.mark.parametrize("kind", ["npy", "tif"])
def test_damage_anywhere_gives_an_image_or_a_refusal(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "npy":
        np.save(path, pixels(9, 8, 5).astype(np.uint16))
    else:
        write_tiff(path, pixels(9, 8, 5).astype(np.uint16))
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole[: draw.integers(1, len(whole) + 1) if draw.random() < 0.3 else None])
        for place in draw.integers(0, min(len(data), 200), draw.integers(0, 4)):
            data[place] = draw.integers(256)
        path.write_bytes(data)
        for read in (read_header, lambda path: read_image(path, Layout(5, deep=True))):
            try:
                read(path)
            except UnreadableImageError:
                refused += 1
    assert refused


def test_a_file_of_other_bands_is_named_or_skipped(tmp_path):
    save_arrays(tmp_path, [pixels(9, 8, 13), pixels(9, 8, 13), pixels(9, 8, 4)])
    message = r"2\.npy cannot be read: it has 4 bands of 8 bits, and its set has 13 bands of 8 bits"
    for memory_gib in (0, 2):  # by its header, or decoded
        with pytest.raises(InputError, match=message):
            open_source(tmp_path, memory_gib=memory_gib)
    assert len(open_source(tmp_path, on_unreadable="skip")["train"]) == 2
    np.save(tmp_path / "2.npy", pixels(9, 8, 13).astype(np.uint16))
    with pytest.raises(InputError, match=r"2\.npy .*13 bands of 16 bits or floating point"):
        open_source(tmp_path)


def test_all_splits_have_the_bands_of_the_first(tmp_path):
    for split, channels in (("train", 2), ("test", 4)):
        for name in ("a", "b"):
            save_arrays(tmp_path / split / name, [pixels(9, 8, channels)])
    with pytest.raises(InputError, match=r"test.*it has 4 bands of 8 bits, and its set has 2"):
        open_source(tmp_path)
    splits = {
        str(n): Split(str(n), MemoryImages(torch.zeros(1, n, 2, 2, dtype=torch.uint8)), None)
        for n in (1, 2)
    }
    with pytest.raises(InputError, match=r"splits of own differ: 1 has 1 band of 8 bits, 2 has 2"):
        Source("own", splits)


def test_an_album_has_bands_too(tmp_path):
    save_arrays(tmp_path, [pixels(9, 8, 4)])
    (album,) = open_album(str(tmp_path))
    assert album.images.channels == 4
    assert isinstance(album.images.read(0), Bands)


# --- data sets in Python


@bands
def test_a_tensor_is_a_source(channels):
    tensor = torch.from_numpy(pixels(5, channels, 12, 10))
    source = open_source(tensor)
    assert source.channels == channels
    assert torch.equal(source["train"].images.pixels, tensor)
    assert_close(
        open_source(tensor.float() / 255)["train"].images.pixels, tensor / 255, rtol=0, atol=0
    )


def test_datasets_of_pictures_are_colour_and_of_arrays_as_they_are():
    grey = Image.fromarray(pixels(9, 8))
    assert open_source([(grey, 0)] * 2).channels == 3
    assert open_source([(grey, 0)] * 2, channels=1).channels == 1
    assert open_source([pixels(9, 8)] * 2).channels == 1
    assert open_source([pixels(9, 8, 4)] * 2).channels == 4
    with pytest.raises(InputError, match=r"item 1 of list .*it has 2 bands of 8 bits, and its set"):
        open_source([pixels(9, 8, 4), pixels(9, 8, 2)])
    with pytest.raises(InputError, match=r"channels=3, but item 0 of list has 4 bands"):
        open_source([pixels(9, 8, 4)], channels=3)


def test_tensors_of_bfloat16_are_taken_at_their_values():
    halves = torch.full((3, 9, 8), 0.5, dtype=torch.bfloat16)
    assert (open_source([halves] * 2)["train"].images.read(1).pixels == 0.5).all()


def test_names_have_their_channels(tmp_path):
    with pytest.raises(InputError, match="channels=1, but groceries can be had with 3"):
        open_source("groceries", channels=1)
    with pytest.raises(InputError, match="fashion-mnist can be had with 1 or 3"):
        open_source("fashion-mnist", channels=2, root=tmp_path)


def test_memory_takes_floating_point_in_range_alone():
    with pytest.raises(InputError, match=r"pixels from 0 to 2; floating point must lie in \[0, 1"):
        MemoryImages(torch.tensor([0.0, 2.0]).view(1, 1, 1, 2))
    with pytest.raises(InputError, match=r"torch.int64"):
        MemoryImages(torch.zeros(1, 1, 2, 2, dtype=torch.long))


# --- pictures


@bands
def test_bands_can_be_looked_at(channels):
    split = open_source(torch.from_numpy(pixels(4, channels, 32, 32)))["train"]
    assert contact_sheet(split).mode == "RGB"
    assert views_picture(split, MOCO_V2, size=32, num_images=2, num_views=2).mode == "RGB"


def test_resizing_bands_is_pillows_own():
    array = pixels(20, 30, 3)
    colour = Image.fromarray(array).crop((3, 2, 25, 18)).resize((8, 7), Image.Resampling.BILINEAR)
    own = Bands(array).crop((3, 2, 25, 18)).resize((8, 7), Image.Resampling.BILINEAR)
    assert (np.asarray(own) == np.asarray(colour)).all()
    assert isinstance(from_array(array), Image.Image)
