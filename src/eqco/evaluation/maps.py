"""Features laid out in a plane, neighbours beside neighbours."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eqco.evaluation.features import Features
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = ["FeatureMap", "feature_map"]

MAX_IMAGES = 2000
DIMENSIONS = 50  # t-SNE is given the first principal components, as its author advises
MIN_IMAGES = 5


@dataclass(frozen=True)
class FeatureMap:
    """Places in the plane, (n, 2), of the images with these numbers, (n,), and their labels."""

    places: Tensor
    numbers: Tensor
    labels: Tensor


def feature_map(features: Features, *, images: int = MAX_IMAGES, seed: int = 0) -> FeatureMap:
    """A t-SNE map of the features' directions, from at most `images` of them.

    Which images are near each other means something; distances between groups and their sizes do
    not. Nothing is learned from the labels.
    """
    from sklearn.manifold import TSNE

    count = len(features.values)
    if count < MIN_IMAGES:
        raise InputError(f"{count} images; a map of features needs at least {MIN_IMAGES}.")
    generator = generator_for("map", seed)
    numbers = torch.randperm(count, generator=generator)[:images].sort().values
    values = F.normalize(features.values[numbers].float(), dim=1)
    values = values - values.mean(dim=0)
    if min(values.shape) > DIMENSIONS:
        values = values @ torch.linalg.svd(values, full_matrices=False).Vh[:DIMENSIONS].T
    perplexity = min(30.0, (len(numbers) - 1) / 3)
    plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(values.numpy())
    return FeatureMap(torch.from_numpy(plane), numbers, features.labels[numbers])
