"""Does the cost of few negatives go away with longer training, and sooner with EqCo?

SiMo with 4 negatives and with all of its batch, with and without EqCo, in trainings of a third, one
and three times the usual length, each with the learning rate falling to zero at its own end.
"""

from collections.abc import Collection

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import Cell, grid_experiment
from eqco.experiments.tasks import simo
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale

__all__ = ["FEW", "STUDY_LENGTH"]

FEW = 4


def cells(scale: Scale, lengths: list[int], alpha: float) -> list[Cell]:
    """Rows: loss and K, all negatives before few; columns: epochs."""
    return [
        Cell(
            at=Coordinates(
                loss="eqco" if imitated else "infonce",
                alpha=imitated,
                num_negatives=count or scale.num_queries - 1,
                epochs=scale.shortened(epochs),
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
        "smoke": cells(SMOKE, [200, 400], 4096),
        "desk": cells(DESK, [67, 200, 600], 4096),
        "embedded": cells(EMBEDDED, [67, 200, 600], 4096),
        "paper": cells(PAPER, [100, 200, 800], 65536),
    },
    quantities=("knn", "information"),
    baselines={f"K={FEW} less all negatives, points of accuracy, seed by seed": with_all},
)
