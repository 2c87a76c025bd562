"""Fonts for names in any script: what is installed, and what to draw where nothing fits."""

from collections.abc import Sequence
from functools import cache

from PIL import ImageFont

__all__ = ["caption_font", "drawable", "font_families"]

FIRST = "DejaVu Sans"  # comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew
# by the words in the names of families that have Chinese, Japanese or Korean letters
WIDE = (
    *("CJK", "Han Sans", "Han Serif", "WenQuanYi", "YaHei", "SimHei", "SimSun", "PingFang"),
    *("Hiragino", "Yu Gothic", "Meiryo", "IPA", "Malgun", "Nanum", "Droid Sans Fallback"),
)


@cache
def font_families() -> list[str]:
    """Families to draw with, each for the letters that those before it lack."""
    from matplotlib.font_manager import fontManager

    installed = {entry.name for entry in fontManager.ttflist}
    return [FIRST, *sorted(name for name in installed if any(word in name for word in WIDE))]


@cache
def font_letters(family: str) -> tuple[str, frozenset[int]]:
    """The file of a family, and the letters in it."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    file = findfont(FontProperties(family=[family]))
    return str(file), frozenset(get_font(file).get_charmap())


def drawable(text: str, families: Sequence[str] | None = None) -> str:
    r"""The text, with letters that no installed font has as their numbers.

    >>> drawable("Äpfel"), drawable("猫", families=["DejaVu Sans"])
    ('Äpfel', '\\u732b')
    """
    letters = [font_letters(name)[1] for name in (families or font_families())]
    return "".join(
        each if any(ord(each) in own for own in letters) else escaped(each) for each in text
    )


def escaped(letter: str) -> str:
    """A letter by its number."""
    return letter.encode("ascii", "backslashreplace").decode()


def caption_font(text: str) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Pillow's own font, or where the text is not plain the first that has all its letters."""
    default = ImageFont.load_default()
    if text.isascii():
        return default
    for family in font_families():
        file, letters = font_letters(family)
        if all(ord(each) in letters for each in text):
            return ImageFont.truetype(file, 10)
    return default
