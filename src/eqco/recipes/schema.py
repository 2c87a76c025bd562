"""A recipe: everything that decides what a training run does, as one frozen value.

Defaults stand here and nowhere else. Derived numbers (learning rate, steps) are functions of a
recipe, never overwritten fields.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from eqco.runtime.errors import InputError

__all__ = [
    "DataSettings",
    "EncoderSettings",
    "NegativesSettings",
    "ObjectiveSettings",
    "OptimiserSettings",
    "Recipe",
    "TrainingSettings",
]


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """From images to two views."""

    image_size: int = 224
    """Pixels along each side of a view."""
    pipeline: Literal["mocov1", "mocov2", "simclr"] = "mocov2"
    """The augmentation; SiMo uses MoCo v2's."""
    workers: int = 0
    """Processes that decode images from disk; sets held in memory need none."""
    on_unreadable: Literal["error", "skip"] = "error"
    """An image that cannot be read: stop and name it, or go on and list it in the run directory."""


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """The network."""

    backbone: str = "resnet50"
    """resnet18, resnet34, resnet50, light, or timm:NAME."""
    width: int = 1
    """Multiplies all channels of a ResNet: 1, 2 or 4 in Table 8."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """The first layer of a ResNet: for large images, or for 32 pixels."""
    head: Literal["normalised", "mlp", "linear"] = "normalised"
    """normalised: BN after each layer (SiMo, SimCLR); mlp: MoCo v2; linear: MoCo v1."""
    embedding_dim: int = 128
    """D, the size of queries and keys."""
    batch_norm: Literal["sync", "shuffling"] = "sync"
    """sync: one statistic over the batch; shuffling: MoCo's, over bn_groups parts."""
    bn_groups: int = 1
    """With shuffling BN in one process: parts of the batch with statistics of their own."""


@dataclass(frozen=True, kw_only=True)
class NegativesSettings:
    """Which negatives a query meets."""

    count: int | None = None
    """K: drawn per query from the batch (SiMo, SimCLR; None: all), or held in memory (MoCo)."""
    queue: int = 0
    """SiMo: keys of earlier batches that each query meets besides; for small batches."""
    shared: bool = False
    """One draw for all queries instead of one for each (Remark 2)."""
    both_views: bool = True
    """SimCLR: keys of both views are negatives, not only of the other one."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The loss."""

    temperature: float = 0.2
    """τ."""
    alpha: float | None = None
    """The number of negatives imitated; None: plain InfoNCE; inf: the decoupled loss."""


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """How parameters move."""

    name: Literal["sgd", "lars"] = "sgd"
    """sgd as in the paper; lars as in SimCLR's own."""
    base_learning_rate: float = 0.03
    """The rate for `reference` queries per batch."""
    reference: int = 256
    """The N that the base rate is meant for; 1 with the square root."""
    rule: Literal["linear", "square-root"] = "linear"
    """How the rate follows N (Eq. 8); the square root is for lars, with base 0.075 and reference 1
    in SimCLR."""
    sgd_momentum: float = 0.9
    """Momentum of the optimiser, not of the key encoder."""
    weight_decay: float = 1e-4
    """Covers biases and batch norm too with sgd."""
    schedule: Literal["cosine", "steps"] = "cosine"
    """How the rate falls."""
    warmup_epochs: float = 0.0
    """Epochs over which the rate rises."""
    drops: tuple[int, ...] = ()
    """Epochs at which the rate falls to a tenth, with schedule steps."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The run."""

    num_queries: int = 256
    """N: queries per batch over all processes; for SimCLR, pairs."""
    epochs: int = 200
    """Passes over the training images."""
    accumulate: int = 1
    """Parts that a batch is computed in; each has negatives of its own and imitates the same α."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the encoder; the loss is always computed in float32."""
    compile: bool = False
    """torch.compile the encoders."""
    channels_last: bool = False
    """Memory layout of images and of timm's networks; our own compute so in any case."""
    seed: int = 0
    """Decides everything that is drawn."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    diagnose_every: int = 50
    """Steps between two looks at information, gradients and embeddings."""
    save_every: int = 1
    """Epochs between two checkpoints."""
    keep_every: int = 0
    """Epochs between checkpoints that are kept for good; 0: only the last two."""
    probe_every: int = 0
    """Epochs between two kNN probes, where the data has labels; 0: only at the end."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a training run does."""

    method: Literal["simo", "moco", "simclr"] = "simo"
    """The framework; MoCo v1 and v2 are both moco, with other settings."""
    ema_decay: float = 0.999
    """β of the key encoder (Eq. 16); SimCLR has none."""
    data: DataSettings = field(default_factory=DataSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    negatives: NegativesSettings = field(default_factory=NegativesSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_negatives(self)
        check_batch_norm(self)

    @property
    def part_size(self) -> int:
        """Queries that are in memory at once: N over the parts it is computed in."""
        return self.training.num_queries // self.training.accumulate


def check_ranges(recipe: Recipe) -> None:
    """Refuse numbers that no run could use."""
    at_least_one = {
        "data.image_size": recipe.data.image_size,
        "encoder.width": recipe.encoder.width,
        "encoder.embedding_dim": recipe.encoder.embedding_dim,
        "encoder.bn_groups": recipe.encoder.bn_groups,
        "training.num_queries": recipe.training.num_queries,
        "training.epochs": recipe.training.epochs,
        "training.accumulate": recipe.training.accumulate,
        "training.log_every": recipe.training.log_every,
        "training.diagnose_every": recipe.training.diagnose_every,
        "training.save_every": recipe.training.save_every,
        "optimiser.reference": recipe.optimiser.reference,
    }
    not_negative = {
        "data.workers": recipe.data.workers,
        "negatives.queue": recipe.negatives.queue,
        "training.keep_every": recipe.training.keep_every,
        "training.probe_every": recipe.training.probe_every,
        "optimiser.warmup_epochs": recipe.optimiser.warmup_epochs,
        "optimiser.weight_decay": recipe.optimiser.weight_decay,
        "optimiser.sgd_momentum": recipe.optimiser.sgd_momentum,
    }
    for limit, numbers in ((1, at_least_one), (0, not_negative)):
        for name, value in numbers.items():
            if not value >= limit:
                raise InputError(f"{name}={value}; it must be at least {limit}.")
    for name, value in (
        ("objective.temperature", recipe.objective.temperature),
        ("optimiser.base_learning_rate", recipe.optimiser.base_learning_rate),
    ):
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name}={value}; it must be a finite number greater than 0.")
    if recipe.objective.alpha is not None and not recipe.objective.alpha > 0:
        raise InputError(
            f"objective.alpha={recipe.objective.alpha}; it must be greater than 0. "
            f"For plain InfoNCE give --objective.alpha None, for the decoupled loss inf."
        )
    if not 0 <= recipe.ema_decay <= 1:
        raise InputError(f"ema_decay={recipe.ema_decay}; it must lie between 0 and 1.")
    if recipe.optimiser.warmup_epochs > recipe.training.epochs:
        raise InputError(
            f"optimiser.warmup_epochs={recipe.optimiser.warmup_epochs} is longer than "
            f"training.epochs={recipe.training.epochs}. Train for longer, or shorten the warm-up, "
            f"as by --optimiser.warmup-epochs 0."
        )
    if recipe.optimiser.rule == "square-root" and recipe.optimiser.reference != 1:
        # the base of the linear rule would pass for one of this rule: a quarter of SimCLR's rate
        base, reference = recipe.optimiser.base_learning_rate, recipe.optimiser.reference
        raise InputError(
            f"optimiser.rule=square-root with optimiser.base_learning_rate={base} for "
            f"optimiser.reference={reference} queries; this rule has a base of its own, for one "
            f"query. SimCLR's 0.075·√N is --optimiser.reference 1 --optimiser.base-learning-rate "
            f"0.075; a rate found with {reference} queries is divided by √{reference}."
        )
    drops = recipe.optimiser.drops
    if list(drops) != sorted(set(drops)) or any(not 0 < d < recipe.training.epochs for d in drops):
        raise InputError(
            f"optimiser.drops={drops}; they must rise and lie between 1 and "
            f"{recipe.training.epochs - 1}, since training.epochs={recipe.training.epochs}."
        )
    if drops and recipe.optimiser.schedule == "cosine":
        raise InputError(
            f"optimiser.drops={drops} with optimiser.schedule=cosine, which has none. "
            f"Choose schedule steps, or leave out the drops."
        )
    if not 0 <= recipe.training.seed < 2**63:
        raise InputError(f"training.seed={recipe.training.seed}; it must lie in 0 to 2^63 - 1.")
    if recipe.training.num_queries % recipe.training.accumulate:
        raise InputError(
            f"training.num_queries={recipe.training.num_queries} cannot be cut into "
            f"training.accumulate={recipe.training.accumulate} equal parts; choose a divisor."
        )


def check_negatives(recipe: Recipe) -> None:
    """Refuse more negatives than there can be, and settings the framework does not have."""
    count, part = recipe.negatives.count, recipe.part_size
    if recipe.method == "moco":
        if count is None:
            raise InputError(
                "negatives.count=None; MoCo needs the size of its memory, K. Give it, such as "
                "--negatives.count 4096."
            )
        if recipe.negatives.queue:
            raise InputError(
                f"negatives.queue={recipe.negatives.queue} with MoCo, whose memory is "
                f"negatives.count. Set that instead."
            )
        if recipe.negatives.shared:
            raise InputError(
                "negatives.shared with MoCo, whose queries all meet the whole memory. Leave it out."
            )
    if recipe.method != "simclr" and not recipe.negatives.both_views:
        raise InputError("negatives.both_views belongs to SimCLR. Leave it out.")
    if recipe.method == "simclr" and recipe.negatives.queue:
        raise InputError(
            f"negatives.queue={recipe.negatives.queue}, but SimCLR has no memory. "
            f"Use method simo, or set it to 0."
        )
    if count is not None and count < 1:
        raise InputError(f"negatives.count={count}; at least 1 negative is needed.")
    if recipe.method != "moco":
        both = recipe.method == "simclr" and recipe.negatives.both_views
        offered = (2 if both else 1) * (part - 1)
        if part < 2:
            raise InputError(
                f"a batch part of {part} offers no negatives, since a query never meets its own "
                f"instance. Raise training.num_queries or lower training.accumulate."
            )
        if count is not None and count > offered:
            raise InputError(
                f"negatives.count={count}, but a batch of num_queries={part} offers {offered} "
                f"negatives per query. Lower negatives.count, or use all {offered} by "
                f"--negatives.count None."
            )


def check_batch_norm(recipe: Recipe) -> None:
    """Refuse groups that shuffling BN cannot make."""
    groups, part = recipe.encoder.bn_groups, recipe.part_size
    if groups > 1 and recipe.encoder.batch_norm == "sync":
        raise InputError(
            f"encoder.bn_groups={groups} with encoder.batch_norm=sync, which has one group. "
            f"Choose shuffling, or 1 group."
        )
    if recipe.encoder.batch_norm == "shuffling" and recipe.method == "simclr":
        raise InputError(
            "encoder.batch_norm=shuffling needs a key encoder, which SimCLR has not. Choose sync."
        )
    if part % groups or part // groups < 2:
        raise InputError(
            f"a batch of num_queries={part} cannot be cut into encoder.bn_groups={groups} parts of "
            f"at least 2 images; choose a divisor."
        )
