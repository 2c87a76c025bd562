"""Three steps of every method, in as many processes as there are: one, or those of torchrun.

    python tests/together.py OUT      with RANK, WORLD_SIZE, … in the environment

Each process leaves what it holds after the three steps in OUT.
"""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from toy_method import ToySettings

from eqco.assembly import build_components
from eqco.data import Augment, source_from_dataset
from eqco.evaluation import extract_features
from eqco.methods import (
    METHODS,
    BYOLSettings,
    CMCSettings,
    CPCSettings,
    MoCoSettings,
    MoCoV3Settings,
    PIRLSettings,
    SimCLRSettings,
    SiMoSettings,
    SwAVSettings,
)
from eqco.recipes import (
    DataSettings,
    EncoderSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
)
from eqco.recipes.profiles import scale_method
from eqco.runtime import processes
from eqco.training.alarms import Alarms
from eqco.training.diagnostics import diagnose
from eqco.training.loop import gather_contrasts, optimise, snapshot, warm_up

N = 16


class Pictures(torch.utils.data.Dataset):
    """Ninety-six small pictures."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.targets = [number % 2 for number in range(96)]
        self.pixels = torch.randint(256, (96, 3, 12, 12), generator=generator).to(torch.uint8)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        return self.pixels[number], self.targets[number]


class TinyBackbone(nn.Module):
    feature_dim = 8

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )

    def forward(self, images):
        return self.layers(images).flatten(1)


def tiny(method, *, bn_groups=1, head="normalised", accumulation_steps=1, **changes):
    imitates = method.takes_alpha and method.num_negatives(N) is not None
    usual = {
        "objective": ObjectiveSettings(alpha=64 if imitates else None),
        "data": DataSettings(image_size=8),
        "encoder": EncoderSettings(embedding_dim=4, head=head, bn_groups=bn_groups),
        "optimiser": OptimiserSettings(base_learning_rate=0.5),
        "training": TrainingSettings(
            num_queries=N, epochs=4, accumulation_steps=accumulation_steps
        ),
    }
    return Recipe(method=method, **{**usual, **changes})


def simo(**settings):
    return SiMoSettings(**{"count": 3, "ema_decay": 0.9, **settings})


def moco(**settings):
    return MoCoSettings(**{"queue_size": 40, "ema_decay": 0.9, **settings})


def small(kind):
    """A method's defaults, scaled to four epochs of these pictures."""
    method = scale_method(kind(), 0.9, memory=40, length=4)
    return method if getattr(method, "count", None) is None else replace(method, count=4)


def remembered(source):
    return ObjectiveSettings(alpha=64, normaliser=source, normaliser_decay=0.6)


def light(method, **changes):
    """A network that can be built for any bands, and images large enough for a jigsaw."""
    usual = {
        "encoder": EncoderSettings(backbone="light", embedding_dim=4),
        "data": DataSettings(image_size=12),
        # small steps, since rounding grows in a network this deep
        "optimiser": OptimiserSettings(base_learning_rate=0.1),
    }
    return tiny(method, **{**usual, **changes})


SHUFFLED = {"bn_groups": 4, "head": "mlp"}
# every one of them runs on 1, 2 and 4 processes
CASES = {
    "simo": tiny(simo()),
    "simo, all negatives": tiny(simo(count=None)),
    "simo, shared draw": tiny(simo(shared=True)),
    "simo, queue": tiny(simo(queue_size=21)),
    "simo, in two micro-batches": tiny(simo(), accumulation_steps=2),
    "simo, shuffling BN": tiny(simo(shuffle_bn=True), **SHUFFLED),
    "simo, rising decay": tiny(simo(ema_schedule="cosine")),
    "mocov1": tiny(moco(), bn_groups=4, head="linear"),
    "mocov2": tiny(moco(), **SHUFFLED),
    "mocov2, in two micro-batches": tiny(moco(), accumulation_steps=2, **SHUFFLED),
    "mocov2, K < N": tiny(moco(queue_size=5, shuffle_bn=False)),
    "simclr": tiny(SimCLRSettings()),
    "simclr, sampled": tiny(SimCLRSettings(count=4)),
    "simclr, other view": tiny(SimCLRSettings(both_views=False)),
    "simclr, lars": tiny(SimCLRSettings(count=4), optimiser=OptimiserSettings(name="lars")),
    "simclr, in two micro-batches": tiny(SimCLRSettings(count=4), accumulation_steps=2),
    "simo, remembered": tiny(simo(), objective=remembered("instance")),
    "simo, remembered queue": tiny(simo(queue_size=21), objective=remembered("queue")),
    "cpc": tiny(CPCSettings(grid=3), data=DataSettings(image_size=12)),
    "cpc, other images": tiny(
        CPCSettings(grid=3, other_images_only=True), data=DataSettings(image_size=12)
    ),
    "cpc, sampled": tiny(
        CPCSettings(grid=3, other_images_only=True, count=5), data=DataSettings(image_size=12)
    ),
    "byol, in two micro-batches": tiny(BYOLSettings(), accumulation_steps=2),
    "mocov3, sampled": tiny(MoCoV3Settings(count=4), head="mocov3"),
    "swav, queue": tiny(
        SwAVSettings(
            num_prototypes=8, small_views=2, queue_size=21, queue_epoch=0, frozen_epochs=0
        ),
        data=DataSettings(image_size=12),
    ),
    "toy": tiny(ToySettings()),
    "cmc, nce": light(CMCSettings(count=20, loss="nce")),
    "pirl, own draws": light(PIRLSettings(count=40, shared=False), accumulation_steps=2),
}
# and every method of the catalog as it comes
CASES |= {name: light(small(kind)) for name, kind in METHODS.items() if name not in CASES}


def built(recipe, dtype):
    """The components of a run with weights, statistics, queue and images of that dtype."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        source = source_from_dataset(Pictures())
        own = TinyBackbone() if recipe.encoder.backbone == Recipe().encoder.backbone else None
        components = build_components(recipe, source, backbone=own)
    finally:
        torch.set_default_dtype(torch.float32)
    components.loader.augments = [
        Augment(each.pipeline, each.size, dtype) for each in components.loader.augments
    ]
    return components


def three_steps(recipe, dtype):
    """What the encoders, the queue and the optimiser hold after three steps."""
    components = built(recipe, dtype)
    components.method.train()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    warm_up(components)
    diagnosed = []
    for step in range(3):
        rate = components.learning_rate(step)
        for group in components.optimiser.param_groups:
            group["lr"] = rate
        output = optimise(components, scaler, components.loader.micro_batches(step), step)
        seen = {"rate": rate, "loss": float(processes.mean_over_processes(output.loss))}
        if output.contrasts:
            found = diagnose(gather_contrasts(output.contrasts), temperature=0.2, alpha=64)
            seen |= {
                "K": found.num_negatives,
                "margin": found.margin,
                "bound": float(found.information_kind == "bound"),
                "information": found.information,
                "gradient": found.gradient_norm_mean,
            }
        components.method.after_step(output)
        diagnosed.append(seen)
    state = snapshot(components, scaler, Alarms(), {}, 3)
    return {"method": state["method"], "optimiser": state["optimiser"], "diagnosed": diagnosed}


def features(count):
    """Of the first pictures, by a network whose answer for an image depends on it alone."""
    split = source_from_dataset(Pictures())["train"].subset(range(count))
    torch.manual_seed(0)
    found = extract_features(TinyBackbone().eval(), split, size=12, batch_size=8)
    return found.values, found.labels


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(warm, command, count, **environment):
    """The same command in `count` processes that know each other; returns them."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        **environment,
    }
    return [
        warm.python(*command, **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(count)
    ]


def ended(workers):
    """What each process printed, after all have ended: (exit code, standard output, errors)."""
    try:
        return [(worker.wait(), worker.said, worker.errors) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()


def main(out):
    with processes.process_group("cpu", timeout=120):
        # what float64 says of four processes float32 could only say less sharply
        several = processes.world_size() > 2
        held = {
            (name, str(dtype)): three_steps(recipe, dtype)
            for name, recipe in CASES.items()
            for dtype in ((torch.float64,) if several else (torch.float64, torch.float32))
        }
        held["features"] = {count: features(count) for count in (3, 95)}
        torch.save(held, Path(out) / f"{processes.world_size()}-{processes.rank()}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
