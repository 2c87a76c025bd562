"""Table 2: SiMo beside MoCo v2 and SimCLR, at 200 and 800 epochs.

The rows of CPC v2, CMC, PIRL, InfoMin and of SimCLR with a batch of 4096 are other papers' numbers:
they are in `published.py` and have no run here. SimCLR at N = 256 has one, with the number of the
prose beside it.
"""

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, moco, simclr, simo

__all__ = ["TAB2"]


def grid(scale: Scale, lengths: tuple[int, ...]) -> Grid:
    """One line for each framework, one column for each length."""
    numbers, prose = PUBLISHED["tab2"].numbers, PUBLISHED["fig3"].numbers
    n = scale.num_queries
    cells = []
    for epochs in lengths:
        column = f"{scale.shortened(epochs)} epochs"
        baseline = moco("mocov2", scale, count=scale.memory, alpha=None, epochs=epochs)
        rows = [(f"MoCo v2, K={scale.memory}", baseline, numbers[("MoCo v2", epochs)])]
        if epochs == 200:
            few = simo(scale, count=16, alpha=n)
            rows += [
                (
                    f"SimCLR, K={n}, α=4096",
                    simclr(scale, count=n, alpha=4096),
                    prose["SimCLR, K=256, alpha=4096"],
                ),
                (f"SiMo, K=16, α={n}", few, numbers[("SiMo, K=16, alpha=256", 200)]),
            ]
        for alpha in (256, 65536):
            imitated = n if alpha == 256 else alpha
            # with all negatives α = N is InfoNCE
            recipe = simo(
                scale, count=None, alpha=None if alpha == 256 else imitated, epochs=epochs
            )
            published = numbers[(f"SiMo, K=256, alpha={alpha}", epochs)]
            rows.append((f"SiMo, K={n - 1}, α={imitated}", recipe, published))
        cells += [
            Cell(row=row, column=column, recipe=recipe, published=published)
            for row, recipe, published in rows
        ]
    return cells


TAB2 = grid_experiment(
    "tab2",
    "Table 2: SiMo beside MoCo v2 and SimCLR",
    {
        "smoke": grid(SMOKE, (200,)),
        "desk": grid(DESK, (200, 800)),
        "embedded": grid(EMBEDDED, (200,)),
        "paper": grid(PAPER, (200, 800)),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
)
