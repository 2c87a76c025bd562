"""Real pictures in any number, for measuring."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from eqco.data import open_source

IMAGES = 8192


class Photos(Dataset):
    """The embedded photographs over and over, as PIL images: what a torchvision data set gives."""

    def __init__(self, size: int, folder: str | None = None):
        self.folder = folder  # of JPEG files that `write` has made; None: held in memory
        self.transform = None
        if folder is None:
            pixels = open_source("groceries")["train"].images.pixels
            smaller = torch.nn.functional.interpolate(pixels.float(), size, mode="area")
            once = smaller.round().to(torch.uint8).permute(0, 2, 3, 1)
            self.pixels = once[torch.arange(IMAGES) % len(once)].numpy()  # in full, as CIFAR-10 is

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, number: int):
        from PIL import Image

        if self.folder is None:
            image = Image.fromarray(self.pixels[number])
        else:
            with open(f"{self.folder}/photos/{number:05d}.jpg", "rb") as file:
                image = Image.open(file).convert("RGB")
        return (image if self.transform is None else self.transform(image)), 0

    def write(self, folder: str) -> None:
        """As JPEG files, one for each photograph."""
        from PIL import Image

        Path(folder, "photos").mkdir()
        for number, picture in enumerate(self.pixels):
            Image.fromarray(picture).save(f"{folder}/photos/{number:05d}.jpg", quality=90)
