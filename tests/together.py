"""Three steps of every framework, in as many processes as there are: one, or those of torchrun.

    python tests/together.py OUT      with RANK, WORLD_SIZE, … in the environment

Each process leaves what it holds after the three steps in OUT.
"""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from eqco.assembly import build_parts
from eqco.data import Views, source_from_dataset
from eqco.evaluation import extract_features
from eqco.recipes import (
    DataSettings,
    EncoderSettings,
    NegativesSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
)
from eqco.runtime import processes
from eqco.training.alarms import Alarms
from eqco.training.diagnostics import diagnose
from eqco.training.loop import of_all_processes, optimise, snapshot, warm_up

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


def tiny(method, *, accumulate=1, **changes):
    counts = {"simo": 3, "moco": 40, "simclr": 4}
    recipe = Recipe(
        method=method,
        ema_decay=0.9,
        data=DataSettings(image_size=8),
        encoder=EncoderSettings(embedding_dim=4),
        negatives=NegativesSettings(count=counts[method]),
        objective=ObjectiveSettings(alpha=64),
        optimiser=OptimiserSettings(base_learning_rate=0.5),
        training=TrainingSettings(num_queries=N, epochs=4, accumulate=accumulate),
    )
    return replace(recipe, **changes)


def shuffling(groups, head="mlp"):
    return EncoderSettings(embedding_dim=4, head=head, batch_norm="shuffling", bn_groups=groups)


# every one of them runs on 1, 2 and 4 processes
CASES = {
    "simo": tiny("simo"),
    "simo, all negatives": tiny("simo", negatives=NegativesSettings()),
    "simo, shared draw": tiny("simo", negatives=NegativesSettings(count=3, shared=True)),
    "simo, queue": tiny("simo", negatives=NegativesSettings(count=3, queue=21)),
    "simo, in two parts": tiny("simo", accumulate=2),
    "simo, shuffling BN": tiny("simo", encoder=shuffling(4)),
    "mocov1": tiny("moco", encoder=shuffling(4, head="linear")),
    "mocov2": tiny("moco", encoder=shuffling(4)),
    "mocov2, in two parts": tiny("moco", encoder=shuffling(4), accumulate=2),
    "mocov2, K < N": tiny("moco", negatives=NegativesSettings(count=5)),
    "simclr": tiny("simclr", negatives=NegativesSettings()),
    "simclr, sampled": tiny("simclr"),
    "simclr, other view": tiny("simclr", negatives=NegativesSettings(both_views=False)),
    "simclr, lars": tiny("simclr", optimiser=OptimiserSettings(name="lars")),
    "simclr, in two parts": tiny("simclr", accumulate=2),
}


def built(recipe, dtype):
    """The parts of a run with weights, statistics and memory of that dtype."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        return build_parts(recipe, source_from_dataset(Pictures()), backbone=TinyBackbone())
    finally:
        torch.set_default_dtype(torch.float32)


def three_steps(recipe, dtype):
    """What the encoders, the memory and the optimiser hold after three steps."""
    parts = built(recipe, dtype)
    parts.method.train()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    last = parts.loader.steps_per_epoch - 1
    warm_up(parts, in_dtype(parts.loader.batch(last), dtype))
    looks = []
    for step in range(3):
        rate = parts.learning_rate(step)
        for group in parts.optimiser.param_groups:
            group["lr"] = rate
        views = in_dtype(parts.loader.batch(step), dtype)
        loss, output, fresh = optimise(parts, scaler, views, step)
        seen = diagnose(
            of_all_processes(output.contrasts),
            temperature=parts.objective.temperature,
            alpha=parts.objective.alpha,
        )
        parts.method.after_step(fresh)
        looks.append(
            {
                "K": seen.num_negatives,
                "margin": seen.margin,
                "rate": rate,
                "loss": float(processes.mean_over_processes(loss)),
                "information": seen.information,
                "gradient": seen.gradient_norm_mean,
            }
        )
    state = snapshot(parts, scaler, Alarms(), {}, 3)
    return {"method": state["method"], "optimiser": state["optimiser"], "looks": looks}


def features(count):
    """Of the first pictures, by a network whose answer for an image depends on it alone."""
    split = source_from_dataset(Pictures())["train"].subset(range(count))
    torch.manual_seed(0)
    found = extract_features(TinyBackbone().eval(), split, size=12, batch_size=8)
    return found.values, found.labels


def in_dtype(views, dtype):
    return Views(views.first.to(dtype), views.second.to(dtype), views.index)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(command, count, **environment):
    """The same command in `count` processes that know each other; returns them."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    return [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def ended(workers, timeout=300):
    """What each process printed, after all have ended: (exit code, standard output, errors)."""
    try:
        said = [worker.communicate(timeout=timeout) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return [(worker.returncode, *each) for worker, each in zip(workers, said, strict=True)]


def main(out):
    with processes.process_group("cpu", timeout=120):
        held = {
            (name, str(dtype)): three_steps(recipe, dtype)
            for name, recipe in CASES.items()
            for dtype in (torch.float64, torch.float32)
        }
        held["features"] = {count: features(count) for count in (3, 95)}
        torch.save(held, Path(out) / f"{processes.world_size()}-{processes.rank()}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
