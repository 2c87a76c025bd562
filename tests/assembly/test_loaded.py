"""An image prepared for an encoder is the same from a file as from memory."""

import numpy as np
import pytest
import torch
from PIL import Image

from eqco.assembly.loaded import prepare_image
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
