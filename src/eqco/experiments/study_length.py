"""Does the cost of few negatives go away with longer training, and sooner with EqCo?

SiMo with 4 negatives and with all of its batch, with and without EqCo, in trainings of a third, one
and three times the usual length, each with the learning rate falling to zero at its own end.
"""

from collections.abc import Sequence
from dataclasses import replace

from eqco.experiments.experiment import Comparison, Experiment
from eqco.experiments.grid import Cell, Grid, differences, grid_experiment
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, simo
from eqco.runtime.records import Record

__all__ = ["STUDY_LENGTH"]

FEW = 4


def grid(scale: Scale, lengths: list[int], alpha: float) -> Grid:
    """Rows: loss and K, all negatives before few; columns: epochs."""
    cells = []
    for imitated in (None, alpha):
        loss = "InfoNCE" if imitated is None else f"EqCo, α={alpha:g}"
        for count in (None, FEW):
            met = scale.num_queries - 1 if count is None else count
            for epochs in lengths:
                cells.append(
                    Cell(
                        row=f"{loss}, K={met}",
                        column=f"{scale.shortened(epochs)} epochs",
                        recipe=simo(scale, count=count, alpha=imitated, epochs=epochs),
                    )
                )
    return cells


GRIDS = {
    "smoke": grid(SMOKE, [200, 400], 4096),
    "desk": grid(DESK, [67, 200, 600], 4096),
    "embedded": grid(EMBEDDED, [67, 200, 600], 4096),
    "paper": grid(PAPER, [100, 200, 800], 65536),
}


def with_gap(experiment: Experiment) -> Experiment:
    """The same, with a table of what few negatives cost."""

    def further(records: Sequence[Record]) -> dict[str, list[Comparison]]:
        grid = GRIDS[records[0].profile]
        gap = differences(grid, records, lambda cell: not cell.row.endswith(f"K={FEW}"))
        title = f"K={FEW} less all negatives, points of accuracy, seed by seed"
        return {**({title: gap} if gap else {}), **experiment.further(records)}

    return replace(experiment, further=further)


STUDY_LENGTH = with_gap(
    grid_experiment(
        "study-length",
        "Study: what few negatives cost, against the length of training",
        GRIDS,
        seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
        quantities=("knn", "information"),
    )
)
