"""Squares and discs on noise: a data set of seconds, to try a detector on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

__all__ = ["write_squares"]

CLASSES = ("square", "disc")
COLOURS = ((220, 70, 60), (60, 110, 220))


def write_squares(
    folder: Path,
    *,
    images: dict[str, int],
    side: int = 96,
    objects: int = 3,
    seed: int = 0,
) -> Path:
    """Write a data set in COCO's form; the same bytes for the same arguments. Returns the folder.

    `images` says how many there are of each split; each has at most `objects`, some have none.
    """
    rng = np.random.default_rng(seed)
    for split, count in images.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        listed: list[dict[str, Any]] = []
        boxes: list[dict[str, Any]] = []
        for number in range(count):
            pixels = rng.normal(128, 12, (side, side, 3)).clip(0, 255).astype(np.uint8)
            picture = Image.fromarray(pixels)
            pen = ImageDraw.Draw(picture)
            for _ in range(int(rng.integers(0, objects + 1))):
                length = int(rng.integers(side // 6, side // 3))
                left, top = (int(v) for v in rng.integers(0, side - length, 2))
                kind = int(rng.integers(len(CLASSES)))
                draw = pen.rectangle if kind == 0 else pen.ellipse
                draw((left, top, left + length - 1, top + length - 1), fill=COLOURS[kind])
                boxes.append(
                    {
                        "id": len(boxes) + 1,
                        "image_id": number,
                        "category_id": kind + 1,
                        "bbox": [left, top, length, length],
                        "area": length**2,
                        "iscrowd": 0,
                    }
                )
            name = f"{number:04d}.png"
            picture.save(folder / split / name)
            listed.append({"id": number, "file_name": name, "width": side, "height": side})
        categories = [{"id": place, "name": name} for place, name in enumerate(CLASSES, start=1)]
        content = {"images": listed, "annotations": boxes, "categories": categories}
        (folder / f"instances_{split}.json").write_text(json.dumps(content))
    return folder
