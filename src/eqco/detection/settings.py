"""How a detector is fine-tuned (Table 9), as a frozen value."""

import dataclasses
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from eqco.recipes.text import convert, plain_value
from eqco.runtime.errors import InputError
from eqco.theory import scaled_learning_rate
from eqco.training.schedules import learning_rate_factor

__all__ = ["DESK", "DetectionSettings", "detection_profile", "learning_rate_at", "with_epochs"]


@dataclass(frozen=True, kw_only=True)
class DetectionSettings:
    """The paper's fine-tuning on COCO; other data sets and machines change some of it."""

    epochs: int = 12
    """How often every training image is seen: the schedule called 1×."""
    drops: tuple[int, ...] = (7, 11)
    """Epochs after which the learning rate is divided by ten."""
    num_images: int = 16
    """Images of one step, over all processes."""
    base_learning_rate: float = 0.02
    """At 16 images in a step; scaled in proportion to num_images."""
    # Paper: it prints 0.2, which under the linear rule belongs to 160 images in a step; the
    # authors' release has 0.02 at 16.
    warmup_steps: int = 1000
    """Steps over which the rate rises from a thousandth."""
    sgd_momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    """Of all parameters but those of batch norm."""
    norm_weight_decay: float = 0.0
    """Of the scales and shifts of batch norm."""
    # Paper: it prints no weight decay; the authors' release has 1e-4, and 0 for norm layers.
    sides: tuple[int, ...] = (640, 672, 704, 736, 768, 800)
    """Lengths that the short side of a training image is drawn from; the last is for testing."""
    longest_side: int = 1333
    """The long side is made no longer."""
    channels: int = 256
    """Of the feature pyramid and of the box head's convolutions."""
    smallest_anchor: int = 32
    """Side of the smallest anchors in pixels of the resized image; they double four times."""
    sampling_ratio: int = 0
    """Samples of RoI align along each side of a cell; 0: as many as the cell has map pixels."""
    proposals: int = 1000
    """Boxes of an image that the region proposals leave, at most."""
    sampled_boxes: int = 512
    """Of these, boxes of an image that the box head is trained on."""
    precise_images: int = 3200
    """Training images that batch-norm statistics are taken from before testing, at most."""
    on_bad_boxes: Literal["error", "skip"] = "error"
    """Refuse data with boxes that are empty, inverted or outside, or leave these boxes out."""
    save_every: int = 1
    """Epochs between checkpoints."""
    seed: int = 0
    """Of the new layers, the order of images, flips, sizes and sampled boxes."""

    def __post_init__(self) -> None:
        for name in (
            *("epochs", "num_images", "longest_side", "channels", "smallest_anchor"),
            *("proposals", "sampled_boxes", "precise_images", "save_every"),
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}; it must be 1 or more.")
        for name in ("warmup_steps", "weight_decay", "norm_weight_decay", "sampling_ratio"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name}={getattr(self, name)}; it must be 0 or more.")
        if not self.base_learning_rate > 0:
            raise InputError(
                f"base_learning_rate={self.base_learning_rate}; it must be greater than 0."
            )
        if any(later <= earlier for earlier, later in pairwise((0, *self.drops, self.epochs))):
            raise InputError(
                f"drops={self.drops} in epochs={self.epochs}; they must be epochs after the first "
                f"and before the last, each later than the one before."
            )
        if not self.sides or min(self.sides) < 32 or max(self.sides) > self.longest_side:
            raise InputError(
                f"sides={self.sides}; there must be some, of 32 pixels or more and no longer than "
                f"longest_side={self.longest_side}."
            )


# A few hundred images on one processor core, in ten minutes: half the epochs, a narrower pyramid
# and fewer boxes. So few steps need a higher rate: of 0.02 and 0.08, the latter lowered the
# training loss faster from random weights. Weight decay and samples are those that the records of
# Table 9 at this scale were measured with.
DESK = DetectionSettings(
    epochs=6,
    drops=(4, 5),
    num_images=4,
    base_learning_rate=0.08,
    warmup_steps=50,
    norm_weight_decay=1e-4,
    sampling_ratio=2,
    sides=(192, 208, 224, 240),
    longest_side=400,
    channels=64,
    smallest_anchor=16,
    proposals=200,
    sampled_boxes=64,
    precise_images=100,
)

REFERENCE_IMAGES = 16  # in a step that the base learning rate belongs to
DETECTION_PROFILES: dict[str, DetectionSettings] = {"paper": DetectionSettings(), "desk": DESK}


def detection_profile(name: str) -> DetectionSettings:
    """The settings of a profile, or of a JSON file.

    >>> detection_profile("paper").drops
    (7, 11)
    """
    if name in DETECTION_PROFILES:
        return DETECTION_PROFILES[name]
    if not Path(name).is_file():
        known = ", ".join(DETECTION_PROFILES)
        raise InputError(
            f"there is no profile {name!r} of detection. There are: {known}; or give a JSON file."
        )
    try:
        return detection_from_dict(json.loads(Path(name).read_text()))
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{name} holds no settings: {error}. It must be a JSON file.") from error


def with_epochs(settings: DetectionSettings, epochs: int) -> DetectionSettings:
    """The same settings for a training of another length: the drops keep their share of it.

    In a training too short for a share of its own, a drop is left out. The warm-up shrinks with the
    epochs, and is not made longer than it was.

    >>> shorter, longer = with_epochs(DESK, 3), with_epochs(DESK, 12)
    >>> (shorter.drops, shorter.warmup_steps), (longer.drops, longer.warmup_steps)
    (((2,), 25), ((8, 10), 50))
    """
    share = epochs / settings.epochs
    drops = {round(drop * share) for drop in settings.drops}
    return dataclasses.replace(
        settings,
        epochs=epochs,
        drops=tuple(sorted(drop for drop in drops if 0 < drop < epochs)),
        warmup_steps=max(0, round(settings.warmup_steps * min(share, 1.0))),
    )


def learning_rate_at(settings: DetectionSettings, steps_per_epoch: int, step: int) -> float:
    """The learning rate at a step: 0.02 for 16 images, in proportion for others.

    >>> settings = DetectionSettings(num_images=8)
    >>> [round(learning_rate_at(settings, 1000, step), 6) for step in (1000, 7000, 11000)]
    [0.01, 0.001, 0.0001]
    """
    peak = scaled_learning_rate(
        settings.base_learning_rate, settings.num_images, REFERENCE_IMAGES, rule="linear"
    )
    return peak * learning_rate_factor(
        step,
        schedule="steps",
        total_steps=settings.epochs * steps_per_epoch,
        warmup_steps=settings.warmup_steps,
        drops=tuple(drop * steps_per_epoch for drop in settings.drops),
    )


def detection_to_dict(settings: DetectionSettings) -> dict[str, Any]:
    """Plain dicts, lists, numbers and strings, as JSON knows them."""
    plain: dict[str, Any] = plain_value(dataclasses.asdict(settings))
    return plain


def detection_from_dict(values: Any) -> DetectionSettings:
    """The settings that `detection_to_dict` gave, or a part of them: the rest is the paper's.

    >>> detection_from_dict({"epochs": 24, "drops": [16, 22]}).drops
    (16, 22)
    """
    settings: DetectionSettings = convert(values, DetectionSettings, "")
    return settings
