"""Augmentation pipelines as values: what the published methods draw, for any image size."""

from dataclasses import dataclass, replace

from eqco.runtime.errors import InputError

__all__ = [
    "BYOL",
    "BYOL_SECOND",
    "LINEAR",
    "MOCO_V1",
    "MOCO_V2",
    "PIPELINES",
    "SIMCLR",
    "Pipeline",
    "blur_radius",
    "find_pipeline",
    "pipeline_pair",
]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Random resized crop, jitter of the colours, greyscale, blur, solarisation, flip and
    normalisation.

    Three channels are red, green and blue. Of images with another number of bands brightness and
    contrast change, and what needs colours is left out (`left_out`); draws are the same for all.

    The order is that of the fields. Flip and blur are symmetric, so where the flip stands makes no
    difference, and SimCLR's order (flip before the colours) is the same pipeline.
    """

    crop_scale: tuple[float, float]  # share of the image's area
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)  # width to height, uniform in its logarithm
    jitter_probability: float = 0.0
    brightness: float = 0.0  # factor from [max(0, 1 - brightness), 1 + brightness]
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0  # shift from [-hue, hue], in turns of the colour circle
    grayscale_probability: float = 0.0
    grayscale_first: bool = False  # before the jitter
    blur_probability: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # pixels; the kernel grows with the image
    solarize_probability: float = 0.0  # pixels from ½ on are inverted
    flip_probability: float = 0.5
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # of ImageNet, for images of three channels
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        for name in ("jitter", "grayscale", "blur", "solarize", "flip"):
            require_between(f"{name}_probability", getattr(self, f"{name}_probability"), 0, 1)
        for name in ("brightness", "contrast", "saturation"):
            require_between(name, getattr(self, name), 0, float("inf"))
        require_between("hue", self.hue, 0, 0.5)
        require_range("crop_scale", self.crop_scale, upper=1.0)
        require_range("crop_aspect", self.crop_aspect)
        require_range("blur_sigma", self.blur_sigma)
        if min(self.std) <= 0:
            raise InputError(f"std={self.std}; each must be greater than 0.")
        if len(self.mean) != len(self.std):
            raise InputError(f"mean={self.mean} and std={self.std}; give one of each per band.")

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of each band: the pipeline's own, or ½ and ½ where those are of RGB.

        >>> MOCO_V2.normalisation(2)
        ((0.5, 0.5), (0.5, 0.5))
        """
        if len(self.mean) == channels:
            return self.mean, self.std
        if len(self.mean) != 3:
            raise InputError(
                f"mean={self.mean} has {len(self.mean)} numbers, but the images have {channels} "
                f"bands; give one for each."
            )
        return (0.5,) * channels, (0.5,) * channels

    def left_out(self, channels: int) -> tuple[str, ...]:
        """The operations of this pipeline that need red, green and blue, where there are none.

        >>> MOCO_V2.left_out(3), MOCO_V2.left_out(13), LINEAR.left_out(1)
        ((), ('saturation', 'hue', 'greyscale'), ())
        """
        if channels == 3:
            return ()
        strengths = {
            "saturation": self.jitter_probability * self.saturation,
            "hue": self.jitter_probability * self.hue,
            "greyscale": self.grayscale_probability,
        }
        return tuple(name for name, strength in strengths.items() if strength > 0)


def require_between(name: str, value: float, low: float, high: float) -> None:
    """Refuse what lies outside [low, high]."""
    if not low <= value <= high:
        raise InputError(f"{name}={value}; it must lie between {low} and {high}.")


def require_range(name: str, value: tuple[float, float], upper: float = float("inf")) -> None:
    """Refuse a range that is empty, reversed or not positive."""
    if not 0 < value[0] <= value[1] <= upper:
        raise InputError(f"{name}={value}; it must be two numbers, 0 < low <= high <= {upper}.")


# MoCo v2 and SiMo (and SimCLR in MoCo v2's setting).
MOCO_V2 = Pipeline(
    crop_scale=(0.2, 1.0),
    jitter_probability=0.8,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.1,
    grayscale_probability=0.2,
    blur_probability=0.5,
)
# MoCo v1, which took it from instance discrimination: greyscale comes before the jitter.
MOCO_V1 = replace(
    MOCO_V2, jitter_probability=1.0, hue=0.4, grayscale_first=True, blur_probability=0.0
)
# Paper: SimCLR's own code feeds pixels in [0, 1]; the paper's authors normalise as for MoCo, and
# so do we. A normalisation is a fixed affine map in front of the first layer.
SIMCLR = replace(
    MOCO_V2, crop_scale=(0.08, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2
)
# BYOL, whose two views differ: one is always blurred, the other seldom, and may be solarised.
BYOL = replace(MOCO_V2, crop_scale=(0.08, 1.0), saturation=0.2, blur_probability=1.0)
BYOL_SECOND = replace(BYOL, blur_probability=0.1, solarize_probability=0.2)
# MoCo v3: BYOL's, with MoCo's smallest crop.
MOCO_V3, MOCO_V3_SECOND = (replace(each, crop_scale=(0.2, 1.0)) for each in (BYOL, BYOL_SECOND))
# Training of a linear classifier on frozen features.
LINEAR = Pipeline(crop_scale=(0.08, 1.0))

PIPELINES: dict[str, Pipeline] = {
    "mocov1": MOCO_V1,
    "mocov2": MOCO_V2,
    "simo": MOCO_V2,
    "simclr": SIMCLR,
    "byol": BYOL,
    "byol-second": BYOL_SECOND,
    "mocov3": MOCO_V3,
    "mocov3-second": MOCO_V3_SECOND,
    "linear": LINEAR,
}
# of the second view, where it is not made as the first
SECOND = {"byol": BYOL_SECOND, "mocov3": MOCO_V3_SECOND}


def find_pipeline(name: str) -> Pipeline:
    """The pipeline of that name."""
    if name not in PIPELINES:
        raise InputError(f"pipeline={name!r}; there are {', '.join(PIPELINES)}.")
    return PIPELINES[name]


def pipeline_pair(name: str) -> tuple[Pipeline, Pipeline]:
    """The pipelines of the two views of an image.

    >>> [each.blur_probability for each in pipeline_pair("byol")]
    [1.0, 0.1]
    """
    first = find_pipeline(name)
    return first, SECOND.get(name, first)


def blur_radius(size: int) -> int:
    """Taps on each side of the blur's centre: the kernel is a tenth of the image, as in SimCLR.

    Paper: σ is drawn from 0.1 to 2 pixels at every size and the kernel alone is scaled: 23 pixels
    at 224 (as good as infinite), 7 at 64, 3 at 32. Scaling σ instead would leave 32-pixel images
    unblurred. Below 20 pixels SimCLR's rule gives a kernel of one pixel: no blur.

    >>> [2 * blur_radius(size) + 1 for size in (224, 96, 64, 32, 16)]
    [23, 9, 7, 3, 1]
    """
    return size // 10 // 2
