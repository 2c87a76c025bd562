"""Average precision by COCO's definition, computed by pycocotools."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from eqco.detection.annotations import AnnotatedImages, Objects
from eqco.runtime.errors import MissingExtraError

__all__ = ["METRICS", "Detections", "Scores", "average_precision", "require_pycocotools"]

# in the order in which pycocotools gives them first
METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


class Detections(NamedTuple):
    """What a detector found in one image."""

    boxes: Tensor  # left, top, right, bottom in pixels of the image on disk, (n, 4)
    labels: Tensor  # 1 for the first class, (n,)
    scores: Tensor  # higher is surer, (n,)


@dataclass(frozen=True)
class Scores:
    """Between 0 and 1; a number that nothing was there to measure by is left out."""

    overall: dict[str, float]  # those of METRICS
    classes: dict[str, dict[str, float]]  # AP and AP50 of each class


def require_pycocotools() -> None:
    """Refuse where average precision could not be measured: called before hours of training."""
    try:
        import pycocotools.cocoeval  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pycocotools", "detection") from error


def average_precision(found: Sequence[Detections], images: AnnotatedImages) -> Scores:
    """AP over IoU from 0.50 to 0.95 and at most 100 boxes an image, and its parts.

    Small, medium and large are below 32², below 96² and above 96² pixels of the image on disk.
    """
    require_pycocotools()
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools talks while it works
        truth = as_coco(images, [images.objects(number) for number in range(len(images))])
        evaluation = COCOeval(truth, as_coco(images, found), "bbox")
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


def as_coco(images: AnnotatedImages, boxes: Sequence[Objects | Detections]) -> Any:
    """The annotated or detected boxes of each image, as pycocotools holds them."""
    from pycocotools.coco import COCO

    annotations: list[dict[str, Any]] = []
    for number, each in enumerate(boxes):
        columns = {name: column.tolist() for name, column in each._asdict().items()}
        for row in zip(*columns.values(), strict=True):
            entry = dict(zip(columns, row, strict=True))
            left, top, right, bottom = entry["boxes"]
            width, height = right - left, bottom - top
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": entry["labels"],
                    "bbox": [left, top, width, height],
                    "area": entry.get("areas", width * height),
                    "iscrowd": int(entry.get("crowd", False)),
                    "score": entry.get("scores", 1.0),
                }
            )
    coco = COCO()
    coco.dataset = {
        "images": [{"id": number} for number in range(len(images))],
        "categories": [{"id": label} for label in range(1, len(images.classes) + 1)],
        "annotations": annotations,
    }
    coco.createIndex()
    return coco
