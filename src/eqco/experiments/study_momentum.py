"""How slowly should the keys' encoder follow, in a training of given length?

Table 6 has two decays β and one length. Here SiMo with EqCo and all negatives of its batch is
trained with three decays, for less than the usual length, for it and for several times of it, each
with the learning rate falling to zero at its own end.
"""

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, simo

__all__ = ["STUDY_MOMENTUM"]


def grid(scale: Scale, lengths: list[int], decays: list[float], alpha: float) -> Grid:
    """Rows: β; columns: epochs."""
    return [
        Cell(
            row=f"β={decay:g}",
            column=f"{scale.shortened(epochs)} epochs",
            recipe=simo(scale, count=None, alpha=alpha, epochs=epochs, ema_decay=decay),
        )
        for epochs in lengths  # the short ones are done first
        for decay in decays
    ]


STUDY_MOMENTUM = grid_experiment(
    "study-momentum",
    "Study: the momentum of SiMo's key encoder, against the length of training",
    {
        "smoke": grid(SMOKE, [200], [0.0, 0.99], 4096),
        "desk": grid(DESK, [67, 200, 600], [0.0, 0.9, 0.99], 4096),
        "embedded": grid(EMBEDDED, [67, 200, 600], [0.0, 0.9, 0.99], 4096),
        "paper": grid(PAPER, [100, 200, 800], [0.0, 0.99, 0.999], 65536),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
    quantities=("knn", "information"),
)
