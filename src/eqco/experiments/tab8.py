"""Table 8: SiMo with wider ResNets.

The light encoder has no width, so that the small profiles take ResNet-18 on small images: with a
stem that keeps their size, except in `smoke`, whose numbers mean nothing and must come fast.
"""

from dataclasses import replace
from typing import Literal

from eqco.experiments.grid import Cell, Grid, grid_experiment
from eqco.experiments.published import PUBLISHED
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, Scale, simo
from eqco.recipes import recipe_from_dict

__all__ = ["TAB8"]


def grid(scale: Scale, widths: tuple[int, ...]) -> Grid:
    """One line for each width; with all negatives α = N is InfoNCE."""
    numbers = PUBLISHED["tab8"].numbers
    backbone, title = (
        ("resnet50", "ResNet-50") if scale.small is None else ("resnet18", "ResNet-18")
    )
    stem: Literal["imagenet", "small"] = "small" if scale in (DESK, EMBEDDED) else "imagenet"
    usual = recipe_from_dict(simo(scale, count=None, alpha=None)["training"]).encoder
    cells = []
    for width in widths:
        encoder = replace(usual, backbone=backbone, width=width, stem=stem)
        for alpha in (256, 65536):
            imitated = None if alpha == 256 else float(alpha)
            cells.append(
                Cell(
                    row=f"{title} ({width}x)",
                    column=f"α={scale.num_queries if imitated is None else alpha}",
                    recipe=simo(scale, count=None, alpha=imitated, encoder=encoder),
                    published=numbers[(f"ResNet-50 ({width}x)", alpha)],
                )
            )
    return cells


TAB8 = grid_experiment(
    "tab8",
    "Table 8: SiMo with wider models",
    {
        "smoke": grid(SMOKE, (2,)),
        "desk": grid(DESK, (2, 4)),
        "embedded": grid(EMBEDDED, (2,)),
        "paper": grid(PAPER, (2, 4)),
    },
    seeds={"smoke": (0,), "desk": (0, 1), "embedded": (0, 1, 2), "paper": (0,)},
)
