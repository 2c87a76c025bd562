"""The quality of an encoder: frozen features, and the accuracy of classifiers on them."""

from eqco.evaluation.features import Features, extract_features
from eqco.evaluation.knn import knn_accuracy, knn_scores
from eqco.evaluation.probe import probe_accuracy

__all__ = [
    "Features",
    "extract_features",
    "knn_accuracy",
    "knn_scores",
    "probe_accuracy",
]
