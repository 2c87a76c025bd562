"""Figure 4: SiMo under different K, with and without EqCo, at N = 256.

The paper takes K = 256 as the baseline and reduces it, with α = 256. A batch of N offers N − 1
negatives: its K = 256 is 255 here. A second row has a larger α, as Table 3 suggests.
"""

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import GAINED, SEEDS, Cell, grid_experiment, loss_of
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import simo
from eqco.recipes.profiles import DESK, EMBEDDED, FEW_IMAGES, PAPER, SMOKE, Scale

__all__ = ["CELLS", "FIG4"]


def cells(scale: Scale, counts: list[int], larger: float) -> list[Cell]:
    """InfoNCE, α = N as the paper, and a larger α, each under every K."""
    offered = scale.num_queries - 1
    numbers = dict(PUBLISHED["fig4"].numbers)
    found = []
    for alpha in (None, float(scale.num_queries), larger):
        for count in [*counts, offered]:
            at = Coordinates(loss=loss_of(alpha), alpha=alpha, num_negatives=count)
            # with all negatives InfoNCE is EqCo at α = K: one run serves both rows
            same = alpha == scale.num_queries and count == offered
            drawn = None if count == offered else count
            task = simo(scale, count=drawn, alpha=None if same else alpha)
            published = numbers.pop((256 if drawn is None else count, alpha), None)
            found.append(Cell(at=at, task=task, published=published))
    for (count, imitated), number in numbers.items():
        at = Coordinates(loss=loss_of(imitated), alpha=imitated, num_negatives=count)
        found.append(Cell(at=at, task=None, published=number))
    return found


CELLS = {
    "smoke": cells(SMOKE, [4], 4096),
    "desk": cells(DESK, [4, 16, 64], 4096),
    "few-images": cells(FEW_IMAGES, [4, 16], 65536),
    "embedded": cells(EMBEDDED, [4, 16], 4096),
    "paper": cells(PAPER, [4, 16, 64], 65536),
}
FIG4 = grid_experiment(
    kind="figure",
    number=4,
    title="Accuracy of SiMo against K, with and without EqCo",
    axis="num_negatives",
    cells=CELLS,
    quantities=("knn", "positive_probability", "information", "gradient_norm"),
    baselines=GAINED,
    seeds={**SEEDS, "desk": (0, 1, 2)},
)
