"""study-alpha: which α to choose for K negatives on a small folder, over many seeds.

Photos of hands, N = 64; all but K and α is what `eqco train` chooses for a folder of that size.
"""

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import GAINED, Cell, grid_experiment, loss_of
from eqco.experiments.tasks import short_recipe, small_folder
from eqco.methods import MoCoSettings, SimCLRSettings, SiMoSettings
from eqco.methods.base import MethodSettings
from eqco.recipes import Recipe

__all__ = ["CELLS", "STUDY_ALPHA"]

NUM_QUERIES = 64
COUNTS = (2, 4, 8, 16, 32, NUM_QUERIES - 1)
ALPHAS = (None, 16.0, 64.0, 256.0, 1024.0, 4096.0)


def frameworks(count: int) -> dict[str, MethodSettings]:
    """With K negatives: keys of the batch by the encoder itself, negatives of both views, a queue
    of keys by a slow copy.
    """
    return {
        "SiMo": SiMoSettings(count=count, ema_decay=0.0),
        "SimCLR": SimCLRSettings(count=count),
        "MoCo": MoCoSettings(queue_size=count, ema_decay=0.99),
    }


def cells(recipe: Recipe, counts: tuple[int, ...], alphas: tuple[float | None, ...]) -> list[Cell]:
    """Rows: framework and loss; columns: K. α = K is InfoNCE, and nobody wants a
    smaller one."""
    return [
        Cell(
            at=Coordinates(framework=name, loss=loss_of(alpha), alpha=alpha, num_negatives=count),
            task=small_folder(
                recipe,
                frameworks(count)[name],
                alpha=alpha,
                accuracy="probe",
            ),
        )
        for name in frameworks(1)
        for alpha in alphas
        for count in counts
        if alpha is None or alpha > count
    ]


def shared(epochs: int, image_size: int) -> Recipe:
    """The recipe of all cells."""
    return short_recipe(num_queries=NUM_QUERIES, epochs=epochs, image_size=image_size)


CELLS = {
    "smoke": cells(shared(1, 16), (4,), (None, 256.0)),
    "desk": cells(shared(20, 32), COUNTS, ALPHAS),
}
STUDY_ALPHA = grid_experiment(
    name="study-alpha",
    title="Which α for K negatives, on a small folder",
    axis="num_negatives",
    cells=CELLS,
    quantities=("knn", "positive_probability"),
    baselines=GAINED,
    seeds={"smoke": (0,), "desk": tuple(range(10))},
)
