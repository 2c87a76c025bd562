"""Table 8: SiMo with wider ResNets; in the small profiles with wider light encoders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from eqco.assembly import build_encoder
from eqco.experiments.coordinates import Coordinates, Difference
from eqco.experiments.experiment import Comparison
from eqco.experiments.grid import Cell, Named, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.tasks import TrainingTask, simo
from eqco.recipes.profiles import DESK, EMBEDDED, PAPER, SMOKE, Scale
from eqco.runtime.records import Record

__all__ = ["TAB8"]

PROSE = PUBLISHED["prose"].numbers
PARAMETERS = PUBLISHED["tab8 parameters"].numbers


def task(scale: Scale, width: int, alpha: float | None) -> TrainingTask:
    """SiMo on a network of that width, with all negatives of its batch."""
    return simo(scale, count=None, alpha=alpha, encoder={"width": width})


def cells(scale: Scale, widths: tuple[int, ...]) -> list[Cell]:
    """A row for each width, the usual one from Table 3; with all negatives α = N is InfoNCE."""
    ours = "ResNet-50" if scale.small is None else "light"
    usual = {(1, alpha): PUBLISHED["tab3"].numbers[alpha] for alpha in (256, 65536)}
    return [
        Cell(
            at=Coordinates(
                network=ours, width=width, alpha=scale.num_queries if alpha == 256 else alpha
            ),
            task=task(scale, width, None if alpha == 256 else alpha) if width in widths else None,
            published=number,
            printed=Coordinates(network="ResNet-50", width=width, alpha=alpha),
        )
        for (width, alpha), number in (usual | dict(PUBLISHED["tab8"].numbers)).items()
    ]


def named_numbers(scale: Scale) -> dict[str, list[Named]]:
    """What the text says of the wide models beside the usual one."""
    usual = task(scale, 1, 65536) if scale is PAPER else None
    return {
        "Named in the text, with α=65536, points of accuracy": [
            Named(
                row=Difference(
                    of=Coordinates(network="ResNet-50", width=width),
                    less=Coordinates(network="ResNet-50", width=1),
                ),
                task=task(scale, width, 65536) if usual else None,
                less=usual,
                published=PROSE[f"ResNet-50 ({width}x) less ResNet-50 (supplement)"],
            )
            for width in (2, 4)
        ]
    }


def parameter_counts() -> list[Comparison]:
    """Parameters of the backbones, counted without making them."""
    found = []
    for width, published in PARAMETERS.items():
        recipe = task(PAPER, width, None).recipe
        with torch.device("meta"):
            encoder = build_encoder(recipe)
        count = sum(weights.numel() for weights in encoder.backbone.parameters())
        found.append(
            Comparison(
                row=Coordinates(network="ResNet-50", width=width),
                column="millions",
                values=(count / 1e6,),
                published=published,
            )
        )
    return found


GRID = grid_experiment(
    kind="table",
    number=8,
    title="SiMo with wider models",
    axis="alpha",
    cells={
        "smoke": cells(replace(SMOKE, num_queries=128), (1,)),  # five steps of the usual width
        "desk": cells(DESK, (1, 2)),
        "embedded": cells(EMBEDDED, (1, 2)),
        "paper": cells(PAPER, (1, 2, 4)),
    },
    named=named_numbers,
)


def conclude(records: Sequence[Record]) -> Mapping[str, Sequence[Comparison]]:
    """The tables of the grid, and the sizes of the networks."""
    return {**GRID.conclude(records), "Parameters of the backbone": parameter_counts()}


TAB8 = replace(GRID, conclude=conclude)
