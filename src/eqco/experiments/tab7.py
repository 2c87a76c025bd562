"""Table 7: SiMo with shuffling BN and with Sync BN, half the epochs; the batch is cut in eight."""

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import Cell, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import simo
from eqco.recipes.profiles import SCALES, Scale

__all__ = ["TAB7"]

ALPHA = 65536.0  # as in Table 6, whose baseline this is
GROUPS = 8


def cells(scale: Scale) -> list[Cell]:
    """Statistics of an eighth of the batch, keys shuffled; and of the whole batch."""
    numbers = PUBLISHED["tab7"].numbers
    return [
        Cell(
            at=Coordinates(framework="SiMo", batch_norm="shuffling"),
            task=simo(
                scale,
                count=None,
                alpha=ALPHA,
                epochs=100,
                encoder={"bn_groups": GROUPS},
                shuffle_bn=True,
            ),
            published=numbers["shuffling BN"],
        ),
        Cell(
            at=Coordinates(framework="SiMo", batch_norm="sync"),
            task=simo(scale, count=None, alpha=ALPHA, epochs=100),
            published=numbers["Sync BN"],
        ),
    ]


TAB7 = grid_experiment(
    kind="table",
    number=7,
    title="SiMo with shuffling BN and Sync BN",
    axis="batch_norm",
    cells={profile: cells(scale) for profile, scale in SCALES.items()},
)
