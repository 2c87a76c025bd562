"""An image prepared for an encoder is the same from a file as from memory."""

import io
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from eqco.assembly.loaded import LoadedEncoder, prepare_image
from eqco.data import UnreadableImageError
from eqco.encoders import Encoder, LightEncoder
from eqco.recipes import DataSettings, Recipe
from eqco.runtime.errors import InputError

BYTES = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "array", [BYTES, BYTES.astype(np.uint16) * 257, BYTES.astype(np.float32) / 255]
)
def test_an_npy_of_three_bands_is_taken_at_any_depth(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    prepared = prepare_image(tmp_path / "a.npy", 3, 16)
    assert prepared.shape == (1, 3, 16, 16)
    assert torch.equal(prepared, prepare_image(array, 3, 16))


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "I;16"])
def test_every_picture_is_colour_for_an_encoder_of_three_bands(mode, tmp_path):
    white = 65535 if mode == "I;16" else "white"
    Image.new(mode, (20, 24), white).save(tmp_path / "a.png")
    expected = prepare_image(np.full((24, 20, 3), 255, dtype=np.uint8), 3, 16)
    assert torch.equal(prepare_image(tmp_path / "a.png", 3, 16), expected)


def test_other_bands_than_the_encoders_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((8, 8, 4), dtype=np.uint8))
    with pytest.raises(InputError, match=r"a\.npy has 4 bands of 8 bits"):
        prepare_image(tmp_path / "a.npy", 3, 16)


@pytest.mark.parametrize(
    "grey",
    [
        BYTES[:, :, 0],
        BYTES[:, :, :1],
        torch.from_numpy(BYTES[:, :, 0]),
        torch.from_numpy(BYTES[:, :, 0])[None],
    ],
)
def test_a_grey_image_is_refused_with_the_code_that_makes_it_colour(grey):
    with pytest.raises(
        InputError, match=r"the encoder takes 3\. Give a grey image as colour"
    ) as no:
        prepare_image(grey, 3, 16)
    code = str(no.value).partition("as colour: ")[2].partition(". Arrays")[0]
    colour = eval(code, {"np": np, "image": grey})
    # as Pillow makes colour of a grey picture
    assert torch.equal(
        prepare_image(colour, 3, 16), prepare_image(Image.fromarray(BYTES[:, :, 0]), 3, 16)
    )


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    recipe = Recipe(data=DataSettings(image_size=16))
    return LoadedEncoder(Encoder(LightEncoder(), torch.nn.Identity()), recipe)


def encoded(kind):
    """The file of a picture."""
    file = io.BytesIO()
    Image.fromarray(BYTES).save(file, format=kind)
    return file


def truncated():
    """A picture whose file ends too early, which Pillow notices when its pixels are wanted."""
    return Image.open(io.BytesIO(encoded("jpeg").getvalue()[:-300]))


def closed():
    """A picture whose file was closed before anybody wanted its pixels."""
    with Image.open(encoded("png")) as picture:
        return picture


def broken_chunk():
    """A picture whose second chunk of pixels has no name, at which Pillow raises a SyntaxError."""
    whole = encoded("png").getvalue()
    start = whole.index(b"IDAT")
    ten = (10).to_bytes(4, "big") + whole[start : start + 4 + 10] + bytes(4)
    return Image.open(io.BytesIO(whole[: start - 4] + ten + bytes(4) + b"\xff" * 20))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (None, "is NoneType"),
        ([], "is list"),
        (BYTES[:, :, 0], "has 1 band of 8 bits, and the encoder takes 3"),
        (BYTES.astype(np.float32), "Divide by 255, or give uint8"),
        (BYTES.astype(np.int64), "its type is int64"),
        (Image.new("F", (20, 24)), "has 1 band of 16 bits or floating point"),
        (truncated(), "cannot be read: image file is truncated"),
        (closed(), "cannot be read: its file was closed before its pixels were read; call load()"),
        (broken_chunk(), "cannot be read: broken PNG file"),
        ([[[1, 2], [3]]], "is list: numpy cannot make an array of it (setting an array element"),
        (torch.zeros(3, 24, 20).to(torch.float8_e4m3fn), "numpy cannot make an array of it"),
        (SimpleNamespace(shape=(24, 20)), "is SimpleNamespace: its shape is ()"),
        ({"photo": BYTES}, "is dict: its shape is ()"),
    ],
)
def test_an_image_that_cannot_be_embedded_is_called_by_its_place(encoder, bad, message):
    """Also in the second of two batches."""
    with pytest.raises(InputError) as refused:
        encoder.embed([BYTES, BYTES, bad], batch_size=2)
    assert "images[2]" in str(refused.value)
    assert message in str(refused.value)


def test_an_image_in_memory_that_cannot_be_read_has_a_remedy_that_embed_has(encoder, tmp_path):
    with pytest.raises(UnreadableImageError) as refused:
        encoder.embed(truncated())
    assert str(refused.value).endswith("Give another, or leave it out.")
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    (tmp_path / "a.png").touch()
    with pytest.raises(UnreadableImageError, match=r"a\.png .* is empty\. Replace or remove it"):
        encoder.embed(tmp_path / "a.png")


def test_a_dict_that_names_its_image_is_one_image(encoder, tmp_path):
    """As a row of a Dataset is; also where it names a file."""
    expected = encoder.embed(BYTES)
    Image.fromarray(BYTES).save(tmp_path / "a.png")
    for image in (BYTES, Image.fromarray(BYTES), tmp_path / "a.png"):
        assert torch.equal(encoder.embed({"image": image, "label": 3}), expected)
        assert torch.equal(encoder.embed([{"img": image}]), expected)
    with pytest.raises(InputError, match=r"^the image has 1 band"):
        encoder.embed({"image": BYTES[:, :, 0]})


def test_an_image_that_is_given_alone_has_no_place(encoder):
    with pytest.raises(InputError, match=r"^the image has 1 band"):
        encoder.embed(BYTES[:, :, 0])
    with pytest.raises(InputError, match=r"^images\[0\] has 1 band"):
        encoder.embed(torch.zeros(2, 1, 24, 20))


def test_tensors_that_numpy_does_not_take_are_embedded(encoder):
    """Values that bfloat16 has exactly."""
    halves = torch.from_numpy(BYTES // 128).permute(2, 0, 1) / 2
    expected = encoder.embed(halves)
    assert torch.equal(encoder.embed(halves.bfloat16()), expected)
    assert torch.equal(encoder.embed([halves.clone().requires_grad_()]), expected)
