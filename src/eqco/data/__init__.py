"""Data sets, augmentation pipelines, two-view loaders with a resumable position.

Names are resolved when first used: `Views` needs torch alone, the rest Pillow and numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqco.data.augment import Augment as Augment
    from eqco.data.augment import evaluation_view as evaluation_view
    from eqco.data.decoding import UnreadableImageError as UnreadableImageError
    from eqco.data.loading import EvaluationLoader as EvaluationLoader
    from eqco.data.loading import LabelledLoader as LabelledLoader
    from eqco.data.loading import TwoViewLoader as TwoViewLoader
    from eqco.data.opening import open_source as open_source
    from eqco.data.parameters import Parameters as Parameters
    from eqco.data.parameters import draw_parameters as draw_parameters
    from eqco.data.pipelines import PIPELINES as PIPELINES
    from eqco.data.pipelines import Pipeline as Pipeline
    from eqco.data.pipelines import find_pipeline as find_pipeline
    from eqco.data.sources import Source as Source
    from eqco.data.sources import Split as Split
    from eqco.data.sources import source_from_dataset as source_from_dataset
    from eqco.data.sources import write_unreadable as write_unreadable
    from eqco.data.steps import StepLoader as StepLoader
    from eqco.data.views import Views as Views

# public name -> its module in this package
_HOMES: dict[str, str] = {
    "PIPELINES": "pipelines",
    "Augment": "augment",
    "EvaluationLoader": "loading",
    "LabelledLoader": "loading",
    "Parameters": "parameters",
    "Pipeline": "pipelines",
    "Source": "sources",
    "Split": "sources",
    "StepLoader": "steps",
    "TwoViewLoader": "loading",
    "UnreadableImageError": "decoding",
    "Views": "views",
    "draw_parameters": "parameters",
    "evaluation_view": "augment",
    "find_pipeline": "pipelines",
    "open_source": "opening",
    "source_from_dataset": "sources",
    "write_unreadable": "sources",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'eqco.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"eqco.data.{_HOMES[name]}"), name)
