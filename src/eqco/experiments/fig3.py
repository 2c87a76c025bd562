"""Figure 3: accuracy of MoCo, MoCo v2 (a) and SimCLR (b) against K, with and without EqCo.

α imitates the best configuration: the largest memory for MoCo, 256 for SimCLR, with one point at a
larger α. The paper's curves are not published as numbers, except for what its prose says.
"""

from typing import Literal

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, moco, simclr

__all__ = ["FIG3"]

FRAMEWORKS: dict[Literal["mocov1", "mocov2"], str] = {"mocov2": "MoCo v2", "mocov1": "MoCo"}
LARGER = 4096.0


def grid(scale: Scale, counts: list[int], draws: list[int]) -> Grid:
    """(a): memories; (b): draws from the batch, the last of them N."""
    tab4, prose = PUBLISHED["tab4"].numbers, PUBLISHED["fig3"].numbers
    cells = []
    for framework, title in FRAMEWORKS.items():
        for with_eqco in (False, True):
            row = f"{title}, " + (f"EqCo, α={scale.memory}" if with_eqco else "InfoNCE")
            for count in [*counts, scale.memory]:
                alpha = float(scale.memory) if with_eqco and count < scale.memory else None
                plain_v2 = framework == "mocov2" and alpha is None
                cells.append(
                    Cell(
                        row=row,
                        column=f"K={count}",
                        recipe=moco(framework, scale, count=count, alpha=alpha),
                        published=tab4.get(count) if plain_v2 else None,
                    )
                )
    largest = scale.num_queries
    for alpha in (None, float(largest), LARGER):
        row = "SimCLR, " + ("InfoNCE" if alpha is None else f"EqCo, α={alpha:g}")
        for count in [largest] if alpha == LARGER else [*draws, largest]:
            same = alpha == count
            published = None
            if count == largest:
                published = prose["SimCLR, K=256" + ", alpha=4096" * (alpha == LARGER)]
            recipe = simclr(scale, count=count, alpha=None if same else alpha)
            cells.append(Cell(row=row, column=f"K={count}", recipe=recipe, published=published))
    return cells


FIG3 = grid_experiment(
    "fig3",
    "Figure 3: accuracy of MoCo, MoCo v2 and SimCLR against K, with and without EqCo",
    {
        "smoke": grid(SMOKE, [16], [4]),
        "desk": grid(DESK, [4, 16, 64, 256], [4, 16, 64]),
        "embedded": grid(EMBEDDED, [4, 16, 64], [4, 16]),
        "paper": grid(PAPER, [4, 16, 64, 256, 4096], [4, 16, 64]),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
    quantities=("knn", "information"),
    baseline=lambda cell: cell.row.endswith("InfoNCE"),
)
