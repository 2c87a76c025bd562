"""What to do with a small batch: N queries, with and without a short queue, under three losses.

SiMo at N = 16, 64 and 256, the learning rate by the linear rule. The negatives are those of the
batch alone, or a queue fills them up to what N = 256 offers. The losses: InfoNCE, EqCo with α
fixed, and the decoupled loss, which is EqCo's limit for α → ∞.
"""

import math

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, simo

__all__ = ["STUDY_SMALL_BATCH"]

ALPHA = 4096.0
LOSSES = {"InfoNCE": None, f"EqCo, α={ALPHA:g}": ALPHA, "decoupled": math.inf}


def grid(scale: Scale, sizes: list[int], epochs: int) -> Grid:
    """Rows: source of negatives and loss; columns: N."""
    largest = scale.num_queries
    cells = []
    for source in ("batch", "batch and queue"):
        for loss, alpha in LOSSES.items():
            for n in [*sizes, largest]:
                # the largest batch has as many negatives by itself
                queue = largest - n if source != "batch" else 0
                recipe = simo(
                    scale, count=None, alpha=alpha, queue=queue, num_queries=n, epochs=epochs
                )
                cells.append(Cell(row=f"{source}: {loss}", column=f"N={n}", recipe=recipe))
    return cells


STUDY_SMALL_BATCH = grid_experiment(
    "study-small-batch",
    "Study: small batches, with and without a short queue, under three losses",
    {
        "smoke": grid(SMOKE, [8], 200),
        # a third of the usual length: at N = 16 a step of overhead is a step of computing
        "desk": grid(DESK, [16, 64], 67),
        "embedded": grid(EMBEDDED, [16], 200),
        "paper": grid(PAPER, [16, 64], 100),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
    quantities=("knn", "information", "gradient_norm"),
    baseline=lambda cell: cell.row == "batch: InfoNCE",
)
