"""Data sets, augmentation pipelines, loaders of views with a resumable position."""

from eqco.data.augment import Augment, evaluation_view
from eqco.data.decoding import UnreadableImageError
from eqco.data.loading import EvaluationLoader
from eqco.data.opening import open_source
from eqco.data.parameters import Parameters, draw_parameters
from eqco.data.pipelines import PIPELINES, Pipeline, find_pipeline
from eqco.data.sources import Source, Split, source_from_dataset, write_unreadable
from eqco.data.steps import StepLoader
from eqco.data.views import Batch, DataSettings, ViewSpec

__all__ = [
    "PIPELINES",
    "Augment",
    "Batch",
    "DataSettings",
    "EvaluationLoader",
    "Parameters",
    "Pipeline",
    "Source",
    "Split",
    "StepLoader",
    "UnreadableImageError",
    "ViewSpec",
    "draw_parameters",
    "evaluation_view",
    "find_pipeline",
    "open_source",
    "source_from_dataset",
    "write_unreadable",
]
