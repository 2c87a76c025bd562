"""Features of a frozen encoder: those of the images in their order, however they are decoded."""

import numpy as np
import pytest
import torch
from PIL import Image

from eqco.data import open_source
from eqco.evaluation import extract_features


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
