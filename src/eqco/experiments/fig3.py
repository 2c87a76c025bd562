"""Figure 3: accuracy of MoCo, MoCo v2 (a) and SimCLR (b) against K, with and without EqCo.

α imitates the best configuration: the largest memory for MoCo, 256 for SimCLR, with one point at a
larger α. The paper's curves are not published as numbers, except for what its prose says, and for
plain MoCo v2, which is Table 4.
"""

from typing import Literal

from eqco.experiments.coordinates import Coordinates, Difference, Loss
from eqco.experiments.grid import GAINED, Cell, Named, grid_experiment, loss_of
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import TrainingTask, moco, simclr
from eqco.recipes.profiles import DESK, EMBEDDED, FEW_IMAGES, PAPER, SMOKE, Scale

__all__ = ["CELLS", "FIG3"]

FRAMEWORKS: dict[Literal["mocov1", "mocov2"], str] = {"mocov2": "MoCo v2", "mocov1": "MoCo"}
LARGER = 4096.0
TEXT = PUBLISHED["fig3"].numbers
PLAIN = {  # framework -> K -> accuracy without EqCo
    "MoCo v2": dict(PUBLISHED["tab4"].numbers),
    "MoCo": {256: TEXT["MoCo, K=256 (He et al.)"], 65536: TEXT["MoCo, K=65536 (He et al.)"]},
    "SimCLR": {256: TEXT["SimCLR, K=256"], 4096: TEXT["SimCLR, K=4096 (Chen et al.)"]},
}


def cells(scale: Scale, counts: list[int], draws: list[int]) -> list[Cell]:
    """(a): memories; (b): draws from the batch, the last of them N; and what the paper has more."""
    found = []
    for recipe, framework in FRAMEWORKS.items():
        for alpha in (None, float(scale.memory)):
            for count in [*counts, scale.memory]:
                margin = None if count == scale.memory else alpha
                task = moco(recipe, scale, count=count, alpha=margin)
                found.append(cell(framework, alpha, count, task))
    largest = scale.num_queries
    for alpha in (None, float(largest), LARGER):
        for count in [largest] if alpha == LARGER else [*draws, largest]:
            task = simclr(scale, count=count, alpha=None if alpha == count else alpha)
            found.append(cell("SimCLR", alpha, count, task))
    run = {(each.at.framework, each.at.alpha, each.at.num_negatives) for each in found}
    published = [(name, None, count) for name, numbers in PLAIN.items() for count in numbers]
    return found + [
        cell(*at, None) for at in (*published, ("SimCLR", LARGER, 256)) if at not in run
    ]


def cell(framework: str, alpha: float | None, count: int, task: TrainingTask | None) -> Cell:
    """A run, and the paper's number of the same K and α."""
    at = Coordinates(framework=framework, loss=loss_of(alpha), alpha=alpha, num_negatives=count)
    published = PLAIN[framework].get(count) if alpha in (None, count) else None
    if (framework, alpha, count) == ("SimCLR", LARGER, 256):
        published = TEXT["SimCLR, K=256, alpha=4096"]
    return Cell(at=at, task=task, published=published)


def named_numbers(scale: Scale) -> dict[str, list[Named]]:
    """The headline, and what another paper reports of SimCLR."""
    few, most = min(256, scale.memory // 2), float(scale.memory)
    losses: tuple[tuple[Loss, float | None, str], ...] = (
        ("infonce", None, "MoCo, drop from K=65536 to 256"),
        ("eqco", most, "MoCo with EqCo, drop from K=65536 to 256"),
    )
    batches = {256: "batch 256, 100 epochs (Chen et al.)"}
    batches[8192] = "batch 8192, 100 epochs (Chen et al.), at least"
    return {
        "What the smaller memory costs MoCo, points of accuracy": [
            Named(
                row=Difference(
                    of=Coordinates(loss=loss, alpha=alpha, num_negatives=scale.memory),
                    less=Coordinates(num_negatives=few),
                ),
                task=moco("mocov1", scale, count=scale.memory, alpha=None),
                less=moco("mocov1", scale, count=few, alpha=alpha),
                published=TEXT[key],
            )
            for loss, alpha, key in losses
        ],
        "SimCLR, as Chen et al. report it (at least, for N=8192), %": [
            Named(row=Coordinates(num_queries=n, epochs=100), published=TEXT[f"SimCLR, {key}"])
            for n, key in batches.items()
        ],
    }


CELLS = {
    "smoke": cells(SMOKE, [16], [4]),
    "desk": cells(DESK, [4, 16, 64, 256], [4, 16, 64]),
    "few-images": cells(FEW_IMAGES, [16, 256], [4]),
    "embedded": cells(EMBEDDED, [4, 16, 64], [4, 16]),
    "paper": cells(PAPER, [4, 16, 64, 256, 4096], [4, 16, 64]),
}
FIG3 = grid_experiment(
    kind="figure",
    number=3,
    title="Accuracy of MoCo, MoCo v2 and SimCLR against K, with and without EqCo",
    axis="num_negatives",
    cells=CELLS,
    quantities=("knn", "positive_probability", "information"),
    baselines=GAINED,
    named=named_numbers,
)
