"""Transfer to object detection (Table 9): Faster R-CNN from pre-trained weights, and its AP."""

from eqco.detection.annotations import AnnotatedImages
from eqco.detection.average_precision import METRICS, Detections, Scores, require_pycocotools
from eqco.detection.folders import open_annotated
from eqco.detection.settings import DetectionSettings
from eqco.detection.squares import write_squares
from eqco.detection.transfer import Transfer, resume_transfer, transfer_detection

__all__ = [
    "METRICS",
    "AnnotatedImages",
    "DetectionSettings",
    "Detections",
    "Scores",
    "Transfer",
    "open_annotated",
    "require_pycocotools",
    "resume_transfer",
    "transfer_detection",
    "write_squares",
]
