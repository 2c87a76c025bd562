"""Table 2: the paper's table row by row, then what we run beyond it.

The rows of CPC v2, CMC, PIRL, InfoMin and of SimCLR with its large batch are other papers' numbers
and have no run here. SimCLR at N = 256 has one, with the number of the text beside it.
"""

from dataclasses import replace

from eqco.experiments.coordinates import Coordinates, Difference
from eqco.experiments.grid import Cell, Named, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import TrainingTask, moco, simclr, simo
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale

__all__ = ["TAB2"]

TEXT = PUBLISHED["fig3"].numbers


def cells(scale: Scale, lengths: tuple[int, ...]) -> list[Cell]:
    """One row for each row of the paper, then SimCLR at our batch."""
    found = []
    for (framework, count, alpha, epochs), number in PUBLISHED["tab2"].numbers.items():
        task = task_of(scale, framework, count, alpha, epochs) if epochs in lengths else None
        printed = Coordinates(framework=framework, num_negatives=count, alpha=alpha, epochs=epochs)
        at = Coordinates(
            framework=framework,
            num_negatives=scale.memory if count is None else min(count, scale.num_queries - 1),
            alpha=scale.num_queries if alpha == 256 else alpha,
            epochs=scale.scaled_epochs(epochs),
        )
        found.append(Cell(at=at, task=task, published=number, printed=printed))
    beyond = Coordinates(framework="SimCLR", num_negatives=256, alpha=4096.0, epochs=200)
    n = scale.num_queries
    found.append(
        Cell(
            at=replace(beyond, num_negatives=n, epochs=scale.scaled_epochs(200)),
            task=simclr(scale, count=n, alpha=4096),
            published=TEXT["SimCLR, K=256, alpha=4096"],
            printed=beyond,
        )
    )
    return found


def task_of(
    scale: Scale, framework: str, count: int | None, alpha: float | None, epochs: int
) -> TrainingTask | None:
    """The training of a row, for the frameworks that have one here."""
    if framework == "MoCo v2":
        return moco("mocov2", scale, count=scale.memory, alpha=None, epochs=epochs)
    if framework != "SiMo":
        return None
    if count == 256:  # all negatives of the batch: α = N is InfoNCE
        return simo(scale, count=None, alpha=None if alpha == 256 else alpha, epochs=epochs)
    return simo(scale, count=count, alpha=scale.num_queries, epochs=epochs)


def named_numbers(scale: Scale) -> dict[str, list[Named]]:
    """The difference that Section 3 names."""
    epochs = scale.scaled_epochs(800)
    return {
        "Named in the text, points of accuracy": [
            Named(
                row=Difference(
                    of=Coordinates(framework="SiMo", alpha=65536, epochs=epochs),
                    less=Coordinates(framework="MoCo v2", epochs=epochs),
                ),
                task=simo(scale, count=None, alpha=65536, epochs=800),
                less=moco("mocov2", scale, count=scale.memory, alpha=None, epochs=800),
                published=PUBLISHED["prose"].numbers["SiMo less MoCo v2, 800 epochs (Section 3)"],
            )
        ]
    }


TAB2 = grid_experiment(
    kind="table",
    number=2,
    title="SiMo beside other frameworks",
    cells={
        "smoke": cells(SMOKE, (200,)),
        "desk": cells(DESK, (200, 800)),
        "embedded": cells(EMBEDDED, (200,)),
        "paper": cells(PAPER, (200, 800)),
    },
    named=named_numbers,
)
