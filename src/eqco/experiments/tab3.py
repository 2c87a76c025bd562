"""Table 3: SiMo with all negatives of its batch and different α."""

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, simo

__all__ = ["TAB3"]

ALPHAS = [256, 1024, 4096, 16384, 65536]


def grid(scale: Scale, alphas: list[int]) -> Grid:
    """α from N on; with all negatives α = N is InfoNCE."""
    numbers = PUBLISHED["tab3"].numbers
    n = scale.num_queries
    return [
        Cell(
            row=f"SiMo, K={n - 1}",
            column=f"α={alpha}",
            recipe=simo(scale, count=None, alpha=None if alpha == n else alpha),
            published=numbers.get(alpha),
        )
        for alpha in alphas
    ]


TAB3 = grid_experiment(
    "tab3",
    "Table 3: accuracy of SiMo against α",
    {
        "smoke": grid(SMOKE, [32, 4096]),
        "desk": grid(DESK, ALPHAS),
        "embedded": grid(EMBEDDED, [64, 1024, 65536]),
        "paper": grid(PAPER, ALPHAS),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
    quantities=("knn", "information", "gradient_norm"),
)
