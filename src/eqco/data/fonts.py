"""Fonts for names in any script: what is installed, and what to draw where nothing fits."""

import re
import sys
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

# Hangul; radicals, kana and ideographs; Hangul syllables; compatibility forms; further ideographs
EAST_ASIAN = re.compile(
    r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
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
    missing = {each for each in text if not any(ord(each) in own for own in letters)}
    if families is None and any(EAST_ASIAN.match(each) for each in missing):
        hint_at_fonts()
    return "".join(escaped(each) if each in missing else each for each in text)


@cache  # once is enough
def hint_at_fonts() -> None:
    """Say what to install where Chinese, Japanese or Korean names cannot be drawn."""
    from matplotlib import get_cachedir

    print(
        f"Names are drawn by the numbers of their letters, since no installed font has these. "
        f"Install one, such as Debian's fonts-noto-cjk or Fedora's google-noto-sans-cjk-fonts, and "
        f"delete {get_cachedir()}, where matplotlib keeps its list of fonts.",
        file=sys.stderr,
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
