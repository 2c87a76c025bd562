"""Features of a frozen encoder: those of the images in their order, however they are decoded."""

import numpy as np
import pytest
import torch
from PIL import Image

from eqco.data import open_source
from eqco.evaluation import extract_features
from eqco.evaluation.features import extract_several


@pytest.fixture
def split(tmp_path):
    """Five photographs of two classes, too large for the memory they may have."""
    for number in range(5):
        place = tmp_path / "train" / ("cat", "dog")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return open_source(tmp_path, memory_gib=0)["train"]


def test_processes_that_decode_change_nothing(split):
    alone, helped = (
        extract_features(torch.nn.Flatten(), split, size=8, batch_size=2, workers=workers)
        for workers in (0, 2)
    )
    assert torch.equal(alone.values, helped.values)
    assert alone.labels.tolist() == helped.labels.tolist() == [0, 0, 0, 1, 1]


def test_several_encoders_see_their_own_sizes_of_images_that_are_read_once(split, monkeypatch):
    mean = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    encoders = [(torch.nn.Flatten(), 8), (torch.nn.Flatten(), 16), (mean, 8)]
    alone = [extract_features(encode, split, size=size) for encode, size in encoders]
    read, kind = [], type(split.images)
    whole = kind.read
    monkeypatch.setattr(kind, "read", lambda self, n: read.append(n) or whole(self, n))
    for one, other in zip(alone, extract_several(encoders, split, batch_size=2), strict=True):
        assert torch.equal(one.values, other.values)
        assert torch.equal(one.labels, other.labels)
    assert read == [0, 1, 2, 3, 4]


def test_bfloat16_features_are_those_of_float32_to_their_rounding(split):
    """bfloat16 keeps 8 bits: a product of two rounded numbers is off by at most 2⁻⁷ or so."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 16))
    exact, rounded = (
        extract_features(network, split, size=8, precision=precision).values
        for precision in ("float32", "bfloat16")
    )
    assert rounded.dtype == torch.float32
    difference = (exact - rounded).norm() / exact.norm()
    assert 0 < difference < 2**-6
