"""The numbers the paper publishes, each with its place; nothing here was measured by us.

The curves of Figures 1 to 4 are not published as numbers, except for what the prose says. Open
points and misprints are listed in docs/paper_notes.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PUBLISHED", "Published"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The numbers of one table, or what the prose says of one figure."""

    place: str
    quantity: str
    numbers: Mapping[Any, float]  # a comment above each says what its keys mean


def cross(columns: tuple[int, ...], rows: Mapping[Any, tuple[float, ...]]) -> dict[Any, float]:
    """A printed table as a mapping: (*row, column) -> number.

    >>> cross((64, 128), {(2.0, "eqco"): (1.9, 1.8)})
    {(2.0, 'eqco', 64): 1.9, (2.0, 'eqco', 128): 1.8}
    """
    return {
        (*row, column): number
        for row, numbers in rows.items()
        for column, number in zip(columns, numbers, strict=True)
    }


ACCURACY = "ImageNet top-1 accuracy, linear evaluation, ResNet-50 (%)"

PUBLISHED: dict[str, Published] = {
    "fig3": Published(
        place="Section 1, Section 2.3 and its footnotes (prose beside Fig. 3)",
        quantity=ACCURACY,
        # what the sentence says
        numbers={
            "MoCo, K=256 (He et al.)": 54.7,
            "MoCo, K=65536 (He et al.)": 60.6,
            "MoCo, drop from K=65536 to 256": 6.1,
            "MoCo with EqCo, drop from K=65536 to 256": 0.2,
            "SimCLR, K=256": 62.0,
            "SimCLR, K=256, alpha=4096": 65.3,
            "SimCLR, K=4096 (Chen et al.)": 66.6,
            "SimCLR, batch 256, 100 epochs (Chen et al.)": 57.5,
            "SimCLR, batch 8192, 100 epochs (Chen et al.), at least": 64,
        },
    ),
    "fig4": Published(
        place="Section 3: Fig. 4 has no numbers of its own; Table 2 has two of its points",
        quantity=f"{ACCURACY}, SiMo",
        # K, alpha (None: without EqCo, which at K = alpha is the same)
        numbers={(16, 256): 68.1, (256, 256): 68.0, (256, None): 68.0},
    ),
    "tab1": Published(
        place="Table 1",
        quantity=f"{ACCURACY}, MoCo v2, K=65536",
        # N, queries per batch
        numbers={256: 67.5, 512: 67.5, 1024: 67.4},
    ),
    "tab2": Published(
        place="Table 2",
        quantity=ACCURACY,
        # method, K, alpha, epochs
        numbers={
            ("CPC v2", None, None, 200): 63.8,
            ("CMC", None, None, 240): 66.2,
            ("SimCLR", None, None, 200): 66.6,
            ("MoCo v2", None, None, 200): 67.5,
            ("InfoMin Aug.", None, None, 200): 70.1,
            ("SiMo", 16, 256, 200): 68.1,
            ("SiMo", 256, 256, 200): 68.0,
            ("SiMo", 256, 65536, 200): 68.5,
            ("PIRL", None, None, 800): 63.6,
            ("SimCLR", None, None, 1000): 69.3,
            ("MoCo v2", None, None, 800): 71.1,
            ("InfoMin Aug.", None, None, 800): 73.0,
            ("SiMo", 256, 256, 800): 71.8,
            ("SiMo", 256, 65536, 800): 72.1,
        },
    ),
    "tab3": Published(
        place="Table 3",
        quantity=f"{ACCURACY}, SiMo, K=256",
        # alpha
        numbers={256: 68.0, 1024: 68.1, 4096: 68.1, 16384: 68.4, 65536: 68.5},
    ),
    "tab4": Published(
        place="Table 4",
        quantity=f"{ACCURACY}, MoCo v2",
        # K
        numbers={256: 67.0, 1024: 67.1, 4096: 67.6, 16384: 67.3, 65536: 67.5},
    ),
    "tab5": Published(
        place="Table 5",
        quantity="estimated information between correlated Gaussians (nats), alpha=512",
        # true information, estimator, K (pairs per batch)
        numbers=cross(
            (64, 128, 256, 512),
            {
                (2.0, "infonce"): (1.7, 1.8, 1.9, 1.9),
                (2.0, "eqco"): (1.9, 1.9, 1.9, 1.9),
                (4.0, "infonce"): (2.9, 3.2, 3.4, 3.6),
                (4.0, "eqco"): (3.8, 3.7, 3.6, 3.6),
                (6.0, "infonce"): (3.6, 4.1, 4.5, 4.9),
                (6.0, "eqco"): (5.1, 5.0, 4.9, 4.9),
                (8.0, "infonce"): (3.9, 4.6, 5.1, 5.6),
                (8.0, "eqco"): (5.8, 5.7, 5.7, 5.6),
                (10.0, "infonce"): (4.1, 4.7, 5.4, 6.0),
                (10.0, "eqco"): (6.1, 6.0, 6.0, 6.0),
            },
        ),
    ),
    "tab6": Published(
        place="Table 6 (supplement)",
        quantity=f"{ACCURACY}, SiMo, 100 epochs",
        # beta, momentum of the key encoder
        numbers={0.0: 62.1, 0.999: 64.4},
    ),
    "tab7": Published(
        place="Table 7 (supplement)",
        quantity=f"{ACCURACY}, SiMo, 100 epochs",
        # batch norm
        numbers={"shuffling BN": 58.8, "Sync BN": 64.4},
    ),
    "tab8": Published(
        place="Table 8 (supplement)",
        quantity="ImageNet top-1 accuracy, linear evaluation (%), SiMo, 200 epochs",
        # times the channels of ResNet-50, alpha
        numbers={(2, 256): 70.2, (2, 65536): 70.5, (4, 256): 71.9, (4, 65536): 72.3},
    ),
    "tab8 parameters": Published(
        place="Table 8 (supplement)",
        quantity="parameters (millions)",
        # times the channels of ResNet-50
        numbers={2: 94, 4: 375},
    ),
    "prose": Published(
        place="Sections 3 and 4, supplement",
        quantity="differences of ImageNet top-1 accuracy (points)",
        # what the sentence says
        numbers={
            "SiMo less MoCo v2, 800 epochs (Section 3)": 1.0,
            "SiMo, alpha=65536 less 256, 200 epochs (Section 4)": 0.5,
            "ResNet-50 (2x) less ResNet-50 (supplement)": 2,
            "ResNet-50 (4x) less ResNet-50 (supplement)": 3.8,
        },
    ),
    "tab9": Published(
        place="Table 9 (supplement)",
        quantity="COCO val2017 detection, Faster R-CNN with FPN, 12 epochs",
        # pre-training, metric
        numbers={
            (name, metric): number
            for name, row in {
                "random init": (31.4, 49.4, 34.0, 17.9, 32.3, 41.6),
                "supervised": (39.0, 59.1, 42.6, 22.4, 42.2, 50.6),
                "MoCo v2": (39.1, 59.2, 42.5, 23.3, 42.1, 50.8),
                "SiMo": (39.0, 59.2, 42.3, 22.9, 41.8, 50.5),
            }.items()
            for metric, number in zip(("AP", "AP50", "AP75", "APs", "APm", "APl"), row, strict=True)
        },
    ),
}
