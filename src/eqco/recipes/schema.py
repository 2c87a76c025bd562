"""A recipe: everything that decides what a training run does, as one frozen value.

Defaults stand here, in `eqco.data` and in the method's own file. Derived numbers (learning rate,
steps) are functions of a recipe, never overwritten fields.
"""

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from eqco.data import DataSettings
from eqco.methods import MethodSettings, SiMoSettings
from eqco.runtime.errors import InputError

__all__ = [
    "DataSettings",
    "EncoderSettings",
    "ObjectiveSettings",
    "OptimiserSettings",
    "Recipe",
    "TrainingSettings",
]


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """The network."""

    backbone: str = "resnet50"
    """resnet18, resnet34, resnet50, light, each also with -ln for layer norm; or timm:NAME."""
    width: int = 1
    """Multiplies all channels of a ResNet, where Table 8 has 1, 2 and 4, or of light."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """The first layer of a ResNet: for large images, or for 32 pixels."""
    head: Literal["normalised", "mlp", "linear", "simclrv2", "mocov3", "byol", "swav"] = (
        "normalised"
    )
    """normalised: BN after each layer (SiMo, SimCLR); mlp: MoCo v2; linear: MoCo v1; the others as
    in the method of that name."""
    embedding_dim: int = 128
    """D, the size of queries and keys."""
    bn_groups: int = 1
    """With shuffling BN: parts of the batch with statistics of their own; 1: one statistic."""
    fixed_patches: bool = False
    """Of a vision transformer: a random projection of patches and sine-cosine positions, neither of
    them trained, which keeps it from diverging (MoCo v3)."""

    @property
    def has_layer_norm(self) -> bool:
        """Whether the backbone normalises each image for itself, in place of batch norm."""
        return self.backbone.endswith("-ln")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The loss."""

    temperature: float = 0.2
    """τ."""
    alpha: float | None = None
    """α: how many negatives the K that are there stand in for; None: plain InfoNCE; inf: the
    decoupled loss."""
    normaliser: Literal["batch", "instance", "queue"] = "batch"
    """batch: Eq. 1; instance: with a history of each image (SogCLR at finite α); queue: with the
    keys of method.queue_size, which are then no negatives themselves."""
    second_temperature: float | None = None
    """τ₂ of the dual temperature, ten times τ as published: queries are weighed by how hard they
    are at τ₂ instead of at τ; None: without."""
    normaliser_decay: float = 0.9
    """How much of its history an image keeps at each visit, with normaliser instance."""


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """How parameters move."""

    name: Literal["sgd", "lars", "adamw"] = "sgd"
    """sgd as in the paper; lars as in SimCLR's own; adamw for vision transformers."""
    base_learning_rate: float = 0.03
    """The rate for `reference` queries per batch."""
    reference: int = 256
    """The N that the base rate is meant for; 1 with the square root."""
    rule: Literal["linear", "square-root"] = "linear"
    """How the rate follows N (Eq. 8); the square root is for lars, with base 0.075 and reference 1
    in SimCLR."""
    sgd_momentum: float = 0.9
    """Momentum of the optimiser, not of the key encoder; β₁ of adamw."""
    weight_decay: float = 1e-4
    """Covers biases and batch norm too with sgd and adamw."""
    schedule: Literal["cosine", "steps"] = "cosine"
    """How the rate falls."""
    warmup_epochs: float = 0.0
    """Epochs over which the rate rises."""
    drops: tuple[int, ...] = ()
    """Epochs at which the rate falls to a tenth, with schedule steps."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The run."""

    epochs: int = 200
    """Passes over the training images."""
    num_queries: int = 256
    """N: queries per batch over all processes; for SimCLR, pairs."""
    accumulation_steps: int = 1
    """Micro-batches that a batch is computed in."""
    accumulation: Literal["independent", "cached"] = "independent"
    """independent: each micro-batch has a loss of its own, with its own negatives and the same α;
    cached: one loss for all of them, with the memory of one, for half as much time again."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Of the encoder; weights, batch statistics, loss and optimiser are float32 in any case. auto:
    bfloat16 where the machine computes it natively, else float32; the run keeps what it chose."""
    compile: Literal["auto", True, False] = False
    """Let torch.compile the encoders, by one process. auto: in trainings of half an hour or more
    on a CPU, where a compiler is found and a trial is faster; the run keeps what it chose."""
    channels_last: bool = False
    """Memory layout of images and of timm's networks; our own compute so in any case."""
    seed: int = 0
    """Decides everything that is drawn."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    diagnose_every: int = 50
    """Steps between two looks at information, gradients and embeddings; the last step has one."""
    save_every: int = 1
    """Epochs between two checkpoints."""
    keep_every: int = 0
    """Epochs between checkpoints that are kept for good; 0: only the last two."""
    probe_every: int = 0
    """Epochs between two kNN probes, where the data has labels; 0: only at the end. They compare
    with at most 10,000 images and ask about at most 2,000."""
    logger: tuple[Literal["tensorboard", "csv", "wandb", "mlflow"], ...] = ("tensorboard",)
    """Who gets the numbers beside metrics.jsonl, any of them; W&B and MLflow are set up by their
    own environment variables."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a training run does."""

    training: TrainingSettings = field(default_factory=TrainingSettings)
    method: MethodSettings = field(default_factory=SiMoSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    data: DataSettings = field(default_factory=DataSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)

    def __post_init__(self) -> None:
        check_ranges(self)
        self.method.check(num_queries=self.contrasted_size)
        check_negatives(self)
        self.method.views(self.data)  # which refuses sizes that it cannot make
        check_batch_norm(self)
        check_normaliser(self)
        check_second_temperature(self)
        check_loss(self)

    @property
    def num_negatives(self) -> int | None:
        """K of each query, or None without negatives; keys of a normaliser's queue are none."""
        count = self.method.num_negatives(self.contrasted_size)
        if count is None or self.objective.normaliser != "queue":
            return count
        return count - self.method.queue_size

    @property
    def contrasted_size(self) -> int:
        """Queries that share one loss, over all processes."""
        cached = self.training.accumulation == "cached"
        return self.training.num_queries if cached else self.micro_batch_size

    @property
    def micro_batch_size(self) -> int:
        """Queries that are computed at once, over all processes."""
        return self.training.num_queries // self.training.accumulation_steps


def check_ranges(recipe: Recipe) -> None:
    """Refuse numbers that no run could use."""
    at_least_one = (
        *("data.image_size", "encoder.width", "encoder.embedding_dim", "encoder.bn_groups"),
        *("training.num_queries", "training.epochs", "training.accumulation_steps"),
        *("training.log_every", "training.diagnose_every", "training.save_every"),
        "optimiser.reference",
    )
    not_negative = (
        *("data.workers", "training.keep_every", "training.probe_every"),
        *("optimiser.warmup_epochs", "optimiser.weight_decay", "optimiser.sgd_momentum"),
    )
    for limit, names in ((1, at_least_one), (0, not_negative)):
        for name in names:
            value = attrgetter(name)(recipe)
            if not value >= limit:
                raise InputError(f"{name}={value}; it must be at least {limit}.")
    positive = ["objective.temperature", "optimiser.base_learning_rate"]
    if recipe.objective.second_temperature is not None:
        positive.append("objective.second_temperature")
    for name in positive:
        value = attrgetter(name)(recipe)
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name}={value}; it must be a finite number greater than 0.")
    if recipe.objective.alpha is not None and not recipe.objective.alpha > 0:
        raise InputError(
            f"objective.alpha={recipe.objective.alpha}; it must be greater than 0. "
            f"For plain InfoNCE give --objective.alpha None, for the decoupled loss inf."
        )
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
    epochs = recipe.training.epochs
    if list(drops) != sorted(set(drops)) or any(not 0 < drop < epochs for drop in drops):
        limits = f"they must rise and lie between 1 and {epochs - 1}"
        raise InputError(
            f"optimiser.drops={drops}; {limits if epochs > 1 else 'one epoch has room for none'}, "
            f"since training.epochs={epochs}. Train for longer, or give others by "
            f"--optimiser.drops (without a number: none)."
        )
    if drops and recipe.optimiser.schedule == "cosine":
        raise InputError(
            f"optimiser.drops={drops} with optimiser.schedule=cosine, which has none. "
            f"Choose schedule steps, or leave out the drops."
        )
    if not 0 <= recipe.training.seed < 2**63:
        raise InputError(f"training.seed={recipe.training.seed}; it must lie in 0 to 2^63 - 1.")
    if recipe.training.num_queries % recipe.training.accumulation_steps:
        raise InputError(
            f"training.num_queries={recipe.training.num_queries} cannot be cut into "
            f"training.accumulation_steps={recipe.training.accumulation_steps} micro-batches of "
            f"one size; choose a divisor."
        )


def check_negatives(recipe: Recipe) -> None:
    """Refuse settings of negatives for a method that has none."""
    if recipe.num_negatives is not None:
        return
    settings = recipe.objective
    for given, remedy, unwanted in (
        (f"alpha={settings.alpha}", "alpha None", settings.alpha is not None),
        (f"normaliser={settings.normaliser}", "normaliser batch", settings.normaliser != "batch"),
        (
            f"second_temperature={settings.second_temperature}",
            "second-temperature None",
            settings.second_temperature is not None,
        ),
    ):
        if unwanted:
            raise InputError(
                f"objective.{given}, but {recipe.method.name} has no negatives, which that is "
                f"about. Give --objective.{remedy}, or choose a method with negatives."
            )


def check_normaliser(recipe: Recipe) -> None:
    """Refuse a memory that is not there, or that never learns."""
    decay, kind = recipe.objective.normaliser_decay, recipe.objective.normaliser
    if not 0 <= decay < 1:
        raise InputError(
            f"objective.normaliser_decay={decay}; it must be at least 0 (none) and less than 1."
        )
    if kind == "queue" and not recipe.method.queue_beside_batch:
        raise InputError(
            "objective.normaliser=queue without a queue beside the negatives of the batch. Choose "
            "SiMo with --method.queue-size 4096, or --objective.normaliser instance."
        )


def check_second_temperature(recipe: Recipe) -> None:
    """Refuse it beside another loss than InfoNCE with a margin."""
    second, kind = recipe.objective.second_temperature, recipe.objective.normaliser
    if second is None:
        return
    others = {
        f"objective.normaliser={kind}": kind != "batch",
        "objective.alpha=inf, the decoupled loss": recipe.objective.alpha == math.inf,
    }
    for other, unwanted in others.items():
        if unwanted:
            raise InputError(
                f"objective.second_temperature={second} with {other}; they are two losses. Leave "
                f"one of them out."
            )


def check_loss(recipe: Recipe) -> None:
    """Refuse settings of the objective to a method whose loss has none of them."""
    if recipe.method.takes_alpha:
        return
    alpha, kind = recipe.objective.alpha, recipe.objective.normaliser
    second = recipe.objective.second_temperature
    given = {f"alpha={alpha}": alpha is not None, f"normaliser={kind}": kind != "batch"}
    given |= {f"second_temperature={second}": second is not None}
    for name, unwanted in given.items():
        if unwanted:
            raise InputError(
                f"objective.{name} with the loss of {recipe.method.name} as published, which has "
                f"no margin. Leave it out, or choose --method.loss softmax."
            )


def check_batch_norm(recipe: Recipe) -> None:
    """Refuse groups that shuffling BN cannot make."""
    if recipe.training.accumulation == "cached":
        for name, unwanted in (
            (f"encoder.bn_groups={recipe.encoder.bn_groups}", recipe.encoder.bn_groups > 1),
            ("training.compile=True", recipe.training.compile is True),
            (f"the method {recipe.method.name}", not recipe.method.cacheable),
        ):
            if unwanted:
                raise InputError(
                    f"training.accumulation=cached with {name}; they do not work together. Leave "
                    f"that out, or choose --training.accumulation independent."
                )
    groups, size = recipe.encoder.bn_groups, recipe.micro_batch_size
    if groups > 1 and not recipe.method.shuffle_bn:
        raise InputError(
            f"encoder.bn_groups={groups} without shuffling BN, so that queries and keys of a group "
            f"would share their statistics. Give --encoder.bn-groups 1, or --method.shuffle-bn to "
            f"a method that has it."
        )
    if size % groups:
        raise InputError(
            f"a micro-batch of {size} images cannot be cut into encoder.bn_groups={groups} equal "
            f"parts; give --encoder.bn-groups a divisor of {size}."
        )
    if size // groups < 2:
        raise InputError(
            f"training.num_queries={recipe.training.num_queries} in training.accumulation_steps="
            f"{recipe.training.accumulation_steps} micro-batches and encoder.bn_groups={groups} "
            f"parts leaves {size // groups} image to each, and batch norm needs at least 2. Raise "
            f"--training.num-queries, or lower one of the other two."
        )
