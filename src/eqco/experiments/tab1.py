"""Table 1: MoCo v2 under different numbers of queries N, the learning rate by the linear rule."""

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, moco

__all__ = ["TAB1"]


def grid(scale: Scale, factors: tuple[int, ...]) -> Grid:
    """N times 1, 2 and 4 with the largest memory; the rate follows N (Eq. 8)."""
    numbers = PUBLISHED["tab1"].numbers
    cells = []
    for factor in factors:
        n = factor * scale.num_queries
        recipe = moco("mocov2", scale, count=scale.memory, alpha=None, num_queries=n)
        published = numbers[256 * factor]
        column = f"N={n}"
        cells.append(Cell(row="MoCo v2", column=column, recipe=recipe, published=published))
    return cells


TAB1 = grid_experiment(
    "tab1",
    "Table 1: accuracy of MoCo v2 against the number of queries N",
    {
        "smoke": grid(SMOKE, (1, 2)),
        "desk": grid(DESK, (1, 2, 4)),
        "embedded": grid(EMBEDDED, (1, 2)),
        "paper": grid(PAPER, (1, 2, 4)),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
)
