"""Table 4: MoCo v2 with memories of different size, without EqCo."""

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import Cell, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import moco
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale

__all__ = ["TAB4"]

NUMBERS = PUBLISHED["tab4"].numbers


def cells(scale: Scale, counts: list[int]) -> list[Cell]:
    """K up to the largest memory, and those of the paper that are not run."""
    counts = [*counts, scale.memory]
    return [
        Cell(
            at=Coordinates(framework="MoCo v2", num_negatives=count),
            task=moco("mocov2", scale, count=count, alpha=None) if count in counts else None,
            published=NUMBERS.get(count),
        )
        for count in sorted({*counts, *NUMBERS})
    ]


TAB4 = grid_experiment(
    kind="table",
    number=4,
    title="Accuracy of MoCo v2 against K",
    axis="num_negatives",
    cells={
        "smoke": cells(SMOKE, [64]),
        "desk": cells(DESK, [256, 1024]),
        "embedded": cells(EMBEDDED, [64]),
        "paper": cells(PAPER, [256, 1024, 4096, 16384]),
    },
)
