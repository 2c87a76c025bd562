"""How images are prepared for an exported network, as code that needs this library no more."""

from eqco.assembly.weights import Weights
from eqco.data import find_pipeline
from eqco.data.resize import bordered_side

__all__ = ["preprocessing_code", "timm_config", "timm_difference"]


def preprocessing_code(weights: Weights) -> list[str]:
    """A function `preprocess(path)` in torchvision's words: what `eqco embed` does to a picture.

    Of 8-bit pictures in colour or grey; of images of bands it says what to do in a comment.
    """
    size, mean, std = weights.image_size, *normalisation(weights)
    border = bordered_side(size)
    if weights.in_channels != 3:
        return [
            f"# images: float32 (N, {weights.in_channels}, {size}, {size}) from bands in [0, 1] (8 "
            f"bits / 255, 16 bits / 65535):",
            f"# shorter side resized to {border} (to {size} if it has less than {border}), "
            f"bilinear with antialiasing,",
            f"# the centre {size} × {size} cut out, then normalised: each band minus its mean of",
            f"# {list(mean)}, divided by its deviation of {list(std)}",
        ]
    return [
        "from PIL import Image, ImageOps",
        "from torchvision import transforms",
        "",
        "def preprocess(path):",
        '    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")',
        f"    side = {border} if min(image.size) >= {border} else {size}",
        "    return transforms.Compose([",
        "        transforms.Resize(side),  # bilinear, antialiased, as Pillow does it",
        f"        transforms.CenterCrop({size}),",
        "        transforms.ToTensor(),  # to [0, 1]",
        f"        transforms.Normalize({list(mean)}, {list(std)}),",
        "    ])(image)",
        "",
        "# images = torch.stack([preprocess(path) for path in paths])",
    ]


def timm_difference(weights: Weights) -> str:
    """Where timm's transform, which knows one size alone, is not what `eqco embed` does."""
    size = weights.image_size
    return (
        f"timm's transform resizes to a shorter side of {bordered_side(size)} (8/7 of {size}); "
        f"eqco resizes images that have less to {size}, so that their features differ"
    )


def timm_config(weights: Weights) -> dict[str, object]:
    """The same for timm's `create_transform`, as entries of a `pretrained_cfg`."""
    size, mean, std = weights.image_size, *normalisation(weights)
    return {
        "input_size": (weights.in_channels, size, size),
        "interpolation": "bilinear",
        "crop_pct": 0.875,  # of the shorter side after resizing: 7/8
        "crop_mode": "center",
        "mean": mean,
        "std": std,
    }


def normalisation(weights: Weights) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each band, the same in all pipelines."""
    return find_pipeline("mocov2").normalisation(weights.in_channels)
