"""Detections on a few images, beside the boxes that should be found."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from eqco.data.decoding import decode
from eqco.detection import AnnotatedImages, Detections

__all__ = ["detections_picture"]

GAP = 8
TEXT = 20
PAPER, INK = (255, 255, 255), (40, 40, 40)
# one for each class, told apart without red against green
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def detections_picture(
    images: AnnotatedImages,
    found: Sequence[Detections],
    *,
    rows: int = 3,
    above: float = 0.5,
    height: int = 300,
) -> Image.Image:
    """Images from the whole of the set: on the left the annotation, on the right what was found.

    Args:
        images: tested on.
        found: in each of them.
        rows: images shown, spread over the set.
        above: boxes of a higher score are shown.
        height: of each image, in pixels.
    """
    rows = min(rows, len(images))
    chosen = [round(place * (len(images) - 1) / max(rows - 1, 1)) for place in range(rows)]
    pairs = []
    for number in chosen:
        picture = decode(images.files[number])
        scale = height / picture.height
        picture = picture.resize((round(picture.width * scale), height))
        truth, each = images.objects(number), found[number]
        sure = each.scores > above
        pairs.append(
            (
                framed(picture, truth.boxes * scale, truth.labels.tolist(), []),
                framed(
                    picture,
                    each.boxes[sure] * scale,
                    each.labels[sure].tolist(),
                    each.scores[sure].tolist(),
                ),
            )
        )
    width = 3 * GAP + 2 * max(left.width for left, _ in pairs)
    sheet = Image.new("RGB", (width, 2 * TEXT + GAP + rows * (height + GAP)), PAPER)
    pen = ImageDraw.Draw(sheet)
    legend(pen, images.classes, width)
    pen.text((GAP, TEXT + 2), "annotated", fill=INK, font=ImageFont.load_default())
    pen.text(
        (width // 2 + GAP, TEXT + 2),
        f"found, score above {above:g}",
        fill=INK,
        font=ImageFont.load_default(),
    )
    for row, (left, right) in enumerate(pairs):
        top = 2 * TEXT + row * (height + GAP)
        sheet.paste(left, (GAP, top))
        sheet.paste(right, (width - GAP - right.width, top))
    return sheet


def legend(pen: ImageDraw.ImageDraw, classes: Sequence[str], width: int) -> None:
    """The classes in their colours, as many as fit."""
    font = ImageFont.load_default()
    left = float(GAP)
    for place, name in enumerate(classes):
        if left + font.getlength(name) + 2 * GAP > width:
            pen.text((left, 4), "…", fill=INK, font=font)
            return
        colour = PALETTE[place % len(PALETTE)]
        pen.rectangle((left, 6, left + 10, 16), outline=colour, width=2)
        pen.text((left + 14, 4), name, fill=INK, font=font)
        left += 14 + font.getlength(name) + 2 * GAP


def framed(
    picture: Image.Image, boxes: Tensor, labels: list[int], scores: list[float]
) -> Image.Image:
    """A copy of the picture with boxes in the colours of their classes, and scores if any."""
    copied = picture.copy()
    pen = ImageDraw.Draw(copied)
    font = ImageFont.load_default(size=9)
    for place, (box, label) in enumerate(zip(boxes.tolist(), labels, strict=True)):
        colour = PALETTE[(label - 1) % len(PALETTE)]
        left, top, right, bottom = box
        pen.rectangle((left, top, right, bottom), outline=colour, width=2)
        if scores:
            text = f"{scores[place]:.2f}"
            pen.rectangle((left, top, left + font.getlength(text) + 3, top + 11), fill=colour)
            pen.text((left + 2, top), text, fill=PAPER, font=font)
    return copied
