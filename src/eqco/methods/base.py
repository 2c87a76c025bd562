"""What every method promises, and what those with a key encoder share."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as numbers_from
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.contrast import Contrast, Negatives, Objective, in_batch_negatives, sampled_negatives
from eqco.contrast.normaliser import RememberingObjective
from eqco.data import Batch, DataSettings, ViewSpec
from eqco.encoders import Encoder, scheduled_ema_decay, update_momentum
from eqco.encoders.momentum import EMASchedule
from eqco.runtime import processes
from eqco.runtime.devices import copy_to
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for

__all__ = [
    "LEAST_SIDE",
    "KeyEncoder",
    "KeyEncoderSettings",
    "Method",
    "MethodParts",
    "MethodSettings",
    "StepOutput",
    "batch_negatives",
    "check_batch_norm_size",
    "check_count",
    "check_least_side",
    "seeded_weights",
    "unit_rows",
]

LEAST_SIDE = 4  # pixels of the smallest views, of which the light encoder needs as many


@dataclass(frozen=True)
class StepOutput:
    """What a method made of one batch.

    Args:
        loss: to be minimised, over this process's part of the batch.
        contrasts: what diagnostics read; none: there is no f̂ to show. Queries and positives are
            this process's, negatives those of all processes.
        new_keys: what `after_step` remembers, of all processes, (M, D).
        new_index: the place of each new key's image in the data set, (M,), where a bank needs it.
        embeddings: where there are no contrasts, or none of cosines, what collapse is watched by:
            one for each of this process's images, without gradient, (n, D).
    """

    loss: Tensor
    contrasts: Sequence[Contrast] = ()
    new_keys: Tensor | None = None
    new_index: Tensor | None = None
    embeddings: Tensor | None = None


class Method(nn.Module, ABC):
    """A framework of representation learning: views in, a loss out.

    `forward` stores nothing; `after_step` is the only writer. Every parameter that requires
    gradient is trained; `encoder` is what is evaluated and exported.
    """

    encoder: Encoder

    @abstractmethod
    def forward(self, batch: Batch, step: int) -> StepOutput:
        """The loss of this batch; draws are a function of (seed, step)."""

    @abstractmethod
    def after_step(self, output: StepOutput) -> None:
        """What changes once the optimiser has stepped: the momentum encoder, then the queue."""

    def warm_up(self, batch: Batch, number: int = 0) -> None:
        """Fill a queue from one batch, or its micro-batch `number`, before the first step."""

    def load_trained(self, state: Mapping[str, Tensor]) -> None:
        """Begin with what another run of the method has trained, given the state of its method.

        That is the encoder and every other part with a parameter that is trained, with its batch
        statistics. The rest begins anew: queue, memory bank, normaliser and what is counted; a key
        encoder as a copy of the encoder.
        """
        trained = {name for name, each in self.named_parameters() if each.requires_grad}
        parts = {"encoder"} | {name.split(".")[0] for name in trained}
        theirs, own = (
            {name: value for name, value in every.items() if name.split(".")[0] in parts}
            for every in (state, self.state_dict())
        )
        for name in (*theirs, *own):
            shapes = [tuple(each[name].shape) if name in each else "none" for each in (theirs, own)]
            if shapes[0] != shapes[1]:
                remedy = "Leave out what changes it"
                if not name.startswith("encoder."):
                    remedy += (
                        ", or begin with the encoder alone: --recipe RUN/recipe.json --init RUN"
                    )
                raise InputError(
                    f"--extend: the run has {name} of shape {shapes[0]}, and this one of "
                    f"{shapes[1]}. {remedy}."
                )
        self.load_state_dict(theirs, strict=False)
        self.copy_encoder()

    def copy_encoder(self) -> None:
        """Let each key encoder be a copy of the encoder, whose first weights were not drawn."""
        for module in self.modules():
            if isinstance(module, KeyEncoder):
                module.network.load_state_dict(self.encoder.state_dict())


class MakeEncoder(Protocol):
    """Number 0 is the recipe's encoder; 1, 2, … are others like it with weights of their own draw.

    `in_channels` are the bands that it sees; None: all of the images.
    """

    def __call__(self, number: int = 0, in_channels: int | None = None) -> Encoder: ...


@dataclass(frozen=True, kw_only=True)
class MethodParts:
    """What a method is built from.

    Args:
        make_encoder: the encoders, by number.
        objective: the loss over contrasts.
        total_steps: of the whole training, for schedules.
        seed: of all that the method draws.
        num_images: to train on, for memories of each; 0: not known.
        channels: the bands of the images.
        steps_per_epoch: for what changes after some epochs.
    """

    make_encoder: MakeEncoder
    objective: Objective | RememberingObjective
    total_steps: int
    seed: int
    num_images: int = 0
    channels: int = 3
    steps_per_epoch: int = 1


@dataclass(frozen=True, kw_only=True)
class MethodSettings(ABC):
    """The settings of one method, with defaults, its checks and its count of negatives."""

    name: ClassVar[str]
    symmetric: ClassVar[bool] = False
    """Whether keys carry gradient, as where every view is both query and key."""
    num_banks: ClassVar[int] = 0
    """Memory banks, each with a row for every image of the data set."""
    cacheable: ClassVar[bool] = True
    """Whether encoders are called for embeddings alone, so that they can take a batch in pieces."""
    queue_width: ClassVar[int] = 1
    """How many embeddings of an image a row of the queue holds."""
    has_temperature: ClassVar[bool] = True
    """Whether objective.temperature plays a part."""
    one_contrast: ClassVar[str] = ""
    """What one contrast is of the loss, for code that shows one alone; empty: all of it."""
    unwritten: ClassVar[Mapping[str, Any]] = {}
    """Settings that a recipe writes down only where they have another value than this, so that
    records made before there were such settings keep their hash."""

    def views(self, data: DataSettings) -> tuple[ViewSpec, ...]:
        """The views of each image, in the order that `forward` gets them."""
        return data.pair

    def input_sizes(self, data: DataSettings) -> tuple[int, ...]:
        """Pixels along each side of what the encoders get to see."""
        return tuple(view.size for view in self.views(data))

    def encoded_at_once(self, num_queries: int, data: DataSettings) -> tuple[int, int]:
        """How many images of how many pixels along each side a step passes through the encoder at
        once.
        """
        return num_queries, self.views(data)[0].size

    def evaluated_encoder(self, make_encoder: MakeEncoder) -> Encoder:
        """What is evaluated and exported, with its first weights."""
        return make_encoder()

    def evaluated_backbone(self, name: str) -> str:
        """What the backbone of `evaluated_encoder` is called, where `name` is the recipe's."""
        return name

    @property
    def takes_alpha(self) -> bool:
        """Whether the loss is the objective's, with its margin, α and normaliser."""
        return True

    def num_batch_negatives(self, num_queries: int) -> int | None:
        """How many negatives a batch offers each query; None: all are of a queue or a bank."""
        return None

    def num_batch_keys(self, num_queries: int) -> int | None:
        """How many keys a batch holds: those offered and, in each view, the query's own."""
        offered = self.num_batch_negatives(num_queries)
        return None if offered is None else offered * num_queries // (num_queries - 1)

    @property
    def num_contrasts(self) -> int:
        """How many contrasts a step has, where there are negatives."""
        return 1

    @property
    def contrast_queries(self) -> tuple[int, ...]:
        """How many queries each image of a batch gives to each contrast."""
        return (1,) * self.num_contrasts

    @property
    def queries_per_image(self) -> int:
        """How many queries each image of a batch gives."""
        return sum(self.contrast_queries)

    @property
    def independent_negatives(self) -> bool:
        """Whether negatives are drawn independently of the query, as EqCo's rule assumes."""
        return True

    def able_to_draw(self) -> Self:
        """The settings under which `count` negatives can be drawn, where there is a `count`."""
        return self

    @property
    def similarity(self) -> Literal["cosine", "dot"]:
        """What queries and keys are compared by."""
        return "cosine"

    @property
    def queue_size(self) -> int:
        """How many keys of earlier batches are kept."""
        return 0

    @property
    def queue_beside_batch(self) -> bool:
        """Whether there is a queue besides the negatives of the batch."""
        return False

    def shorter_queue(self, most: int, num_queries: int) -> tuple[str, str]:
        """What a queue of more than `most` would hold of an image, and what to give instead."""
        remedy = f"Give --method.queue-size {most} or less, or smaller batches"
        if most == 0:
            remedy = "Give smaller batches (--training.num-queries), or train without a queue"
        few = f"with EqCo few negatives stand in for many (--objective.alpha {self.queue_size})"
        return "older keys of each query's own image", f"{remedy}; {few}"

    @property
    def shuffle_bn(self) -> bool:
        """Whether keys pass batch norm in another order than queries."""
        return False

    @abstractmethod
    def num_negatives(self, num_queries: int) -> int | None:
        """K, for so many queries at once; None: the method has no negatives."""

    @abstractmethod
    def check(self, *, num_queries: int) -> None:
        """Refuse what cannot be trained with so many queries at once."""

    @abstractmethod
    def build(self, parts: MethodParts) -> Method:
        """The method itself."""


@dataclass(frozen=True, kw_only=True)
class KeyEncoderSettings(MethodSettings):
    """Of a method whose keys come from a momentum encoder."""

    ema_decay: float = 0.999
    """β of the key encoder (Eq. 16)."""
    ema_schedule: EMASchedule = "constant"
    """cosine: β rises from ema_decay to 1 over the training; rising: from 0 to ema_decay over its
    first six tenths."""
    shuffle_bn: bool = False
    """MoCo's shuffling BN, over encoder.bn_groups parts, instead of one statistic."""

    def check(self, *, num_queries: int) -> None:
        """Refuse a decay outside 0 to 1."""
        if not 0 <= self.ema_decay <= 1:
            raise InputError(f"method.ema_decay={self.ema_decay}; it must lie between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class BatchAndQueueSettings(KeyEncoderSettings):
    """Of a method that scores against the batch, and against a queue beside it where it has one."""

    count: int | None = None
    """Negatives drawn for each query from the batch; None: all that it offers."""
    queue_size: int = 0
    """Keys of earlier batches as further negatives; 0: none."""

    def num_negatives(self, num_queries: int) -> int:
        """K: of the batch and of the queue."""
        drawn = self.num_batch_negatives(num_queries) if self.count is None else self.count
        assert drawn is not None
        return drawn + self.queue_size

    @property
    def queue_beside_batch(self) -> bool:
        """Whether there is a queue besides the negatives of the batch."""
        return self.queue_size > 0

    def check(self, *, num_queries: int) -> None:
        """Refuse more negatives than the batch offers."""
        super().check(num_queries=num_queries)
        if self.queue_size < 0:
            raise InputError(f"method.queue_size={self.queue_size}; it must be at least 0.")
        offered = self.num_batch_negatives(num_queries)
        assert offered is not None
        check_count(self.count, offered=offered, num_queries=num_queries)


class KeyEncoder(nn.Module):
    """A copy of the query encoder that is moved, never trained (Eq. 16).

    Shuffling BN passes images through it in another order than the queries, drawn from (seed,
    step), which matters where batch norm sees part of the batch at a time.
    """

    def __init__(self, encoder: Encoder, settings: KeyEncoderSettings, parts: MethodParts):
        super().__init__()
        self.network = copy.deepcopy(encoder).requires_grad_(False)
        self.settings = settings
        self.total_steps, self.seed = parts.total_steps, parts.seed
        self.updates = 0

    @torch.no_grad()
    def forward(self, images: Tensor, step: int) -> Tensor:
        """Unit keys of all processes' images, in their order, without gradient, (N, D)."""
        if not self.settings.shuffle_bn:
            return processes.gather(self.unit_keys(images))
        images = processes.gather(images)
        generator = generator_for("shuffle", self.seed, step)
        order = torch.randperm(len(images), generator=generator, device="cpu")
        order = copy_to(images.device, order)
        keys = processes.gather(self.unit_keys(images[order[processes.own_rows(len(order))]]))
        return torch.empty_like(keys).index_copy_(0, order, keys)

    def unit_keys(self, images: Tensor) -> Tensor:
        """Keys of length one, in float32 or better also under autocast."""
        return unit_rows(self.network(images))

    def follow(self, encoder: Encoder) -> None:
        """Move towards the query encoder after its step."""
        decay = scheduled_ema_decay(
            self.settings.ema_decay,
            self.settings.ema_schedule,
            step=self.updates,
            total_steps=self.total_steps,
        )
        update_momentum(self.network, encoder, decay)
        self.updates += 1

    def get_extra_state(self) -> Tensor:
        """The count that the schedule goes by: part of the state dict, on no device but the CPU."""
        return torch.tensor(self.updates, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Take over what `get_extra_state` gave."""
        self.updates = int(state)


def unit_rows(embeddings: Tensor) -> Tensor:
    """Embeddings of length one, (n, D), in float32 or better."""
    exact = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return F.normalize(exact, dim=1)


@contextmanager
def seeded_weights(purpose: str, seed: int) -> Iterator[None]:
    """Layers made in this block draw their first weights from the seed; no other draw is moved."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator_for(purpose, seed).initial_seed())
        yield


def batch_negatives(
    *views: Tensor, count: int | None, shared: bool, seed: int, draw: int
) -> Negatives:
    """The other instances of the batch, all of them or `count` drawn for each query.

    Views are keys of one or both views of all processes, each (N, D). `draw` tells draws apart: the
    step, or two for each step where there are two contrasts.
    """
    num_queries = len(views[0])
    index = torch.arange(num_queries, device=views[0].device)[processes.own_rows(num_queries)]
    pool = in_batch_negatives(*views, index=index)
    # a shared draw of all is kept: it gives keys another order, and the loss another rounding
    if count is None or (count == pool.num_negatives and not shared):
        return pool
    return sampled_negatives(
        pool, count, seed=seed, step=draw, index=index, num_queries=num_queries, shared=shared
    )


def check_batch_norm_size(num_queries: int) -> None:
    """Refuse a batch of one image, of which batch norm leaves nothing."""
    if num_queries < 2:
        raise InputError(
            f"a micro-batch of {num_queries}, but batch norm needs 2 images. Raise "
            f"--training.num-queries or lower --training.accumulation-steps."
        )


def check_least_side(what: str, side: Callable[[int], int], image_size: int) -> None:
    """Refuse views of too few pixels; `side` says how many views of an image size have."""
    if side(image_size) < LEAST_SIDE:
        least = next(size for size in numbers_from(image_size) if side(size) >= LEAST_SIDE)
        raise InputError(
            f"data.image_size={image_size}, whose {what} would have {side(image_size)} pixels "
            f"along each side; they need {LEAST_SIDE}. Give --data.image-size {least} or more."
        )


def check_count(count: int | None, *, offered: int, num_queries: int) -> None:
    """Refuse more negatives than a batch offers, and a batch that offers none."""
    if count is not None and count < 1:
        raise InputError(f"method.count={count}; at least 1 negative is needed.")
    if num_queries < 2:
        raise InputError(
            f"a micro-batch of {num_queries} offers no negatives, since a query's own instance is "
            f"never one. Raise --training.num-queries or lower --training.accumulation-steps."
        )
    if count is not None and count > offered:
        raise InputError(
            f"method.count={count}, but a batch of {num_queries} images offers {offered} "
            f"negatives per query. Lower --method.count, or use all {offered} by "
            f"--method.count None."
        )
