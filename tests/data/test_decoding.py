"""Every kind of image file loads as eight-bit RGB, or is refused by name."""

import io

import numpy as np
import pytest
from PIL import Image

from eqco.data import decoding
from eqco.data.decoding import (
    UnreadableImageError,
    decode,
    decode_bytes,
    image_size,
    read_header_bytes,
)


def pixels(path) -> np.ndarray:
    return np.asarray(decode(path))


def test_grey_is_repeated(tmp_path):
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert (pixels(tmp_path / "grey.png") == grey[:, :, None]).all()


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    deep = np.array([[0, 257, 25700, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert pixels(tmp_path / "deep.png")[0, :, 0].tolist() == [0, 1, 100, 255]


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "1", "CMYK", "YCbCr"])
def test_other_kinds_of_pixel_become_rgb(tmp_path, mode):
    colour = Image.new("RGB", (6, 5), (255, 255, 255))
    path = tmp_path / ("image.jpg" if mode in ("CMYK", "YCbCr") else "image.png")
    colour.convert(mode).save(path)
    assert pixels(path).shape == (5, 6, 3)
    assert pixels(path).min() >= 250


def test_a_palette_with_transparency_loads(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    image.save(tmp_path / "clear.png", transparency=b"\x00\xff")
    assert pixels(tmp_path / "clear.png")[0, 0].tolist() == [10, 200, 30]


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (8, 4))
    image.paste((255, 255, 255), (0, 0, 4, 4))  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    upright = pixels(tmp_path / "turned.jpg")
    assert upright.shape == (8, 4, 3)
    assert upright[0].min() > 200  # the white half is on top
    assert upright[-1].max() < 50
    assert image_size(tmp_path / "turned.jpg") == (8, 4)


def test_one_pixel_loads(tmp_path, save_image):
    save_image(tmp_path / "dot.png", (1, 1))
    assert pixels(tmp_path / "dot.png").shape == (1, 1, 3)


def test_a_still_gif_loads_and_an_animated_one_is_refused(tmp_path):
    frames = [Image.new("RGB", (4, 4), (value, 0, 0)) for value in (0, 100, 200)]
    frames[0].save(tmp_path / "still.gif")
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert pixels(tmp_path / "still.gif").shape == (4, 4, 3)
    for read in (decode, image_size):
        with pytest.raises(UnreadableImageError, match=r"moving.gif .* animation of 3 frames"):
            read(tmp_path / "moving.gif")


def test_of_a_jpeg_with_a_preview_behind_it_the_photo_is_read(tmp_path):
    photo, preview = Image.new("RGB", (16, 8), "white"), Image.new("RGB", (4, 2), "black")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to see it upright
    photo.save(tmp_path / "phone.jpg", "MPO", save_all=True, append_images=[preview], exif=exif)
    with Image.open(tmp_path / "phone.jpg") as opened:
        assert opened.n_frames == 2
    assert image_size(tmp_path / "phone.jpg") == (16, 8)
    assert pixels(tmp_path / "phone.jpg").shape == (16, 8, 3)
    assert pixels(tmp_path / "phone.jpg").min() > 250


def test_floating_point_pixels_are_refused(tmp_path):
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(UnreadableImageError, match=r"float.tiff .* 32-bit numbers \(mode F\)"):
        decode(tmp_path / "float.tiff")


def test_damaged_files_are_named_with_the_reason(tmp_path, save_image):
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "empty.jpg").write_bytes(b"")
    whole = save_image(tmp_path / "whole.jpg", (64, 64)).read_bytes()
    (tmp_path / "half.jpg").write_bytes(whole[: len(whole) // 2])
    for name, reason in (
        ("text.jpg", "its content is not that of an image"),
        ("empty.jpg", "the file is empty"),
        ("half.jpg", "truncated"),
        ("missing.jpg", "No such file"),
    ):
        with pytest.raises(UnreadableImageError, match=f"{name} cannot be read: .*{reason}"):
            decode(tmp_path / name)


def test_a_lack_of_memory_is_not_taken_for_damage(tmp_path, monkeypatch, save_image):
    path = save_image(tmp_path / "good.png")

    def without_memory(file):
        raise MemoryError

    monkeypatch.setattr(Image, "open", without_memory)
    for read in (decode, image_size):
        with pytest.raises(MemoryError):
            read(path)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("side", [9, 10**7])
def test_an_npy_that_announces_more_pixels_than_it_has_is_refused_by_name(side, version):
    """The larger one, of 300 TB, would not fit into memory."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros((8, 8, 3), dtype=np.uint8), version)
    whole = file.getvalue()
    assert np.asarray(decode_bytes(whole, "a.npy")).shape == (8, 8, 3)
    announced = f"({side}, {side}, 3), }}".encode()
    start = whole.index(b"(8, 8, 3), }")
    data = whole[:start] + announced + whole[start + len(announced) :]
    for read in (decode_bytes, read_header_bytes):
        with pytest.raises(UnreadableImageError, match=r"a\.npy .* bytes .* announced, 192 came"):
            read(data, "a.npy")


def test_decompression_bombs_are_refused_from_the_header(tmp_path, monkeypatch, save_image):
    path = save_image(tmp_path / "bomb.png", (40, 40))
    monkeypatch.setattr(decoding, "MAX_PIXELS", 1000)
    for read in (decode, image_size):
        with pytest.raises(UnreadableImageError, match="more than 1,000 pixels"):
            read(path)


def test_pillows_own_bomb_alarm_is_answered_too(tmp_path, monkeypatch, save_image):
    path = save_image(tmp_path / "bomb.png", (40, 40))
    for limit in (1000, 100):  # Pillow warns above the limit and raises above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(UnreadableImageError, match=r"bomb.png .*decompression bomb"):
            decode(path)


def test_avif_is_read_and_heic_is_named_with_what_reads_it(tmp_path):
    picture = Image.new("RGB", (20, 10), "red")
    picture.save(tmp_path / "a.avif")
    assert decode(tmp_path / "a.avif").size == (20, 10)
    (tmp_path / "b.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(UnreadableImageError, match=r"b\.HEIC cannot be read: .*pillow-heif"):
        decode(tmp_path / "b.HEIC")
    with pytest.raises(UnreadableImageError, match="pillow-heif"):
        image_size(tmp_path / "b.HEIC")
