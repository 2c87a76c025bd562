"""Table 7: SiMo with shuffling BN and with Sync BN, half the epochs; the batch is cut in eight."""

from dataclasses import replace

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, simo
from eqco.recipes import recipe_from_dict

__all__ = ["TAB7"]

ALPHA = 65536.0  # as in Table 6, whose baseline this is
GROUPS = 8


def grid(scale: Scale) -> Grid:
    """Statistics of an eighth of the batch, keys shuffled; and of the whole batch."""
    numbers = PUBLISHED["tab7"].numbers
    baseline = simo(scale, count=None, alpha=ALPHA, epochs=100)
    encoder = recipe_from_dict(baseline["training"]).encoder
    cut = replace(encoder, bn_groups=GROUPS)
    shuffling = simo(scale, count=None, alpha=ALPHA, epochs=100, encoder=cut, shuffle_bn=True)
    return [
        Cell(row="SiMo", column=name, recipe=recipe, published=numbers[name])
        for name, recipe in (("shuffling BN", shuffling), ("Sync BN", baseline))
    ]


TAB7 = grid_experiment(
    "tab7",
    "Table 7: SiMo with shuffling BN and Sync BN",
    {"smoke": grid(SMOKE), "desk": grid(DESK), "embedded": grid(EMBEDDED), "paper": grid(PAPER)},
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
)
