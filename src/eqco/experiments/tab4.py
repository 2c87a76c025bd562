"""Table 4: MoCo v2 with memories of different size, without EqCo."""

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, moco

__all__ = ["TAB4"]


def grid(scale: Scale, counts: list[int]) -> Grid:
    """K up to the largest memory."""
    numbers = PUBLISHED["tab4"].numbers
    return [
        Cell(
            row="MoCo v2",
            column=f"K={count}",
            recipe=moco("mocov2", scale, count=count, alpha=None),
            published=numbers.get(count),
        )
        for count in [*counts, scale.memory]
    ]


TAB4 = grid_experiment(
    "tab4",
    "Table 4: accuracy of MoCo v2 against K",
    {
        "smoke": grid(SMOKE, [64]),
        "desk": grid(DESK, [256, 1024]),
        "embedded": grid(EMBEDDED, [64]),
        "paper": grid(PAPER, [256, 1024, 4096, 16384]),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
)
