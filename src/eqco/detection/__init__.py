"""Transfer to object detection: Faster R-CNN from pre-trained weights, and its precision."""

from eqco.detection.annotations import AnnotatedImages
from eqco.detection.average_precision import (
    METRICS,
    Detections,
    Scores,
    average_precision,
    require_pycocotools,
)
from eqco.detection.batches import TrainingBatches
from eqco.detection.fine_tuning import (
    FineTuning,
    detect,
    fine_tune,
    with_precise_statistics,
)
from eqco.detection.folders import open_annotated, split_to_test
from eqco.detection.model import faster_rcnn
from eqco.detection.squares import write_squares

__all__ = [
    "METRICS",
    "AnnotatedImages",
    "Detections",
    "FineTuning",
    "Scores",
    "TrainingBatches",
    "average_precision",
    "detect",
    "faster_rcnn",
    "fine_tune",
    "open_annotated",
    "require_pycocotools",
    "split_to_test",
    "with_precise_statistics",
    "write_squares",
]
