"""A method of three views, two encoders and a predictor, as a user would write it: this file."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from eqco.data import ViewSpec, find_pipeline
from eqco.methods import Method, MethodSettings, StepOutput


@dataclass(frozen=True, kw_only=True)
class ToySettings(MethodSettings):
    """Two encoders that agree on three views."""

    name = "toy"

    small_weight: float = 0.5
    """Of the third view, which is half as large."""

    def views(self, data):
        return (data.view, data.view, ViewSpec(find_pipeline("linear"), data.image_size // 2))

    def num_negatives(self, num_queries):
        return None

    def check(self, *, num_queries):
        pass

    def build(self, parts):
        return Toy(parts.make_encoder(0), parts.make_encoder(1), self.small_weight, parts.seed)


class Toy(Method):
    def __init__(self, encoder, other, small_weight, seed):
        super().__init__()
        self.encoder, self.other, self.small_weight = encoder, other, small_weight
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.predictor = nn.Linear(encoder.embedding_dim, other.embedding_dim)

    def forward(self, batch, step):
        first, second, small = batch.views
        target = self.other(second)
        embeddings = self.encoder(first)
        predicted = self.predictor(embeddings)
        loss = 1 - F.cosine_similarity(predicted, target.detach()).mean()
        agreement = F.cosine_similarity(self.encoder(small), target).mean()
        loss = loss + self.small_weight * (1 - agreement)
        return StepOutput(loss, embeddings=embeddings.detach())

    def after_step(self, output):
        pass
