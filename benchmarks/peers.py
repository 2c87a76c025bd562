"""The training loops that `train.py` is compared with, as their documentation has them.

Each trains for ever, from decoding to the momentum update, and calls `done` after every step. All
take the same backbone, images, N and MoCo v2 augmentation. `workers` are the DataLoader's. `half`
computes in bfloat16 by the peer's own means: autocast around the forward pass of a plain loop, as
PyTorch documents it, or Lightning's precision flag.
"""

import copy
import math
import random
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Done = Callable[[], None]
QUEUE, DIM, TEMPERATURE = 4096, 128, 0.2


def endless(loader: DataLoader) -> Iterator:
    """Epoch after epoch."""
    while True:
        yield from loader


def batches(dataset: Dataset, n: int, workers: int) -> Iterator:
    """As the scripts have it: shuffled, whole batches, workers kept."""
    kept = {"persistent_workers": True} if workers else {}
    loader = DataLoader(
        dataset, batch_size=n, shuffle=True, drop_last=True, num_workers=workers, **kept
    )
    return endless(loader)


def autocast(half: bool) -> torch.autocast:
    """Around forward pass and loss; without effect in float32."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=half)


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=1e-4)


def lightly_moco(
    backbone: nn.Module, images: Dataset, n: int, size: int, workers: int, done: Done, *, half: bool
) -> None:
    """lightly's example of MoCo in plain PyTorch."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum
    from lightly.transforms import MoCoV2Transform

    images.transform = MoCoV2Transform(input_size=size)
    width = backbone.feature_dim
    head = MoCoProjectionHead(width, width, DIM)
    slow_backbone, slow_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(slow_backbone)
    deactivate_requires_grad(slow_head)
    criterion = NTXentLoss(temperature=TEMPERATURE, memory_bank_size=(QUEUE, DIM))
    optimiser = sgd([*backbone.parameters(), *head.parameters()])
    for batch in batches(images, n, workers):
        first, second = batch[0]
        update_momentum(backbone, slow_backbone, m=0.99)
        update_momentum(head, slow_head, m=0.99)
        with autocast(half):
            query = head(backbone(first).flatten(start_dim=1))
            key = slow_head(slow_backbone(second).flatten(start_dim=1)).detach()
            loss = criterion(query, key)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        done()


def lightly_simclr(
    backbone: nn.Module, images: Dataset, n: int, size: int, workers: int, done: Done, *, half: bool
) -> None:
    """lightly's example of SimCLR in plain PyTorch, under the augmentation of the others."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import MoCoV2Transform

    images.transform = MoCoV2Transform(input_size=size)
    width = backbone.feature_dim
    head = SimCLRProjectionHead(width, width, DIM)
    criterion = NTXentLoss(temperature=TEMPERATURE)
    optimiser = sgd([*backbone.parameters(), *head.parameters()])
    for batch in batches(images, n, workers):
        first, second = batch[0]
        with autocast(half):
            loss = criterion(head(backbone(first)), head(backbone(second)))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        done()


class PlainMoCo(nn.Module):
    """Query encoder, key encoder and queue in the form that MoCo's release made common."""

    def __init__(self, backbone: nn.Module):
        super().__init__()
        width = backbone.feature_dim
        head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DIM))
        self.query_encoder = nn.Sequential(backbone, head)
        self.key_encoder = copy.deepcopy(self.query_encoder)
        for parameter in self.key_encoder.parameters():
            parameter.requires_grad = False
        self.register_buffer("queue", nn.functional.normalize(torch.randn(DIM, QUEUE), dim=0))
        self.pointer = 0

    @torch.no_grad()
    def move_and_encode(self, images: Tensor) -> Tensor:
        """Momentum update, then keys of shuffled images."""
        pairs = zip(self.query_encoder.parameters(), self.key_encoder.parameters(), strict=True)
        for query, key in pairs:
            key.data = key.data * 0.99 + query.data * (1.0 - 0.99)
        order = torch.randperm(len(images))
        keys = nn.functional.normalize(self.key_encoder(images[order]), dim=1)
        return keys[torch.argsort(order)]

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Logits with the positive in front, and their labels; the queue moves on."""
        queries = nn.functional.normalize(self.query_encoder(first), dim=1)
        keys = self.move_and_encode(second)
        positive = torch.einsum("nc,nc->n", [queries, keys]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [queries, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / TEMPERATURE
        end = self.pointer + len(keys)
        self.queue[:, self.pointer : end] = keys.T
        self.pointer = end % QUEUE
        return logits, torch.zeros(len(logits), dtype=torch.long)


class TwoCrops:
    """Two draws of one transform."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        """Both views."""
        return [self.transform(image), self.transform(image)]


class Blur:
    """Gaussian blur by Pillow, σ from 0.1 to 2."""

    def __call__(self, image):
        """The blurred image."""
        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def plain_moco(
    backbone: nn.Module, images: Dataset, n: int, size: int, workers: int, done: Done, *, half: bool
) -> None:
    """A script in the form of MoCo's original: torchvision on PIL images, cross-entropy."""
    from torchvision import transforms

    images.transform = TwoCrops(
        transforms.Compose(
            [
                transforms.RandomResizedCrop(size, scale=(0.2, 1.0)),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                transforms.RandomApply([Blur()], p=0.5),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )
    )
    model = PlainMoCo(backbone)
    criterion = nn.CrossEntropyLoss()
    optimiser = sgd(model.query_encoder.parameters())
    for batch in batches(images, n, workers):
        first, second = batch[0]
        with autocast(half):
            logits, target = model(first, second)
            loss = criterion(logits, target)
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError("the loss is not finite")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        done()


def stable_pretraining_simclr(
    backbone: nn.Module, images: Dataset, n: int, size: int, workers: int, done: Done, *, half: bool
) -> None:
    """stable-pretraining's module and SimCLR forward under Lightning's trainer."""
    import lightning
    from stable_pretraining import Module
    from stable_pretraining.data import transforms
    from stable_pretraining.forward import simclr
    from stable_pretraining.losses import NTXEntLoss

    view = transforms.Compose(
        transforms.RGB(),
        transforms.RandomResizedCrop((size, size), scale=(0.2, 1.0)),
        transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.PILGaussianBlur(p=0.5),
        transforms.RandomHorizontalFlip(p=0.5),
        transforms.ToImage(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    )

    class Named(Dataset):
        """Samples as named entries, which its transforms take."""

        def __init__(self):
            self.transform = transforms.MultiViewTransform([view, view])

        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, number: int):
            image, label = images[number]
            return self.transform({"image": image, "label": label})

    class Tell(lightning.Callback):
        """Says when a step has ended."""

        def on_train_batch_end(self, *_: object) -> None:
            """A step has ended."""
            done()

    kept = {"persistent_workers": True} if workers else {}
    loader = DataLoader(
        Named(), batch_size=n, shuffle=True, drop_last=True, num_workers=workers, **kept
    )
    width = backbone.feature_dim
    module = Module(
        backbone=backbone,
        projector=nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DIM)),
        forward=simclr,
        simclr_loss=NTXEntLoss(temperature=TEMPERATURE),
        optim={"optimizer": {"type": "SGD", "lr": 0.03, "momentum": 0.9, "weight_decay": 1e-4}},
    )
    trainer = lightning.Trainer(
        max_epochs=1000,
        accelerator="cpu",
        precision="bf16-mixed" if half else "32-true",
        callbacks=[Tell()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)


PEERS = {
    "lightly MoCo": lightly_moco,
    "lightly SimCLR": lightly_simclr,
    "MoCo-style script": plain_moco,
}
# heavy to install, so it takes part only where it is there
if find_spec("stable_pretraining"):
    PEERS["stable-pretraining SimCLR"] = stable_pretraining_simclr
