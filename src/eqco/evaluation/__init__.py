"""What an encoder is worth: frozen features, and what can be read from them."""

from eqco.evaluation.features import Features, extract_features
from eqco.evaluation.knn import knn_accuracy, knn_scores
from eqco.evaluation.probe import ProbeResult, probe_accuracy

__all__ = [
    "Features",
    "ProbeResult",
    "extract_features",
    "knn_accuracy",
    "knn_scores",
    "probe_accuracy",
]
