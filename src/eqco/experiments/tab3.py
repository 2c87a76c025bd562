"""Table 3: SiMo with all negatives of its batch and different α."""

from eqco.experiments.coordinates import Coordinates, Difference
from eqco.experiments.grid import Cell, Named, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import TrainingTask, simo
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SCALES, SMOKE, Scale

__all__ = ["TAB3"]

NUMBERS = PUBLISHED["tab3"].numbers


def task(scale: Scale, alpha: float) -> TrainingTask:
    """With all negatives α = N is InfoNCE."""
    return simo(scale, count=None, alpha=None if alpha == scale.num_queries else alpha)


def cells(scale: Scale, alphas: list[int]) -> list[Cell]:
    """α from N on, and those of the paper that are not run."""
    return [
        Cell(
            at=Coordinates(framework="SiMo", num_negatives=scale.num_queries - 1, alpha=alpha),
            task=task(scale, alpha) if alpha in alphas else None,
            published=NUMBERS.get(alpha),
        )
        for alpha in sorted({*alphas, *NUMBERS})
    ]


def named(scale: Scale) -> dict[str, list[Named]]:
    """The difference that Section 4 names."""
    published = PUBLISHED["prose"].numbers["SiMo, alpha=65536 less 256, 200 epochs (Section 4)"]
    row = Difference(of=Coordinates(alpha=65536), less=Coordinates(alpha=scale.num_queries))
    tasks = (task(scale, 65536), task(scale, scale.num_queries))
    return {
        "Named in the text, points of accuracy": [
            Named(row=row, task=tasks[0], less=tasks[1], published=published)
        ]
    }


TAB3 = grid_experiment(
    kind="table",
    number=3,
    title="Accuracy of SiMo against α",
    axis="alpha",
    cells={
        "smoke": cells(SMOKE, [32, 4096]),
        "desk": cells(DESK, list(NUMBERS)),
        "embedded": cells(EMBEDDED, [64, 1024, 65536]),
        "paper": cells(PAPER, list(NUMBERS)),
    },
    quantities=("knn", "information", "gradient_norm"),
    named={profile: named(scale) for profile, scale in SCALES.items()},
)
