"""study-small-folder: what to do with a batch of 8 to 64 on a small folder, over many seeds.

Photos of hands; SiMo with all negatives that there are, and a copy whose keys lag behind by as many
images at every N. One thing is changed at a time: N under InfoNCE and EqCo, then for batches of 16
the loss, the source of negatives, the rule of the rate, and what is held equal.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

from eqco.experiments.coordinates import Coordinates, Loss
from eqco.experiments.grid import Cell, grid_experiment
from eqco.experiments.tasks import short_recipe, small_folder
from eqco.methods import SiMoSettings
from eqco.recipes.rules import BASE

__all__ = ["STUDY_SMALL_FOLDER"]

ALPHA = 256.0
MEMORY = 0.9  # of its history that an image keeps
TIMES = 10  # τ₂ over τ, as published
FILLED = 256  # negatives, with a queue
USUAL = 16  # the batch for which one thing is changed at a time
DECAY = 0.99  # of its copy
# loss, the α it imitates, other settings of the objective
Variant = tuple[Loss, float | None, dict[str, Any]]
SECOND = {"second_temperature": TIMES * BASE.objective.temperature}
REMEMBERED = {"normaliser": "instance", "normaliser_decay": MEMORY}
PLAIN: Variant = ("infonce", None, {})
RULE: Variant = ("eqco", ALPHA, {})
OTHERS: tuple[Variant, ...] = (
    ("decoupled", math.inf, {}),
    ("dual temperature", None, SECOND),
    ("remembered", ALPHA, REMEMBERED),
    ("sogclr", math.inf, REMEMBERED),
)
WITH_A_QUEUE: tuple[Variant, ...] = (PLAIN, RULE, ("remembered", ALPHA, {"normaliser": "queue"}))


def cell(
    variant: Variant,
    n: int,
    *,
    epochs: int,
    image_size: int,
    source: Literal["batch", "batch and queue", "cached batch"] = "batch",
    rate_rule: Literal["square-root"] | None = None,
    equal: Literal["steps"] | None = None,
    **settings: Any,
) -> Cell:
    """One training with batches of N."""
    loss, alpha, objective = variant
    queue = FILLED - n if source == "batch and queue" else 0
    decay = round(DECAY ** (n / USUAL), 4)
    method = SiMoSettings(count=None, queue_size=queue, ema_decay=decay)
    recipe = short_recipe(
        method, num_queries=n, epochs=epochs, image_size=image_size, **{**objective, **settings}
    )
    return Cell(
        at=Coordinates(
            source=source,
            loss=loss,
            alpha=alpha,
            history_kept=objective.get("normaliser_decay"),
            num_queries=n,
            rate_rule=rate_rule,
            equal=equal,
        ),
        task=small_folder(recipe, method, alpha=alpha, accuracy="probe"),
    )


def cells(sizes: tuple[int, ...], n: int, epochs: int, image_size: int) -> list[Cell]:
    """Rows: what is changed; columns: N, the largest last.

    The largest batch is also computed in micro-batches of `n`, by caching: it has the gradient of
    the whole but for the statistics of batch norm.
    """
    largest = sizes[-1]
    shared: dict[str, Any] = {"epochs": epochs, "image_size": image_size}
    # a rate that is the same as by the linear rule at the largest N
    base = BASE.optimiser.base_learning_rate * largest / BASE.optimiser.reference
    square_root: dict[str, Any] = {"rule": "square-root", "reference": 1}
    square_root["base_learning_rate"] = base / math.sqrt(largest)
    cached: dict[str, Any] = {"accumulation": "cached", "accumulation_steps": largest // n}
    return [
        *(cell(variant, size, **shared) for variant in (PLAIN, RULE) for size in sizes),
        *(cell(variant, n, **shared) for variant in OTHERS),
        *(cell(variant, n, source="batch and queue", **shared) for variant in WITH_A_QUEUE),
        *(cell(v, largest, source="cached batch", **shared, **cached) for v in (PLAIN, RULE)),
        *(cell(v, n, rate_rule="square-root", **shared, **square_root) for v in (PLAIN, RULE)),
        *(
            cell(variant, n, equal="steps", epochs=epochs * n // largest, image_size=image_size)
            for variant in (PLAIN, RULE)
        ),
    ]


def plain_batch(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """InfoNCE on the negatives of the batch alone, with all else the same."""
    plain = replace(at, source="batch", loss="infonce", alpha=None, history_kept=None)
    return plain if plain in places else at


STUDY_SMALL_FOLDER = grid_experiment(
    name="study-small-folder",
    title="What to do with a batch of 8 to 64, on a small folder",
    axis="num_queries",
    cells={
        "smoke": cells((32, 64), 32, 2, 16)[::4],  # some of each kind
        "desk": cells((8, 16, 32, 64), USUAL, 24, 32),
    },
    quantities=("knn", "positive_probability"),
    baselines={
        "Gained over InfoNCE on the batch alone, points of accuracy, seed by seed": plain_batch
    },
    seeds={"smoke": (0,), "desk": tuple(range(10))},
)
