"""Contact sheets of photos that were found: a photo and those most like it, near-duplicates."""

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from eqco.assembly.search import Match
from eqco.data.decoding import UnreadableImageError
from eqco.data.fonts import caption_font
from eqco.data.pictures import GAP, fit, grid, save_picture

__all__ = ["draw_groups", "draw_matches"]

TILE, LINE = 112, 16
MOST_ROWS, MOST_TILES = 40, 10

Picture = Callable[[Match], Image.Image]


def draw_matches(
    rows: Sequence[tuple[str, Image.Image, Sequence[Match]]], picture: Picture, path: Path
) -> Path:
    """Each photo that was searched for, and beside it what was found, with its similarity."""
    tiles = [
        (name, [tile(query, ""), *(match_tile(match, picture) for match in matches)])
        for name, query, matches in rows
    ]
    title = "a photo, then the photos most like it (1: the same, 0: unrelated)"
    save_picture(grid(title, tiles, TILE, after_first=4 * GAP), path)
    return path


def draw_groups(groups: Sequence[Sequence[Match]], picture: Picture, path: Path) -> Path:
    """A row for each group of near-duplicates, with the similarity to the first of it."""
    tiles = []
    for group in groups[:MOST_ROWS]:
        more = f", {MOST_TILES} shown" if len(group) > MOST_TILES else ""
        caption = f"{group[0].name}: {len(group)} photos{more}"
        tiles.append((caption, [match_tile(match, picture) for match in group[:MOST_TILES]]))
    title = f"{len(groups)} group{'s' * (len(groups) != 1)} of near-duplicates"
    if len(groups) > MOST_ROWS:
        title += f", {MOST_ROWS} shown"
    save_picture(grid(title, tiles, TILE), path)
    return path


def match_tile(match: Match, picture: Picture) -> Image.Image:
    """A photo that was found over its similarity; an empty place where it is gone."""
    try:
        image = picture(match)
    except UnreadableImageError:
        return tile(Image.new("RGB", (TILE, TILE), "#e6e6e6"), f"{match.similarity:.3f} gone")
    return tile(image, f"{match.similarity:.3f}")


def tile(image: Image.Image, words: str) -> Image.Image:
    """A square with the image and a line of words below it."""
    inner = fit(image, TILE - LINE)
    square = Image.new("RGB", (TILE, TILE), "white")
    square.paste(inner, ((TILE - inner.width) // 2, (TILE - LINE - inner.height) // 2))
    pen, font = ImageDraw.Draw(square), caption_font(words)
    left = (TILE - round(font.getlength(words))) // 2
    pen.text((left, TILE - LINE + 2), words, fill="#333333", font=font)
    return square
