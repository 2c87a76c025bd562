"""Figure 1: f̂ during the training of MoCo v2 under different K, with and without EqCo.

Without EqCo f̂ rises with K; with α fixed it ends at almost the same value. With α above K it is an
estimate, not a bound, and every table says so.
"""

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, moco

__all__ = ["FIG1"]


def grid(scale: Scale, counts: list[int]) -> Grid:
    """MoCo v2 with memories up to the largest; α is the largest."""
    cells = []
    for with_eqco in (False, True):
        row = f"EqCo, α={scale.memory}" if with_eqco else "InfoNCE"
        for count in [*counts, scale.memory]:
            # EqCo at α = K is InfoNCE, to the bit
            alpha = float(scale.memory) if with_eqco and count < scale.memory else None
            recipe = moco("mocov2", scale, count=count, alpha=alpha)
            cells.append(Cell(row=row, column=f"K={count}", recipe=recipe))
    return cells


FIG1 = grid_experiment(
    "fig1",
    "Figure 1: f̂ during the training of MoCo v2, with and without EqCo",
    {
        "smoke": grid(SMOKE, [16]),
        "desk": grid(DESK, [16, 256]),
        "embedded": grid(EMBEDDED, [16, 64]),
        "paper": grid(PAPER, [16, 256, 4096]),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
    main="information",
    quantities=("accuracy", "knn", "gradient_norm"),
)
