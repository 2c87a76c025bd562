"""Table 2: the paper's table row by row, then what we run beyond it.

The row of SimCLR with its large batch is another paper's number and has no run here. SimCLR at
N = 256 has one, with the number of the text beside it. Beyond the paper: each system with few
negatives, without and with EqCo, and what came later. CPC v2 also has rows whose negatives are of
other images alone, as EqCo asks: all of them, and few. What does without negatives, where EqCo has
nothing to change, stands below a line.
"""

from collections.abc import Collection
from dataclasses import replace

from eqco.experiments.coordinates import Coordinates, Difference
from eqco.experiments.grid import Cell, Named, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import TrainingTask, framework, moco, simclr, simo
from eqco.recipes import with_settings
from eqco.recipes.profiles import (
    DESK,
    EMBEDDED,
    FEW_IMAGES,
    PAPER,
    PUBLISHED_EPOCHS,
    SMOKE,
    Scale,
)

__all__ = ["LATER", "OTHERS", "TAB2", "WITHOUT_NEGATIVES"]

TEXT = PUBLISHED["fig3"].numbers
OTHERS = {"CPC v2": "cpcv2", "CMC": "cmc", "InfoMin Aug.": "infomin", "PIRL": "pirl"}
LATER = {"SimCLR v2": "simclrv2", "MoCo v3": "mocov3"}
WITHOUT_NEGATIVES = {"BYOL": "byol", "SwAV": "swav"}
# with a K that can be chosen
CHOOSABLE = {"MoCo v2": "mocov2", "CMC": "cmc", "InfoMin Aug.": "infomin", "PIRL": "pirl"}
CHOOSABLE |= {"SimCLR v2": "simclrv2", "MoCo v3": "mocov3"}
OTHER_IMAGES = "CPC v2, negatives of other images"
FEW = 16
LARGE = 65536.0  # the α of rows that have more negatives than any memory here


def cells(scale: Scale, lengths: tuple[int, ...]) -> list[Cell]:
    """One row for each row of the paper, then SimCLR at our batch."""
    found = []
    for (name, count, alpha, epochs), number in PUBLISHED["tab2"].numbers.items():
        task = task_of(scale, name, count, alpha, epochs) if epochs in lengths else None
        printed = Coordinates(framework=name, num_negatives=count, alpha=alpha, epochs=epochs)
        at = Coordinates(
            framework=name,
            num_negatives=negatives_of(scale, task, count),
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


def negatives_of(scale: Scale, task: TrainingTask | None, count: int | None) -> int | None:
    """K of a row: of its training, or what becomes of the paper's."""
    if count is not None:
        return min(count, scale.num_queries - 1)
    if task is None:
        return scale.memory
    return task.recipe.method.num_negatives(scale.num_queries)


def beyond_the_paper(scale: Scale) -> list[Cell]:
    """Few negatives without and with EqCo, and later systems."""
    tasks = [("PIRL", framework("pirl", scale))]  # the paper has it at another length
    tasks += [("SiMo", simo(scale, count=FEW, alpha=None))]
    tasks += [
        (title, framework(name, scale, few=FEW, alpha=alpha))
        for title, name in CHOOSABLE.items()
        for alpha in (None, imitated(name, scale))
    ]
    tasks += [
        ("SimCLR", simclr(scale, count=FEW, alpha=alpha)) for alpha in (None, scale.num_queries)
    ]
    tasks += [
        (OTHER_IMAGES, from_other_images(framework("cpcv2", scale, alpha=alpha)))
        for alpha in (None, LARGE)
    ]
    tasks += [
        (OTHER_IMAGES, framework("cpcv2", scale, few=FEW, alpha=alpha))
        for alpha in (None, imitated("cpcv2", scale))
    ]
    tasks += [(title, framework(name, scale)) for title, name in LATER.items()]
    return [row_of(title, task, scale) for title, task in tasks]


def imitated(name: str, scale: Scale) -> float:
    """α of few negatives: the K of the system's own queue or bank; beside a batch, as many as the
    longest queue holds.
    """
    method, n = framework(name, scale).recipe.method, scale.num_queries
    own = method.num_negatives(n) if method.num_batch_negatives(n) is None else scale.memory
    assert own is not None
    return float(own)


def without_negatives(scale: Scale, titles: Collection[str]) -> list[Cell]:
    """Systems that do without negatives."""
    return [
        replace(
            row_of(title, framework(WITHOUT_NEGATIVES[title], scale), scale),
            part="Without negatives",
        )
        for title in titles
    ]


def row_of(title: str, task: TrainingTask, scale: Scale) -> Cell:
    """A row that the paper does not have."""
    at = Coordinates(
        framework=title,
        num_negatives=task.recipe.method.num_negatives(scale.num_queries),
        alpha=task.recipe.objective.alpha,
        epochs=scale.scaled_epochs(PUBLISHED_EPOCHS),
    )
    return Cell(at=at, task=task)


def from_other_images(task: TrainingTask) -> TrainingTask:
    """CPC v2 without the negatives that depend on the query."""
    return replace(task, recipe=with_settings(task.recipe, other_images_only=True))


def task_of(
    scale: Scale, name: str, count: int | None, alpha: float | None, epochs: int
) -> TrainingTask | None:
    """The training of a row, for the frameworks that have one here."""
    if name in OTHERS:
        return framework(OTHERS[name], scale, epochs=epochs)
    if name == "MoCo v2":
        return moco("mocov2", scale, count=scale.memory, alpha=None, epochs=epochs)
    if name != "SiMo":
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


def without_eqco(at: Coordinates, places: Collection[Coordinates]) -> Coordinates:
    """The same row with plain InfoNCE."""
    return replace(at, alpha=None)


def every_cell(scale: Scale, lengths: tuple[int, ...]) -> list[Cell]:
    """The paper's rows, ours, and those without negatives."""
    further = [*beyond_the_paper(scale), *without_negatives(scale, WITHOUT_NEGATIVES)]
    return [*cells(scale, lengths), *further]


CELLS = {
    "smoke": [*cells(SMOKE, (200,)), *without_negatives(SMOKE, ["BYOL"])],
    "desk": every_cell(DESK, (200, 240, 800)),
    "few-images": every_cell(FEW_IMAGES, (200, 240)),
    "embedded": every_cell(EMBEDDED, (200, 240)),
    "paper": every_cell(PAPER, (200, 240, 800)),
}
TAB2 = grid_experiment(
    kind="table",
    number=2,
    title="SiMo beside other frameworks",
    cells=CELLS,
    baselines={"Gained by EqCo, points of accuracy, seed by seed": without_eqco},
    named=named_numbers,
)
