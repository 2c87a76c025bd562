"""Figure 1: f̂ during the training of MoCo v2 under different K, with and without EqCo.

Without EqCo f̂ rises with K; with α fixed it ends at almost the same value. With α above K it is an
estimate, not a bound, and every table says so. The paper has the curves alone, no numbers.
"""

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import Cell, grid_experiment, loss_of
from eqco.experiments.tasks import moco
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale

__all__ = ["CELLS", "FIG1"]


def cells(scale: Scale, counts: list[int]) -> list[Cell]:
    """MoCo v2 with memories up to the largest; α is the largest."""
    found = []
    for alpha in (None, float(scale.memory)):
        for count in [*counts, scale.memory]:
            at = Coordinates(loss=loss_of(alpha), alpha=alpha, num_negatives=count)
            # EqCo at α = K is InfoNCE, to the bit
            margin = None if count == scale.memory else alpha
            found.append(Cell(at=at, task=moco("mocov2", scale, count=count, alpha=margin)))
    return found


CELLS = {
    "smoke": cells(SMOKE, [16]),
    "desk": cells(DESK, [16, 256]),
    "embedded": cells(EMBEDDED, [16, 64]),
    "paper": cells(PAPER, [16, 256, 4096]),
}
FIG1 = grid_experiment(
    kind="figure",
    number=1,
    title="f̂ during the training of MoCo v2, with and without EqCo",
    axis="num_negatives",
    cells=CELLS,
    main="information",
    quantities=("accuracy", "knn", "gradient_norm"),
)
