"""Tables of one framework and one setting that varies: 1 and 4 of MoCo v2, 3, 6 and 7 of SiMo."""

from collections.abc import Collection
from dataclasses import replace

from eqco.experiments.coordinates import Coordinates, Difference
from eqco.experiments.grid import Cell, Named, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import TrainingTask, moco, simo
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SCALES, SMOKE, Scale

__all__ = ["TAB1", "TAB3", "TAB4", "TAB6", "TAB7"]

ALPHAS = list(PUBLISHED["tab3"].numbers)
# Paper: K and α of Tables 6 and 7 are left open. Their baseline is called 68.5 % at 200 epochs
# elsewhere, which is K = 256 with α = 65536.
ALPHA = 65536.0
BN_GROUPS = 8


def query_cells(scale: Scale, factors: tuple[int, ...]) -> list[Cell]:
    """N times 1, 2 and 4 with the largest memory; the learning rate follows N (Eq. 8)."""
    cells = []
    for printed, number in PUBLISHED["tab1"].numbers.items():
        n = printed * scale.num_queries // 256
        task = moco("mocov2", scale, count=scale.memory, alpha=None, num_queries=n)
        cells.append(
            Cell(
                at=Coordinates(framework="MoCo v2", num_queries=n),
                task=task if printed // 256 in factors else None,
                published=number,
                printed=Coordinates(framework="MoCo v2", num_queries=printed),
            )
        )
    return cells


TAB1 = grid_experiment(
    kind="table",
    number=1,
    title="Accuracy of MoCo v2 against the number of queries N",
    axis="num_queries",
    cells={
        "smoke": query_cells(SMOKE, (1, 2)),
        "desk": query_cells(DESK, (1, 2, 4)),
        "embedded": query_cells(EMBEDDED, (1, 2)),
        "paper": query_cells(PAPER, (1, 2, 4)),
    },
)


def with_alpha(scale: Scale, alpha: float) -> TrainingTask:
    """SiMo with all negatives of its batch, where α = N is InfoNCE."""
    return simo(scale, count=None, alpha=None if alpha == scale.num_queries else alpha)


def alpha_cells(scale: Scale, alphas: list[int]) -> list[Cell]:
    """α from N on, and those of the paper that are not run."""
    return [
        Cell(
            at=Coordinates(framework="SiMo", num_negatives=scale.num_queries - 1, alpha=alpha),
            task=with_alpha(scale, alpha) if alpha in alphas else None,
            published=PUBLISHED["tab3"].numbers.get(alpha),
        )
        for alpha in sorted({*alphas, *ALPHAS})
    ]


def alpha_gain(scale: Scale) -> Named:
    """The difference that Section 4 names."""
    n = scale.num_queries
    return Named(
        row=Difference(of=Coordinates(alpha=65536), less=Coordinates(alpha=n)),
        task=with_alpha(scale, 65536),
        less=with_alpha(scale, n),
        published=PUBLISHED["prose"].numbers["SiMo, alpha=65536 less 256, 200 epochs (Section 4)"],
    )


TAB3 = grid_experiment(
    kind="table",
    number=3,
    title="Accuracy of SiMo against α",
    axis="alpha",
    cells={
        "smoke": alpha_cells(SMOKE, [32, 4096]),
        "desk": alpha_cells(DESK, ALPHAS),
        "embedded": alpha_cells(EMBEDDED, [64, 1024, 65536]),
        "paper": alpha_cells(PAPER, ALPHAS),
    },
    quantities=("knn", "information", "gradient_norm"),
    named=lambda scale: {"Named in the text, points of accuracy": [alpha_gain(scale)]},
)


def memory_cells(scale: Scale, *counts: int) -> list[Cell]:
    """K up to the largest memory, and those of the paper that are not run."""
    run, numbers = {*counts, scale.memory}, PUBLISHED["tab4"].numbers
    return [
        Cell(
            at=Coordinates(framework="MoCo v2", num_negatives=count),
            task=moco("mocov2", scale, count=count, alpha=None) if count in run else None,
            published=numbers.get(count),
        )
        for count in sorted({*run, *numbers})
    ]


TAB4 = grid_experiment(
    kind="table",
    number=4,
    title="Accuracy of MoCo v2 against K",
    axis="num_negatives",
    cells={
        "smoke": memory_cells(SMOKE, 64),
        "desk": memory_cells(DESK, 256, 1024),
        "embedded": memory_cells(EMBEDDED, 64),
        "paper": memory_cells(PAPER, 256, 1024, 4096, 16384),
    },
)


def momentum_cells(scale: Scale) -> list[Cell]:
    """β = 0, and the β of the profile."""
    usual = scale.small.ema_decay if scale.small else 0.999
    decays = {0.0: 0.0, 0.999: usual}
    return [
        Cell(
            at=Coordinates(framework="SiMo", ema_decay=decays[printed]),
            task=simo(scale, count=None, alpha=ALPHA, epochs=100, ema_decay=decays[printed]),
            published=number,
            printed=Coordinates(framework="SiMo", ema_decay=printed),
        )
        for printed, number in PUBLISHED["tab6"].numbers.items()
    ]


def without_momentum(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """Keys of the encoder as it is."""
    return replace(at, ema_decay=0.0)


TAB6 = grid_experiment(
    kind="table",
    number=6,
    title="SiMo with and without momentum",
    axis="ema_decay",
    cells={profile: momentum_cells(scale) for profile, scale in SCALES.items()},
    baselines={"Gained by momentum, points of accuracy, seed by seed": without_momentum},
)


def batch_norm_cells(scale: Scale) -> list[Cell]:
    """Statistics of an eighth of the batch, keys shuffled; and of the whole batch."""
    groups = {"bn_groups": BN_GROUPS}
    return [
        Cell(
            at=Coordinates(framework="SiMo", batch_norm="shuffling"),
            task=simo(scale, count=None, alpha=ALPHA, epochs=100, encoder=groups, shuffle_bn=True),
            published=PUBLISHED["tab7"].numbers["shuffling BN"],
        ),
        Cell(
            at=Coordinates(framework="SiMo", batch_norm="sync"),
            task=simo(scale, count=None, alpha=ALPHA, epochs=100),
            published=PUBLISHED["tab7"].numbers["Sync BN"],
        ),
    ]


def with_sync_bn(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """Statistics of the whole batch."""
    return replace(at, batch_norm="sync")


TAB7 = grid_experiment(
    kind="table",
    number=7,
    title="SiMo with shuffling BN and Sync BN",
    axis="batch_norm",
    cells={profile: batch_norm_cells(scale) for profile, scale in SCALES.items()},
    baselines={"Shuffling BN less Sync BN, points of accuracy, seed by seed": with_sync_bn},
)
