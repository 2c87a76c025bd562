"""When α is worth it: what it gained, against how saturated plain InfoNCE was without it.

The gradient of Eq. 1 is that of plain InfoNCE times W_α/W_K, and W_K = 1 − p₊: α can only give
back what saturation has taken. Every pair of trainings that differ in α alone is a point. Profile
desk has Figure 4 and the small folder of study-alpha, few-images the systems of Table 2 as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import Comparison, Experiment
from eqco.experiments.fig3 import CELLS as FRAMEWORKS
from eqco.experiments.fig4 import CELLS as SIMO
from eqco.experiments.grid import (
    SEEDS,
    Cell,
    less,
    loss_of,
    metric_of,
    pretrain_and_evaluate,
    profile_of,
    trainings,
    under_infonce,
    values_of,
)
from eqco.experiments.study_alpha import CELLS as SMALL_FOLDER
from eqco.experiments.tab2 import CELLS as SYSTEMS
from eqco.experiments.tasks import TrainingTask
from eqco.experiments.training_runs import training_steps
from eqco.runtime.records import TRAININGS, Record

__all__ = ["CELLS", "GAIN", "GAIN_BY_NEIGHBOURS", "SATURATION", "STUDY_SATURATION"]

SATURATION = "p₊ of plain InfoNCE at the end"
GAIN = "gained by α, points of accuracy [95 % interval]"
GAIN_BY_NEIGHBOURS = "the same by nearest neighbours"


def placed(cell: Cell, task: TrainingTask) -> Cell:
    """The cell by framework, loss, α, K and data, whichever table it is from."""
    at = cell.at.only("num_negatives", "alpha")
    framework, loss = cell.at.framework or "SiMo", loss_of(at.alpha)
    return replace(cell, at=replace(at, framework=framework, loss=loss, data=task.data))


def every_cell(*tables: Sequence[Cell]) -> list[Cell]:
    """The cells of tables that have pairs; each once, as its first table has it."""
    cells = chain(*tables)
    found = [placed(cell, cell.task) for cell in cells if cell.task is not None]
    return list({cell.at: cell for cell in reversed(found)}.values())[::-1]


CELLS: dict[str, Sequence[Cell]] = {
    "smoke": every_cell(SIMO["smoke"], FRAMEWORKS["smoke"], SYSTEMS["smoke"]),
    "desk": every_cell(SIMO["desk"], SMALL_FOLDER["desk"]),
    "few-images": every_cell(SIMO["few-images"], FRAMEWORKS["few-images"], SYSTEMS["few-images"]),
}


def pairs(
    cells: Sequence[Cell], records: Sequence[Record]
) -> list[tuple[Coordinates, dict[int, float], dict[int, float], dict[int, float]]]:
    """For each cell with an α: where it stands, p₊ of its plain twin, and what it gained by the
    probe and by nearest neighbours, by seed.
    """
    tasks = {cell.at: cell.task for cell in cells}
    found = []
    for cell in cells:
        plain = tasks.get(under_infonce(cell.at, tasks))
        if plain is None or plain == cell.task:
            continue
        gain = less(cell.task, plain, records, metric_of(cells))
        saturation = values_of(plain, records, "positive_probability")
        if gain and saturation:
            found.append((cell.at, saturation, gain, less(cell.task, plain, records, "knn")))
    return found


def compare(records: Sequence[Record]) -> list[Comparison]:
    """A row for each pair, the most saturated first."""
    found = pairs(CELLS[profile_of(records)], records) if records else []
    found.sort(key=lambda pair: -sum(pair[1].values()) / len(pair[1]))
    return [
        cell
        for at, saturation, gain, by_neighbours in found
        for cell in (
            Comparison.of(at, SATURATION, saturation),
            Comparison.of_difference(at, GAIN, gain),
            Comparison.of_difference(at, GAIN_BY_NEIGHBOURS, by_neighbours),
        )
    ]


STUDY_SATURATION: Experiment[TrainingTask] = Experiment(
    name="study-saturation",
    kind="study",
    number=0,
    title="What α gains, against how saturated plain InfoNCE is",
    profiles={profile: trainings(cells) for profile, cells in CELLS.items()},
    seeds=SEEDS,
    size=training_steps,
    run=pretrain_and_evaluate,
    compare=compare,
    conclude=lambda records: {},
    further=lambda records: {},
    training=lambda task: task,
    store=TRAININGS,
)
