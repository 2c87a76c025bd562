"""Decodes damaged images, one after another: python decode_many.py KIND SEED COUNT FILE.

A process of its own, so that a crash of a decoder is seen. Prints how many were refused.
"""

import contextlib
import io
import random
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from eqco.data.decoding import UnreadableImageError, decode_bytes, image_size

FORMATS = {
    "jpeg": [{}, {"progressive": True}, {"quality": 95, "subsampling": 0}, {"optimize": True}],
    "png": [{}, {"optimize": True}, {"compress_level": 0}],
    "others": ["GIF", "WEBP", "TIFF", "BMP", "PPM"],
}


def originals(kind: str) -> list[bytes]:
    """Whole files of a kind: colour, grey, palette, with orientation and transparency."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((40, 30), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    files = []
    for choice in FORMATS[kind]:
        named, options = (choice, {}) if isinstance(choice, str) else (kind.upper(), choice)
        modes = {"jpeg": ["RGB", "L", "CMYK"], "png": ["RGB", "L", "P", "RGBA", "I;16", "1"]}
        for mode in modes.get(kind, ["RGB", "L"]):
            changed = image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)
            buffer = io.BytesIO()
            turned = {"exif": exif} if kind != "others" and mode in ("RGB", "L") else {}
            changed.save(buffer, named, **options, **turned)
            files.append(buffer.getvalue())
    return files


def damage(files: list[bytes], draw: random.Random) -> bytes:
    """Flip bits, cut, splice, repeat, or write large numbers, a few times."""
    data = bytearray(draw.choice(files))
    for _ in range(draw.choice([1, 1, 1, 2, 5, 20])):
        if not data:
            break
        place = draw.randrange(len(data))
        # the header is where a little does much
        if draw.random() < 0.5:
            place = min(place, draw.randrange(64))
        kind = draw.randrange(7)
        if kind <= 1:
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data[place : place + 4] = draw.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
        elif kind == 3:
            data = data[:place]
        elif kind == 4:
            other = draw.choice(files)
            data[place:] = other[draw.randrange(len(other)) :]
        elif kind == 5:
            del data[place : place + draw.randrange(1, 40)]
        else:
            data[place:place] = data[place : place + draw.randrange(1, 40)]
    if draw.random() < 0.5:
        mend_checksums(data)
    return bytes(data)


def mend_checksums(data: bytearray) -> None:
    """Let the chunks of a PNG pass their first test, so that what lies behind it is tried."""
    place = 8
    while data[:4] == b"\x89PNG" and place + 12 <= len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        if end + 4 > len(data):
            return
        data[end : end + 4] = zlib.crc32(data[place + 4 : end]).to_bytes(4, "big")
        place = end + 4


def main(kind: str, seed: int, count: int, path: Path) -> None:
    """Every one is an RGB image or refused by name."""
    files, draw, refused = originals(kind), random.Random(seed), 0
    for original in files:
        assert decode_bytes(original, "whole").mode == "RGB"
    warnings.simplefilter("ignore")
    for number in range(count):
        data = damage(files, draw)
        try:
            image = decode_bytes(data, "damaged")
            assert image.mode == "RGB", (number, image.mode)
            assert image.width * image.height > 0, number
        except UnreadableImageError:
            refused += 1
        if number % 10 == 0:
            path.write_bytes(data)
            with contextlib.suppress(UnreadableImageError):
                image_size(path)
    print(refused)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
