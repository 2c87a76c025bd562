"""Table 1: MoCo v2 under different numbers of queries N, the learning rate by the linear rule."""

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import Cell, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import moco
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale

__all__ = ["TAB1"]


def cells(scale: Scale, factors: tuple[int, ...]) -> list[Cell]:
    """N times 1, 2 and 4 with the largest memory; the rate follows N (Eq. 8)."""
    found = []
    for published_n, number in PUBLISHED["tab1"].numbers.items():
        n = published_n * scale.num_queries // 256
        task = moco("mocov2", scale, count=scale.memory, alpha=None, num_queries=n)
        found.append(
            Cell(
                at=Coordinates(framework="MoCo v2", num_queries=n),
                task=task if published_n // 256 in factors else None,
                published=number,
                printed=Coordinates(framework="MoCo v2", num_queries=published_n),
            )
        )
    return found


TAB1 = grid_experiment(
    kind="table",
    number=1,
    title="Accuracy of MoCo v2 against the number of queries N",
    axis="num_queries",
    cells={
        "smoke": cells(SMOKE, (1, 2)),
        "desk": cells(DESK, (1, 2, 4)),
        "embedded": cells(EMBEDDED, (1, 2)),
        "paper": cells(PAPER, (1, 2, 4)),
    },
)
