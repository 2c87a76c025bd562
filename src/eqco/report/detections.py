"""Detections on a few images, beside the boxes that should be found."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image

from eqco.data.decoding import decode
from eqco.detection import AnnotatedImages, Detections
from eqco.detection.annotations import Objects
from eqco.report.style import INK, save

__all__ = ["plot_detections"]

# one for each class, told apart without red against green
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
IN_LEGEND = 20  # classes


def plot_detections(
    images: AnnotatedImages,
    found: Sequence[Detections],
    path: Path,
    *,
    rows: int = 3,
    above: float = 0.5,
) -> Path:
    """Images spread over the set: on the left the annotation, on the right what was found.

    Args:
        images: tested on.
        found: in each of them.
        path: where the picture goes.
        rows: images shown.
        above: boxes of a higher score are shown.
    """
    rows = min(rows, len(images))
    figure = Figure(figsize=(7.5, 2.8 * rows + 0.6), layout="constrained", dpi=130)
    panels = figure.subplots(rows, 2, squeeze=False)
    for place, (left, right) in enumerate(panels):
        number = round(place * (len(images) - 1) / max(rows - 1, 1))
        picture, each = decode(images.files[number]), found[number]
        draw_boxes(left, picture, images.objects(number))
        draw_boxes(right, picture, Detections(*(column[each.scores > above] for column in each)))
    panels[0, 0].set_title("annotated", fontsize=9, color=INK)
    panels[0, 1].set_title(f"found, score above {above:g}", fontsize=9, color=INK)
    shown = images.classes[:IN_LEGEND]
    handles = [Patch(color=colour_of(label), label=name) for label, name in enumerate(shown, 1)]
    figure.legend(handles=handles, loc="outside upper center", ncols=6, fontsize=8, frameon=False)
    return save(figure, path)


def colour_of(label: int) -> str:
    """The colour of a class; 1 is the first."""
    return PALETTE[(label - 1) % len(PALETTE)]


def draw_boxes(panel: Axes, picture: Image.Image, boxes: Objects | Detections) -> None:
    """The picture with boxes in the colours of their classes, and scores if there are any."""
    panel.imshow(picture)
    panel.axis("off")
    scores = boxes.scores.tolist() if isinstance(boxes, Detections) else []
    for place, (left, top, right, bottom) in enumerate(boxes.boxes.tolist()):
        colour = colour_of(int(boxes.labels[place]))
        corner = (left, top)
        panel.add_patch(
            Rectangle(corner, right - left, bottom - top, fill=False, ec=colour, lw=1.2)
        )
        if scores:
            around = {"fc": colour, "ec": "none", "pad": 0.6}
            panel.text(*corner, f"{scores[place]:.2f}", fontsize=5, color="white", bbox=around)
