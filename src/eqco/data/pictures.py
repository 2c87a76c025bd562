"""Pictures to look at before training: a contact sheet, and originals beside their views."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from eqco.data.bands import from_array, to_picture
from eqco.data.decoding import PICTURES, UnreadableImageError
from eqco.data.fonts import caption_font, drawable
from eqco.data.pipelines import Pipeline
from eqco.data.sources import Split
from eqco.data.steps import StepLoader
from eqco.data.stored import OnUnreadable
from eqco.data.views import ViewSpec
from eqco.runtime.atomic_files import atomic_write
from eqco.runtime.errors import InputError

__all__ = ["check_picture_name", "contact_sheet", "save_picture", "views_picture"]

GAP = 4
TEXT = 18  # height of a line
PAPER, INK = (255, 255, 255), (40, 40, 40)
MAX_ROWS = 20


def check_picture_name(path: Path) -> None:
    """Refuse a file that a picture cannot be written to, before it is drawn."""
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"{str(path)!r} does not end as a picture does; call it {path.stem}.png.")


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a picture whole or not at all, in the format that its name says."""
    with atomic_write(path) as partial:
        picture.save(partial, format=Image.registered_extensions()[path.suffix.lower()])


def contact_sheet(split: Split, columns: int = 10, tile: int = 64) -> Image.Image:
    """The first images of each class, a row per class; of an unlabelled split, the first images.

    At most 20 rows; the last line says how many classes are not shown.
    """
    rows: list[tuple[str, list[Image.Image]]] = []
    if split.labels is None:
        images = first_readable(split, range(len(split)), columns * 10)
        rows = [("", images[i : i + columns]) for i in range(0, len(images), columns)]
    else:
        for label, name in list(enumerate(split.classes))[:MAX_ROWS]:
            members = (split.labels == label).nonzero()[:, 0].tolist()
            rows.append((f"{name} ({len(members)})", first_readable(split, members, columns)))
    title = f"{split.name}: {len(split)} images"
    if len(split.classes) > MAX_ROWS:
        title += f", {MAX_ROWS} of {len(split.classes)} classes"
    return grid(title, rows, tile)


def views_picture(
    split: Split,
    pipeline: Pipeline,
    *,
    size: int,
    seed: int = 0,
    num_images: int = 8,
    num_views: int = 8,
    on_unreadable: OnUnreadable = "error",
    title: str = "",
) -> Image.Image:
    """Originals in the first column, views as training would see them beside them."""
    if not 1 <= num_images <= len(split):
        raise InputError(
            f"images={num_images}, but the split {split.name!r} has {len(split)} images; "
            f"choose from 1 to {len(split)}."
        )
    loader = StepLoader(
        split,
        [ViewSpec(pipeline, size)] * num_views,
        num_queries=num_images,
        seed=seed,
        on_unreadable=on_unreadable,
    )
    (batch,) = loader.micro_batches(0)
    rows = []
    for row, number in enumerate(batch.index.tolist()):
        pictures = [as_picture(view[row], pipeline) for view in batch.views]
        rows.append(("", [to_picture(split.images.read(number)), *pictures]))
    tile = max(64, min(size, 128))
    return grid(title, rows, tile, after_first=3 * GAP)


def first_readable(split: Split, numbers: Sequence[int], count: int) -> list[Image.Image]:
    """The first `count` of these images that can be read."""
    images: list[Image.Image] = []
    for number in numbers:
        # what cannot be read is listed elsewhere; a sheet shows what there is
        with suppress(UnreadableImageError):
            images.append(to_picture(split.images.read(number)))
        if len(images) == count:
            break
    return images


def as_picture(view: Tensor, pipeline: Pipeline) -> Image.Image:
    """A view, (C, H, W), with its normalisation undone; of many bands, see `to_picture`."""
    mean, std = (torch.tensor(each)[:, None, None] for each in pipeline.normalisation(len(view)))
    pixels = (view.float().cpu() * std + mean).clamp(0, 1).mul(255).round()
    return to_picture(from_array(pixels.permute(1, 2, 0).numpy().astype(np.uint8)))


def grid(
    title: str, rows: Sequence[tuple[str, list[Image.Image]]], tile: int, after_first: int = GAP
) -> Image.Image:
    """Rows of square tiles, each under its caption."""
    columns = max(len(images) for _, images in rows)
    captions = TEXT if any(caption for caption, _ in rows) else 0
    width = 2 * GAP + columns * (tile + GAP) - GAP + (after_first - GAP)
    title, rows = drawable(title), [(drawable(caption), images) for caption, images in rows]
    font = caption_font(title)
    width = max(width, round(font.getlength(title)) + 2 * GAP)
    height = 2 * GAP + TEXT + len(rows) * (tile + GAP + captions)
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, GAP), title, fill=INK, font=font)
    top = GAP + TEXT
    for caption, images in rows:
        pen.text((GAP, top + 2), caption, fill=INK, font=caption_font(caption))
        left = GAP
        for column, image in enumerate(images):
            fitted = fit(image, tile)
            inset = (tile - fitted.width) // 2, (tile - fitted.height) // 2
            sheet.paste(fitted, (left + inset[0], top + captions + inset[1]))
            left += tile + (GAP if column else after_first)
        top += tile + GAP + captions
    return sheet


def fit(image: Image.Image, tile: int) -> Image.Image:
    """Inside a tile; small images are enlarged with their pixels left visible."""
    scale = tile / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    kind = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return image.resize((width, height), kind)
