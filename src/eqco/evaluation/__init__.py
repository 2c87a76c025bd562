"""What an encoder is worth: frozen features and weighted nearest neighbours."""

from eqco.evaluation.features import Features, extract_features, pixel_features
from eqco.evaluation.knn import knn_accuracy, knn_scores

__all__ = ["Features", "extract_features", "knn_accuracy", "knn_scores", "pixel_features"]
