"""What to do with a small batch: N queries, with and without a short queue, under three losses.

SiMo at N = 16, 64 and 256, the learning rate by the linear rule. The negatives are those of the
batch alone, or a queue fills them up to what N = 256 offers. The losses: InfoNCE, EqCo with α
fixed, and the decoupled loss, which is EqCo's limit for α → ∞.
"""

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from eqco.experiments.coordinates import Coordinates, Loss
from eqco.experiments.grid import Cell, grid_experiment
from eqco.experiments.tasks import simo
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale

__all__ = ["STUDY_SMALL_BATCH"]

SOURCES: tuple[Literal["batch", "batch and queue"], ...] = ("batch", "batch and queue")
LOSSES: dict[Loss, float | None] = {"infonce": None, "eqco": 4096.0, "decoupled": math.inf}


def cells(scale: Scale, sizes: list[int], epochs: int) -> list[Cell]:
    """Rows: source of negatives and loss; columns: N."""
    largest = scale.num_queries
    return [
        Cell(
            at=Coordinates(source=source, loss=loss, alpha=alpha, num_queries=n),
            task=simo(
                scale,
                count=None,
                alpha=alpha,
                # the largest batch has as many negatives by itself
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
        "smoke": cells(SMOKE, [8], 200),
        # a third of the usual length: at N = 16 a step of overhead is a step of computing
        "desk": cells(DESK, [16, 64], 67),
        "embedded": cells(EMBEDDED, [16], 200),
        "paper": cells(PAPER, [16, 64], 100),
    },
    quantities=("knn", "information", "gradient_norm"),
    baselines={
        "Gained over InfoNCE on the batch alone, points of accuracy, seed by seed": plain_batch
    },
)
