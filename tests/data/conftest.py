"""Small image folders for the tests of this room."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SHARED = Path(__file__).parents[2].parent / "shared"


def save(path: Path, size: tuple[int, int] = (24, 20), seed: int = 0) -> Path:
    """A colourful PNG or JPEG of that width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def save_image() -> Callable[..., Path]:
    """Writes a colourful image file and returns its path."""
    return save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes in train and test, images of many sizes: stays on disk."""
    number = 0
    for split, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog"):
            for i in range(count):
                size = (20 + number, 30 + number % 5)
                save(tmp_path / "pets" / split / name / f"{i}.png", size, seed=number)
                number += 1
    return tmp_path / "pets"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The research data beside the repository, where they are."""
    if not (SHARED / "data").is_dir():
        pytest.skip("the research data sets are not beside this repository")
    return SHARED / "data"
