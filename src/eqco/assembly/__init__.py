"""Recipe -> objects, and the calls that use them."""

from eqco.assembly.hub_files import push_to_hub
from eqco.assembly.loading import load
from eqco.assembly.parts import (
    build_components,
    build_encoder,
    build_evaluated_encoder,
    check_processes,
    learning_rate_at,
)
from eqco.assembly.runs import resume, train
from eqco.assembly.search import PhotoIndex, open_index
from eqco.assembly.weights import Weights, open_weights, pixels, random_like

__all__ = [
    "PhotoIndex",
    "Weights",
    "build_components",
    "build_encoder",
    "build_evaluated_encoder",
    "check_processes",
    "learning_rate_at",
    "load",
    "open_index",
    "open_weights",
    "pixels",
    "push_to_hub",
    "random_like",
    "resume",
    "train",
]
