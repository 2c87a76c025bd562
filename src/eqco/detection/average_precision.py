"""Average precision by COCO's definition, computed by pycocotools."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from eqco.detection.annotations import AnnotatedImages
from eqco.runtime.errors import MissingExtraError

__all__ = ["METRICS", "Detections", "Scores", "average_precision", "require_pycocotools"]

# in the order in which pycocotools gives them first
METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


class Detections(NamedTuple):
    """What a detector found in one image."""

    boxes: Tensor
    """Left, top, right, bottom in pixels of the image as it is on disk, (n, 4)."""
    labels: Tensor
    """1 for the first class, (n,)."""
    scores: Tensor
    """Higher is surer, (n,)."""


@dataclass(frozen=True)
class Scores:
    """Between 0 and 1; a number that nothing was there to measure by is left out."""

    overall: dict[str, float]
    """AP, AP50, AP75, APs, APm, APl."""
    classes: dict[str, dict[str, float]]
    """AP and AP50 of each class."""


def require_pycocotools() -> None:
    """Refuse where average precision could not be measured: asked before hours of training."""
    try:
        import pycocotools.cocoeval  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pycocotools", "detection") from error


def average_precision(found: Sequence[Detections], images: AnnotatedImages) -> Scores:
    """AP over IoU from 0.50 to 0.95 and at most 100 boxes an image, and its parts.

    Small, medium and large are below 32², below 96² and above 96² pixels of the image on disk.
    """
    require_pycocotools()
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    assert len(found) == len(images)
    truth = COCO()
    truth.dataset = as_coco(images)
    rows = result_rows(found)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools talks while it works
        truth.createIndex()
        results = truth.loadRes(rows) if len(rows) else COCO()
        if not len(rows):
            results.dataset = {**truth.dataset, "annotations": []}
            results.createIndex()
        evaluation = COCOeval(truth, results, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    overall = dict(zip(METRICS, map(float, evaluation.stats[:6]), strict=True))
    precision = evaluation.eval["precision"]  # IoU, recall, class, size, boxes at most
    return Scores(
        overall={name: value for name, value in overall.items() if value >= 0},
        classes={
            name: {"AP": mean_precision(of_class), "AP50": mean_precision(of_class[0])}
            for place, name in enumerate(images.classes)
            for of_class in [precision[:, :, place, 0, -1]]
            if (of_class >= 0).any()
        },
    )


def mean_precision(precision: Any) -> float:
    """The mean over recalls and IoUs; -1 stands for a class without objects."""
    return float(precision[precision >= 0].mean())


def as_coco(images: AnnotatedImages) -> dict[str, Any]:
    """The objects as pycocotools reads them; images are numbered as they are here."""
    annotations: list[dict[str, Any]] = []
    for number in range(len(images)):
        objects = images.objects(number)
        for box, label, area, crowd in zip(*(column.tolist() for column in objects), strict=True):
            left, top, right, bottom = box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": label,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": area,
                    "iscrowd": int(crowd),
                }
            )
    return {
        "images": [
            {"id": number, "height": height, "width": width}
            for number, (height, width) in enumerate(images.sizes)
        ],
        "categories": [
            {"id": label, "name": name} for label, name in enumerate(images.classes, start=1)
        ],
        "annotations": annotations,
    }


def result_rows(found: Sequence[Detections]) -> Any:
    """Image, left, top, width, height, score, class: one row for each box."""
    rows = [np.empty((0, 7))]
    for number, each in enumerate(found):
        boxes = each.boxes.double().cpu().numpy()
        rows.append(
            np.column_stack(
                [
                    np.full(len(boxes), number),
                    boxes[:, :2],
                    boxes[:, 2:] - boxes[:, :2],
                    each.scores.double().cpu().numpy(),
                    each.labels.cpu().numpy(),
                ]
            )
        )
    return np.concatenate(rows)
