"""How slowly should the keys' encoder follow, in a training of given length?

Table 6 has two decays β and one length. Here SiMo with EqCo and all negatives of its batch is
trained with three decays, for less than the usual length, for it and for several times of it, each
with the learning rate falling to zero at its own end.
"""

from eqco.experiments.coordinates import Coordinates
from eqco.experiments.grid import Cell, grid_experiment
from eqco.experiments.tasks import simo
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale

__all__ = ["STUDY_MOMENTUM"]


def cells(scale: Scale, lengths: list[int], decays: list[float], alpha: float) -> list[Cell]:
    """Rows: β; columns: epochs."""
    return [
        Cell(
            at=Coordinates(ema_decay=decay, epochs=scale.shortened(epochs)),
            task=simo(scale, count=None, alpha=alpha, epochs=epochs, ema_decay=decay),
        )
        for epochs in lengths  # the short ones are done first
        for decay in decays
    ]


STUDY_MOMENTUM = grid_experiment(
    name="study-momentum",
    title="The momentum of SiMo's key encoder, against the length of training",
    axis="epochs",
    cells={
        "smoke": cells(SMOKE, [200], [0.0, 0.99], 4096),
        "desk": cells(DESK, [67, 200, 600], [0.0, 0.9, 0.99], 4096),
        "embedded": cells(EMBEDDED, [67, 200, 600], [0.0, 0.9, 0.99], 4096),
        "paper": cells(PAPER, [100, 200, 800], [0.0, 0.99, 0.999], 65536),
    },
    quantities=("knn", "information"),
)
