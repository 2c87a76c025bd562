"""MoCo v2's augmentation beside its peers: microseconds per view, one table, one run.

    python benchmarks/augment.py              the whole table (about two minutes)
    python benchmarks/augment.py --record     keep it under results/bench-augment/
    python benchmarks/augment.py --threads 2  let every contender use two threads

From decoded 8-bit images to normalised float32, all random: crop, jitter with hue (p 0.8),
greyscale (0.2), blur (0.5), flip; and the same after the crop alone, which is what is left for the
training device when workers crop. The images are the built-in photographs, resized. Contenders take
turns; a time is the best of the rounds, each over the same images with fresh random draws.
"""

import random
import time
from collections.abc import Callable
from importlib import metadata

import kornia.augmentation as kornia
import torch
from measure import command_line, keep_record, read_options
from PIL import Image, ImageFilter
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import pil_to_tensor

from eqco.data import Augment, draw_parameters, open_source
from eqco.data.pipelines import MOCO_V2, blur_radius

COUNTS = {32: 256, 64: 128, 224: 48}  # images per round
CONTENDERS = ("torchvision", "torchvision v2", "kornia", "ours")
MEAN, STD = MOCO_V2.mean, MOCO_V2.std


class PillowBlur:
    """MoCo v2's own blur."""

    def __call__(self, image):
        """One image, with a radius of its own."""
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def per_image(pictures: list, transforms: list) -> Callable[[], object]:
    transform = v1.Compose(transforms)
    return lambda: torch.stack([transform(picture) for picture in pictures])


def torchvision_calls(pictures, size):
    rest = [
        v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        v1.RandomGrayscale(p=0.2),
        v1.RandomApply([PillowBlur()], p=0.5),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
    ]
    crop = v1.RandomResizedCrop(size, scale=(0.2, 1.0))
    return per_image(pictures, [crop, *rest]), per_image(pictures, rest)


def torchvision_v2_calls(tensors, size):
    rest = [
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        v2.RandomGrayscale(p=0.2),
        v2.RandomApply([v2.GaussianBlur(2 * blur_radius(size) + 1, (0.1, 2.0))], p=0.5),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    crop = v2.RandomResizedCrop(size, scale=(0.2, 1.0), antialias=True)
    return per_image(list(tensors), [crop, *rest]), per_image(list(tensors), rest)


def kornia_calls(tensors, size):
    side = 2 * blur_radius(size) + 1
    rest = nn.Sequential(
        kornia.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        kornia.RandomGrayscale(p=0.2),
        kornia.RandomGaussianBlur((side, side), (0.1, 2.0), p=0.5),
        kornia.RandomHorizontalFlip(),
        kornia.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    )
    crop = kornia.RandomResizedCrop((size, size), scale=(0.2, 1.0))
    return (
        lambda: rest(crop(tensors.float() / 255)),
        lambda: rest(tensors.float() / 255),
    )


def our_calls(tensors, size):
    augment = Augment(MOCO_V2, size)
    steps = iter(range(10**9))

    def draws():
        return draw_parameters(MOCO_V2, len(tensors), seed=0, step=next(steps))

    return lambda: augment(tensors, draws()), lambda: augment.after_crop(tensors, draws())


def images_of(size: int) -> tuple[list[Image.Image], torch.Tensor]:
    images = open_source("groceries")["train"].images
    pictures = [images.read(i).resize((size, size)) for i in range(COUNTS[size])]
    return pictures, torch.stack([pil_to_tensor(picture) for picture in pictures])


def measure(rounds: int) -> dict[str, float]:
    """Microseconds per view of every contender, `SIZE/PART/NAME`, best of the rounds."""
    found: dict[str, float] = {}
    for size, count in COUNTS.items():
        pictures, tensors = images_of(size)
        calls = {
            "torchvision": torchvision_calls(pictures, size),
            "torchvision v2": torchvision_v2_calls(tensors, size),
            "kornia": kornia_calls(tensors, size),
            "ours": our_calls(tensors, size),
        }
        for turn in range(rounds + 1):  # the first warms up
            for name, parts in calls.items():
                for part, call in zip(("whole", "after crop"), parts, strict=True):
                    start = time.perf_counter()
                    call()
                    taken = (time.perf_counter() - start) / count * 1e6
                    key = f"{size}/{part}/{name}"
                    if turn:
                        found[key] = min(found.get(key, float("inf")), taken)
    return {key: round(value, 1) for key, value in found.items()}


def show(found: dict[str, float]) -> None:
    print(
        f"{'µs per view':<18}"
        + "".join(f"{name:>16}" for name in CONTENDERS)
        + "   ours is faster by"
    )
    for size in COUNTS:
        for part in ("whole", "after crop"):
            times = [found[f"{size}/{part}/{name}"] for name in CONTENDERS]
            ratios = ", ".join(f"{value / times[-1]:.1f}" for value in times[:-1])
            print(
                f"{f'{size} px, {part}':<18}"
                + "".join(f"{t:>16.1f}" for t in times)
                + f"   {ratios}"
            )


def main() -> None:
    parser = command_line(__doc__, rounds=5, quick=False)
    parser.add_argument("--threads", type=int, default=1)
    options = read_options(parser)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    random.seed(0)
    start = time.time()
    found = measure(options.rounds)
    show(found)
    if options.record:
        peers = {name: metadata.version(name) for name in ("torchvision", "kornia", "pillow")}
        recipe = {"pipeline": "mocov2", "images": COUNTS, "rounds": options.rounds,
                  "threads": options.threads, "peers": peers}  # fmt: skip
        keep_record("bench-augment", recipe, found, start)


if __name__ == "__main__":
    main()
