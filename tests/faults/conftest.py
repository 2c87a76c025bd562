"""Small pictures and short trainings."""

import numpy as np
import pytest
from faults.trainings import SMALL
from PIL import Image


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """48 pictures of one size, which a training holds in memory."""
    return draw(tmp_path_factory.mktemp("pictures"), sizes=1)


@pytest.fixture
def files(tmp_path):
    """48 pictures of several sizes, which a training reads again and again."""
    folder = tmp_path / "files"
    folder.mkdir()
    return draw(folder, sizes=5)


def draw(folder, sizes):
    for number in range(48):
        tiles = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(tiles).resize((20 + number % sizes, 24), Image.Resampling.NEAREST)
        image.save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="session")
def trained(warm, pictures, tmp_path_factory):
    """A run of three epochs: last.pt is of step 9, previous.pt of step 6. To be copied."""
    out = tmp_path_factory.mktemp("trained") / "run"
    command = warm.run("train", pictures, *SMALL, "--training.epochs", 3, "--out", out)
    assert command.code == 0, command.output
    return out
