"""SwAV: views agree on which of some prototypes an image belongs to; there are no negatives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.contrast import KeyQueue
from eqco.data import Batch, DataSettings, ViewSpec
from eqco.methods.base import (
    Method,
    MethodParts,
    MethodSettings,
    StepOutput,
    check_batch_norm_size,
    check_least_side,
    seeded_weights,
    unit_rows,
)
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["SwAV", "SwAVSettings", "balanced_assignments", "swapped_prediction"]

# shares of the image that the crops show, and the small ones' side in place of 224
LARGE, SMALL = (0.14, 1.0), (0.05, 0.14)
SMALL_SIDE = 96 / 224


@dataclass(frozen=True, kw_only=True)
class SwAVSettings(MethodSettings):
    """SwAV: prototypes and multi-crop in place of negatives."""

    name = "swav"
    queue_width = 2

    num_prototypes: int = 3000
    """Directions that features are assigned to."""
    small_views: int = 6
    """Crops of 3/7 of the side beside the two large ones; they predict but are not assigned."""
    queue_size: int = 3840
    """Features of earlier batches that share in the assignments once so many are there; 0: none."""
    queue_epoch: int = 15
    """Epochs before the queue begins to fill."""
    frozen_epochs: int = 1
    """Epochs at the beginning in which the prototypes stay as they are."""
    epsilon: float = 0.05
    """Of Sinkhorn: small values make sharp assignments."""
    sinkhorn_rounds: int = 3
    """Of making the prototypes' shares equal."""

    def views(self, data: DataSettings) -> tuple[ViewSpec, ...]:
        """Two large crops, then the small ones, all with the recipe's colours."""
        large, small = (replace(data.view.pipeline, crop_scale=scale) for scale in (LARGE, SMALL))
        if self.small_views:
            check_least_side("small crops", small_side, data.image_size)
        return (
            *[ViewSpec(large, data.image_size)] * 2,
            *[ViewSpec(small, small_side(data.image_size))] * self.small_views,
        )

    def num_negatives(self, num_queries: int) -> None:
        """There are none."""

    def check(self, *, num_queries: int) -> None:
        """Refuse more prototypes than features share them, and numbers that no step could use."""
        check_batch_norm_size(num_queries)
        lowest = {"num_prototypes": 2, "sinkhorn_rounds": 1}
        lowest |= dict.fromkeys(("small_views", "queue_size", "queue_epoch", "frozen_epochs"), 0)
        for name, limit in lowest.items():
            if getattr(self, name) < limit:
                raise InputError(
                    f"method.{name}={getattr(self, name)}; it must be at least {limit}."
                )
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError(
                f"method.epsilon={self.epsilon}; it must be a finite number greater than 0."
            )
        shared_by = num_queries + self.queue_size
        if self.num_prototypes > shared_by:
            raise InputError(
                f"method.num_prototypes={self.num_prototypes}, but a batch of {num_queries} and a "
                f"queue of {self.queue_size} give {shared_by} features to share them, so that some "
                f"would stand for no image. Give --method.num-prototypes {shared_by} or less, or "
                f"--method.queue-size {self.num_prototypes - num_queries} or more."
            )

    def shorter_queue(self, most: int, num_queries: int) -> tuple[str, str]:
        """Features of the same images again, which prototypes would share as if of others."""
        remedy = f"Give --method.queue-size {most}"
        if self.num_prototypes > most + num_queries:
            remedy += f" and --method.num-prototypes {most + num_queries} or less"
        return "features of an image of the batch, shared by prototypes as if of another", remedy

    def build(self, parts: MethodParts) -> "SwAV":
        """Encoder, prototypes and, if it has a size, the queue."""
        return SwAV(self, parts)


def small_side(image_size: int) -> int:
    """Pixels along each side of the small crops.

    >>> small_side(224)
    96
    """
    return round(SMALL_SIDE * image_size)


class SwAV(Method):
    """Each large crop is assigned to prototypes, and every other crop predicts the assignment.

    Paper: the published code passes all crops through the head together; here batch norm sees
    those of one size together, in head and backbone alike.
    """

    def __init__(self, settings: SwAVSettings, parts: MethodParts):
        super().__init__()
        self.settings, self.temperature = settings, parts.objective.temperature
        self.steps_per_epoch = parts.steps_per_epoch
        self.encoder = parts.make_encoder()
        dim = self.encoder.embedding_dim
        with seeded_weights("prototypes", parts.seed):
            self.prototypes = nn.Linear(dim, settings.num_prototypes, bias=False)
        self.renormalise()
        self.queue: KeyQueue | None = None
        if settings.queue_size:
            # a row holds the features of both large crops of an image
            self.queue = KeyQueue(settings.queue_size, 2 * dim, seed=parts.seed)
        self.steps = 0  # a number, so that reading it never waits for a device

    def forward(self, batch: Batch, step: int) -> StepOutput:
        """Cross-entropy between assignments of one crop and predictions of the others."""
        features = [
            unit_rows(each)
            for crops in (batch.views[:2], batch.views[2:])
            if crops
            for each in self.encoder(torch.cat(crops)).chunk(len(crops))
        ]
        prototypes = self.prototypes.weight
        if self.steps < self.settings.frozen_epochs * self.steps_per_epoch:
            # a gradient of zeros and not none, which DDP would wait for
            prototypes = prototypes.detach() + 0 * prototypes
        with torch.autocast(prototypes.device.type, enabled=False):
            scores = [each @ prototypes.t() for each in features]
            assignments = [self.assign(scores[crop].detach(), crop) for crop in (0, 1)]
            loss = swapped_prediction(scores, assignments, self.temperature)
        return StepOutput(loss, new_keys=self.kept(features), embeddings=features[0].detach())

    @torch.no_grad()
    def assign(self, scores: Tensor, crop: int) -> Tensor:
        """How much of each prototype every feature gets, (n, P), with those of a full queue."""
        settings, queue, count = self.settings, self.queue, len(scores)
        if queue is not None and queue.filled == queue.capacity:
            # all processes have the same queue: each takes its share of the rows
            share = queue.keys.tensor_split(processes.world_size())[processes.rank()]
            held = share.chunk(2, dim=1)[crop].to(scores) @ self.prototypes.weight.t()
            scores = torch.cat([held, scores])
        found = balanced_assignments(
            scores, epsilon=settings.epsilon, rounds=settings.sinkhorn_rounds
        )
        return found[-count:]

    @torch.no_grad()
    def kept(self, features: list[Tensor]) -> Tensor | None:
        """What the queue takes in, of all processes; None before it begins to fill."""
        begun = self.steps >= self.settings.queue_epoch * self.steps_per_epoch
        if self.queue is None or not begun:
            return None
        return processes.gather(torch.cat(features[:2], dim=1))

    def after_step(self, output: StepOutput) -> None:
        """Prototypes get length one again, the queue the features of this step."""
        self.renormalise()
        if self.queue is not None and output.new_keys is not None:
            self.queue.enqueue(output.new_keys, gather=False)
        self.steps += 1

    @torch.no_grad()
    def renormalise(self) -> None:
        """Put the prototypes back on the unit sphere."""
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))

    def get_extra_state(self) -> Tensor:
        """The count that the epochs go by."""
        return torch.tensor(self.steps, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Take over what `get_extra_state` gave."""
        self.steps = int(state)


@torch.no_grad()
def balanced_assignments(scores: Tensor, *, epsilon: float, rounds: int) -> Tensor:
    r"""Sinkhorn: assignments near to the scores that use all prototypes alike, (n, P).

    .. math:: Q_{bp} \propto e^{s_{bp}/\varepsilon}

    with columns, over the features of all processes, scaled to one sum, then rows to sum one, so
    many rounds. In logarithms, so that no exponential overflows at any ε.

    Two features that both lean to the first of two prototypes have to share:

    >>> scores = torch.tensor([[1.0, 0.8], [1.0, 0.0]])
    >>> balanced_assignments(scores, epsilon=0.1, rounds=50).round(decimals=2)
    tensor([[0.0200, 0.9800],
            [0.9800, 0.0200]])
    """
    log_shares = scores / epsilon
    for _ in range(rounds):
        own = torch.logsumexp(log_shares, dim=0)
        log_shares = log_shares - torch.logsumexp(processes.gather(own[None]), dim=0)
        log_shares = log_shares - torch.logsumexp(log_shares, dim=1, keepdim=True)
    return log_shares.exp()


def swapped_prediction(
    scores: Sequence[Tensor], assignments: Sequence[Tensor], temperature: float
) -> Tensor:
    """Mean cross-entropy over pairs of an assigned crop and another one that predicts it.

    Args:
        scores: of V crops with the prototypes, each (n, P).
        assignments: of the first crops, each (n, P).
        temperature: τ of the predictions.
    """
    predictions = [F.log_softmax(each / temperature, dim=1) for each in scores]
    losses = [
        -(assigned * predicted).sum(dim=1).mean()
        for crop, assigned in enumerate(assignments)
        for other, predicted in enumerate(predictions)
        if other != crop
    ]
    return torch.stack(losses).mean()
