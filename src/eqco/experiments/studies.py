"""Studies of ours: length of training, momentum of keys, small and large batches, bfloat16."""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Literal

from eqco.experiments.coordinates import Coordinates, Loss
from eqco.experiments.grid import Cell, grid_experiment, loss_of
from eqco.experiments.tab2 import LATER, OTHERS, WITHOUT_NEGATIVES
from eqco.experiments.tasks import TrainingTask, framework, moco, simclr, simo
from eqco.recipes import RECIPES, Recipe, with_settings
from eqco.recipes.profiles import (
    DESK,
    EMBEDDED,
    FEW_IMAGES,
    PAPER,
    PUBLISHED_EPOCHS,
    SCALES,
    SMOKE,
    Scale,
)
from eqco.theory import scaled_learning_rate

__all__ = [
    "STUDY_FEW_NEGATIVES",
    "STUDY_LARGE_BATCH",
    "STUDY_LENGTH",
    "STUDY_MOMENTUM",
    "STUDY_PRECISION",
    "STUDY_RECIPES",
    "STUDY_SMALL_BATCH",
]

FEW = 4
SOURCES: tuple[Literal["batch", "batch and queue"], ...] = ("batch", "batch and queue")
LOSSES: dict[Loss, float | None] = {"infonce": None, "eqco": 4096.0, "decoupled": math.inf}


def length_cells(scale: Scale, lengths: list[int], alpha: float) -> list[Cell]:
    """Rows: loss and K, all negatives of the batch before few; columns: epochs.

    The learning rate of each training falls to zero at its own end.
    """
    return [
        Cell(
            at=Coordinates(
                loss=loss_of(imitated),
                alpha=imitated,
                num_negatives=count or scale.num_queries - 1,
                epochs=scale.scaled_epochs(epochs),
            ),
            task=simo(scale, count=count, alpha=imitated, epochs=epochs),
        )
        for imitated in (None, alpha)
        for count in (None, FEW)
        for epochs in lengths
    ]


def with_all(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """The cell with all negatives of the batch: the most that a row of its kind has."""
    alike = [p for p in places if p.without("num_negatives") == at.without("num_negatives")]
    return max(alike, key=lambda place: place.num_negatives or 0)


STUDY_LENGTH = grid_experiment(
    name="study-length",
    title="What few negatives cost, against the length of training",
    axis="epochs",
    cells={
        "smoke": length_cells(SMOKE, [200, 400], 4096),
        "desk": length_cells(DESK, [67, 200, 600], 4096),
        "embedded": length_cells(EMBEDDED, [67, 200, 600], 4096),
        "paper": length_cells(PAPER, [100, 200, 800], 65536),
    },
    quantities=("knn", "information"),
    baselines={f"K={FEW} less all negatives, points of accuracy, seed by seed": with_all},
)


def momentum_cells(
    scale: Scale, lengths: list[int], decays: list[float], alpha: float
) -> list[Cell]:
    """Rows: β, of which Table 6 has two; columns: epochs, of which it has one."""
    return [
        Cell(
            at=Coordinates(ema_decay=decay, epochs=scale.scaled_epochs(epochs)),
            task=simo(scale, count=None, alpha=alpha, epochs=epochs, ema_decay=decay),
        )
        for epochs in lengths  # the short ones are done first
        for decay in decays
    ]


STUDY_MOMENTUM = grid_experiment(
    name="study-momentum",
    title="The momentum of SiMo's key encoder, against the length of training",
    axis="epochs",
    cells={
        "smoke": momentum_cells(SMOKE, [200], [0.0, 0.99], 4096),
        "desk": momentum_cells(DESK, [67, 200, 600], [0.0, 0.9, 0.99], 4096),
        "embedded": momentum_cells(EMBEDDED, [67, 200, 600], [0.0, 0.9, 0.99], 4096),
        "paper": momentum_cells(PAPER, [100, 200, 800], [0.0, 0.99, 0.999], 65536),
    },
    quantities=("knn", "information"),
)


def batch_cells(scale: Scale, sizes: list[int], epochs: int) -> list[Cell]:
    """Rows: source of negatives and loss; columns: N, with the learning rate by the linear rule.

    A queue fills the negatives up to what the largest batch has by itself.
    """
    largest = scale.num_queries
    return [
        Cell(
            at=Coordinates(source=source, loss=loss, alpha=alpha, num_queries=n),
            task=simo(
                scale,
                count=None,
                alpha=alpha,
                queue=0 if source == "batch" else largest - n,
                num_queries=n,
                epochs=epochs,
            ),
        )
        for source in SOURCES
        for loss, alpha in LOSSES.items()
        for n in [*sizes, largest]
    ]


def plain_batch(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """InfoNCE on the negatives of the batch alone."""
    return replace(at, source="batch", loss="infonce", alpha=None)


STUDY_SMALL_BATCH = grid_experiment(
    name="study-small-batch",
    title="Small batches, with and without a short queue, under three losses",
    axis="num_queries",
    cells={
        "smoke": batch_cells(SMOKE, [16], 200),
        # a third of the usual length: at N = 16 a step of overhead is a step of computing
        "desk": batch_cells(DESK, [16, 64], 67),
        "embedded": batch_cells(EMBEDDED, [16], 200),
        "paper": batch_cells(PAPER, [16, 64], 100),
    },
    quantities=("knn", "information", "gradient_norm"),
    baselines={
        "Gained over InfoNCE on the batch alone, points of accuracy, seed by seed": plain_batch
    },
)


TIMES = 4  # as large a batch


def large_batch_cells(scale: Scale) -> list[Cell]:
    """A row for N, one for four times N by the linear rule, and others that change one thing of it:
    β, so that keys lag behind by as many images; the rate; a warm-up; as many steps. Last, N with
    as few steps as the large batch has.
    """
    n, usual = scale.num_queries, PUBLISHED_EPOCHS
    small = moco("mocov2", scale, count=scale.memory, alpha=None)
    large = moco("mocov2", scale, count=scale.memory, alpha=None, num_queries=TIMES * n)
    long, short = (
        moco("mocov2", scale, count=scale.memory, alpha=None, num_queries=m, epochs=epochs)
        for m, epochs in ((TIMES * n, TIMES * usual), (n, usual // TIMES))
    )
    rate = large.recipe.optimiser.base_learning_rate
    decay = {"ema_decay": round(decay_of(large.recipe) ** TIMES, 4)}
    warmup = {"warmup_epochs": max(1, scale.epochs // 10)}
    tasks = [
        small,
        large,
        with_changes(large, **decay),
        with_changes(large, base_learning_rate=rate / math.sqrt(TIMES)),
        with_changes(large, **warmup),
        long,
        short,
    ]
    by_place = {place_of(task.recipe): task for task in tasks}  # of one epoch there is no quarter
    return [Cell(at=place, task=task) for place, task in by_place.items()]


def with_changes(task: TrainingTask, **settings: float) -> TrainingTask:
    """The same training with other settings, by name."""
    return replace(task, recipe=with_settings(task.recipe, **settings))


def decay_of(recipe: Recipe) -> float:
    """β of a method that has a key encoder."""
    decay: float = asdict(recipe.method)["ema_decay"]
    return decay


def place_of(recipe: Recipe) -> Coordinates:
    """N, β, the rate that N makes, and the length."""
    optimiser, n = recipe.optimiser, recipe.training.num_queries
    return Coordinates(
        num_queries=n,
        ema_decay=decay_of(recipe),
        learning_rate=scaled_learning_rate(
            optimiser.base_learning_rate, n, optimiser.reference, rule=optimiser.rule
        ),
        epochs=recipe.training.epochs,
        warmup_epochs=int(optimiser.warmup_epochs) or None,
    )


def usual_batch(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """The smaller batch at the usual length, which is the first."""
    return next(iter(places))


STUDY_LARGE_BATCH = grid_experiment(
    name="study-large-batch",
    title="What a large batch costs MoCo v2: the rate, the number of steps, or β for each image?",
    cells={name: large_batch_cells(SCALES[name]) for name in ("smoke", "few-images", "paper")},
    baselines={"Less the small batch, points of accuracy, seed by seed": usual_batch},
)


SHORT, LONG = 0.1, 0.9  # of its history that an image keeps; SogCLR's authors keep the former
# loss, the α it imitates (∞: its limit), and the history that images keep of their normalisers
REMEDIES: tuple[tuple[Loss, float | None, float | None], ...] = (
    ("infonce", None, None),
    ("eqco", 65536.0, None),
    ("decoupled", math.inf, None),
    ("remembered", 65536.0, SHORT),
    ("remembered", 65536.0, LONG),
    ("sogclr", math.inf, SHORT),
    ("sogclr", math.inf, LONG),
)


def remedy_cells(scale: Scale, counts: list[int | None]) -> list[Cell]:
    """Rows: the loss; columns: K, all negatives of the batch last.

    A long history is tried with the fewest and with all.
    """
    return [
        Cell(
            at=Coordinates(
                loss=loss,
                alpha=alpha,
                history_kept=kept,
                num_negatives=count or scale.num_queries - 1,
            ),
            task=remember(simo(scale, count=count, alpha=alpha), kept),
        )
        for loss, alpha, kept in REMEDIES
        for count in (counts if kept != LONG else (counts[0], counts[-1]))
    ]


def remember(task: TrainingTask, kept: float | None) -> TrainingTask:
    """The same training with normalisers that images remember; None: without."""
    if kept is None:
        return task
    objective = replace(task.recipe.objective, normaliser="instance", normaliser_decay=kept)
    return replace(task, recipe=replace(task.recipe, objective=objective))


STUDY_FEW_NEGATIVES = grid_experiment(
    name="study-few-negatives",
    title="What few negatives cost under seven losses, at N = 256",
    axis="num_negatives",
    cells={
        "smoke": remedy_cells(SMOKE, [FEW, None]),
        "few-images": remedy_cells(FEW_IMAGES, [FEW, 16, None]),
        "paper": remedy_cells(PAPER, [FEW, None]),
    },
    quantities=("knn", "positive_probability", "information"),
    baselines={"Less all negatives, points of accuracy, seed by seed": with_all},
)


# transformers need more images than there are
CONVOLUTIONAL = [name for name in RECIPES if not name.endswith("-vit")]


def recipe_cells(scale: Scale, names: Collection[str]) -> list[Cell]:
    """A row for each recipe as it is published, with its own α."""
    return [
        Cell(
            at=Coordinates(framework=name),
            task=framework(name, scale, alpha=RECIPES[name].objective.alpha),
        )
        for name in names
    ]


def with_milder_colours(scale: Scale) -> Cell:
    """SimCLR with the colour changes of MoCo v2: groceries are told apart by their colours."""
    task = framework("simclr", scale, alpha=RECIPES["simclr"].objective.alpha)
    data = replace(task.recipe.data, pipeline="mocov2")
    return Cell(
        at=Coordinates(framework="simclr, colours of mocov2"),
        task=replace(task, recipe=replace(task.recipe, data=data)),
    )


def with_its_own_keys(scale: Scale) -> Cell:
    """SiMo whose keys come from the encoder itself, as SimCLR's do."""
    task = simo(scale, count=16, alpha=256, ema_decay=0.0)
    return Cell(at=Coordinates(framework="simo, β = 0"), task=task)


STUDY_RECIPES = grid_experiment(
    name="study-recipes",
    title="Every recipe on the embedded photos, beside random weights",
    main="knn",
    cells={
        "smoke": recipe_cells(SMOKE, ("byol", "cmc")),
        "embedded": [
            *recipe_cells(EMBEDDED, CONVOLUTIONAL),
            with_milder_colours(EMBEDDED),
            with_its_own_keys(EMBEDDED),
        ],
    },
    quantities=("accuracy",),
)


PRECISIONS: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
TRANSFORMERS = {
    "SimCLR, vision transformer": "simclr-vit",
    "MoCo v3, vision transformer": "mocov3-vit",
}
BEYOND = OTHERS | LATER | WITHOUT_NEGATIVES | TRANSFORMERS


def precision_cells(
    scale: Scale,
    others: Mapping[str, str],
    epochs: int = PUBLISHED_EPOCHS,
    transformer_epochs: int | None = None,
) -> list[Cell]:
    """Rows: the paper's recipes, then others by their titles; columns: the encoder's precision.

    bfloat16 is what precision auto chooses; it is named, so that a record says what was computed.
    The others train for so many of the paper's epochs; vision transformers, which take ten times as
    long for an image, for as many unless told otherwise.
    """
    lengths = dict.fromkeys(TRANSFORMERS, transformer_epochs or epochs)
    recipes = {
        "SiMo": simo(scale, count=16, alpha=256),
        "MoCo v1": moco("mocov1", scale, count=scale.memory, alpha=None),
        "MoCo v2": moco("mocov2", scale, count=scale.memory, alpha=None),
        "SimCLR": simclr(scale, count=scale.num_queries, alpha=256),
        **{
            title: framework(
                name,
                scale,
                alpha=RECIPES[name].objective.alpha,
                epochs=lengths.get(title, epochs),
            )
            for title, name in others.items()
        },
    }
    return [
        Cell(
            at=Coordinates(framework=name, precision=precision),
            task=in_precision(task, precision),
        )
        for name, task in recipes.items()
        for precision in PRECISIONS
    ]


def in_precision(task: TrainingTask, precision: Literal["float32", "bfloat16"]) -> TrainingTask:
    """The same training in another precision."""
    training = replace(task.recipe.training, precision=precision)
    return replace(task, recipe=replace(task.recipe, training=training))


def in_float32(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """The same recipe in float32."""
    return replace(at, precision="float32")


STUDY_PRECISION = grid_experiment(
    name="study-precision",
    title="Every recipe in bfloat16 and in float32",
    axis="precision",
    cells={
        "smoke": precision_cells(SMOKE, {}),
        "few-images": precision_cells(FEW_IMAGES, BEYOND, epochs=100),
        "embedded": precision_cells(EMBEDDED, BEYOND, transformer_epochs=40),
        "paper": precision_cells(PAPER, BEYOND),
    },
    quantities=("knn", "information"),
    baselines={"bfloat16 less float32, points of accuracy, seed by seed": in_float32},
)
