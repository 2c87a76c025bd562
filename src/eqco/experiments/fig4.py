"""Figure 4: SiMo under different K, with and without EqCo, at N = 256.

The paper takes K = 256 as the baseline and reduces it, with α = 256. A batch of N offers N − 1
negatives: its K = 256 is 255 here. A second row has a larger α, as Table 3 suggests.
"""

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, simo

__all__ = ["FIG4"]


def grid(scale: Scale, counts: list[int], larger: float) -> Grid:
    """InfoNCE, α = N as the paper, and a larger α, each under every K."""
    offered = scale.num_queries - 1
    numbers = PUBLISHED["fig4"].numbers
    cells = []
    for alpha in (None, float(scale.num_queries), larger):
        row = "InfoNCE" if alpha is None else f"EqCo, α={alpha:g}"
        for count in [*counts, offered]:
            # with all negatives InfoNCE is EqCo at α = K: one run serves both rows
            same = alpha == scale.num_queries and count == offered
            recipe = simo(
                scale,
                count=None if count == offered else count,
                alpha=None if same else alpha,
            )
            paper_count = 256 if count == offered else count
            published = numbers.get((paper_count, alpha if alpha is None else int(alpha)))
            cells.append(Cell(row=row, column=f"K={count}", recipe=recipe, published=published))
    return cells


FIG4 = grid_experiment(
    "fig4",
    "Figure 4: accuracy of SiMo against K, with and without EqCo",
    {
        "smoke": grid(SMOKE, [4], 4096),
        "desk": grid(DESK, [4, 16, 64], 4096),
        "embedded": grid(EMBEDDED, [4, 16], 4096),
        "paper": grid(PAPER, [4, 16, 64], 65536),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
    quantities=("knn", "information", "gradient_norm"),
    baseline=lambda cell: cell.row == "InfoNCE",
)
