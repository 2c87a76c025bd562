"""When α is worth it: what it gained, against how saturated plain InfoNCE was without it.

The gradient of Eq. 1 is that of plain InfoNCE times W_α/W_K, and W_K = 1 − p₊: α can only give
back what saturation has taken. Every pair of trainings that differ in α alone is a point.
"""

from collections.abc import Sequence
from dataclasses import replace

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import Comparison, Experiment
from eqco.experiments.fig3 import CELLS as FRAMEWORKS
from eqco.experiments.fig4 import CELLS as SIMO
from eqco.experiments.grid import (
    SEEDS,
    Cell,
    less,
    metric_of,
    pretrain_and_evaluate,
    profile_of,
    trainings,
    under_infonce,
    values_of,
)
from eqco.experiments.tasks import TrainingTask
from eqco.experiments.training_runs import training_steps
from eqco.runtime.records import TRAININGS, Record

__all__ = ["CELLS", "GAIN", "SATURATION", "STUDY_SATURATION"]

SATURATION = "p₊ of plain InfoNCE at the end"
GAIN = "gained by α, points of accuracy"
CELLS: dict[str, Sequence[Cell]] = {
    profile: [
        replace(cell, at=replace(cell.at, framework=cell.at.framework or "SiMo"))
        for cell in (*SIMO[profile], *FRAMEWORKS[profile])
        if cell.task is not None
    ]
    for profile in ("smoke", "few-images")
}


def pairs(
    cells: Sequence[Cell], records: Sequence[Record]
) -> list[tuple[Coordinates, dict[int, float], dict[int, float]]]:
    """For each cell with an α: where it stands, p₊ of its plain twin, and the gain, by seed."""
    tasks = {cell.at: cell.task for cell in cells}
    found = []
    for cell in cells:
        plain = tasks.get(under_infonce(cell.at, tasks))
        if plain is None or plain == cell.task:
            continue
        gain = less(cell.task, plain, records, metric_of(cells))
        saturation = values_of(plain, records, "positive_probability")
        if gain and saturation:
            found.append((cell.at, saturation, gain))
    return found


def compare(records: Sequence[Record]) -> list[Comparison]:
    """A row for each pair, the most saturated first."""
    found = pairs(CELLS[profile_of(records)], records) if records else []
    found.sort(key=lambda pair: -sum(pair[1].values()) / len(pair[1]))
    return [
        Comparison.of(at, column, values)
        for at, saturation, gain in found
        for column, values in ((SATURATION, saturation), (GAIN, gain))
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
