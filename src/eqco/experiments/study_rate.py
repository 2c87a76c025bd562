"""study-rate: is α more than a larger learning rate?

With 16 negatives α makes SiMo's gradient nearly twice as long (Figure 4). So InfoNCE is trained at
twice the rate as well, and EqCo too, beside all negatives of the batch.
"""

from collections.abc import Collection
from dataclasses import replace

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import GAINED, Cell, grid_experiment, loss_of
from eqco.experiments.tasks import TrainingTask, simo
from eqco.recipes import with_settings
from eqco.recipes.profiles import DESK, PAPER, SMOKE, Scale
from eqco.theory import scaled_learning_rate

__all__ = ["STUDY_RATE"]

FEW = 16
FACTORS = (1, 2)


def cells(scale: Scale, few: int) -> list[Cell]:
    """Rows: K and loss; columns: the learning rate, as it is used with the batch."""
    rows = ((few, None), (few, float(scale.num_queries)), (None, None))
    return [
        cell(simo(scale, count=count, alpha=alpha), factor)
        for count, alpha in rows
        for factor in FACTORS
    ]


def cell(task: TrainingTask, factor: int) -> Cell:
    """The training at so many times its rate."""
    recipe, n = task.recipe, task.recipe.training.num_queries
    rate = factor * recipe.optimiser.base_learning_rate
    alpha = recipe.objective.alpha
    return Cell(
        at=Coordinates(
            loss=loss_of(alpha),
            alpha=alpha,
            num_negatives=recipe.method.num_negatives(n),
            learning_rate=scaled_learning_rate(
                rate, n, recipe.optimiser.reference, rule=recipe.optimiser.rule
            ),
        ),
        task=replace(task, recipe=with_settings(recipe, base_learning_rate=rate)),
    )


def usual(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """InfoNCE at the usual rate, with as many negatives."""
    alike = [p for p in places if p.loss == "infonce" and p.num_negatives == at.num_negatives]
    return min(alike, key=lambda place: place.learning_rate or 0)


STUDY_RATE = grid_experiment(
    name="study-rate",
    title="Is α more than a larger learning rate?",
    axis="learning_rate",
    cells={
        "smoke": cells(SMOKE, 4),
        "desk": cells(DESK, FEW),
        "paper": cells(PAPER, FEW),
    },
    quantities=("knn", "positive_probability", "gradient_norm"),
    baselines={
        **GAINED,
        "Gained over InfoNCE at the usual rate, points of accuracy, seed by seed": usual,
    },
    seeds={"smoke": (0,), "desk": (0, 1, 2), "paper": (0,)},
)
