"""Training end to end, ours and others': images per second and memory, beside the encoder alone.

    python benchmarks/train.py                 all settings, about half an hour on two cores
    python benchmarks/train.py --quick         the light encoder only
    python benchmarks/train.py --record        keep it under results/bench-train/

From stored images to the optimiser's step: same backbone, images, N and two views by MoCo v2's
augmentation. `limit` is the query encoder forward and backward and the key encoder forward on a
fixed batch, in the faster memory layout (for SimCLR: both views forward and backward). Others run
with 0 and with 2 loading processes; the faster counts. Each contender has a process of its own;
rounds take turns, and the best of each counts. Memory is the largest sum over the process and its
workers, shared pages counted once.
"""

import argparse
import copy
import importlib.metadata
import json
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
from measure import in_own_process, keep_record
from peers import PEERS
from torch.utils.data import Dataset

JPEG = "ResNet-18, 64 px, JPEG"
SETTINGS = {
    "light, 32 px": {"backbone": "light", "size": 32, "n": 256, "seconds": 8},
    "ResNet-18, 32 px": {"backbone": "resnet18", "size": 32, "n": 256, "seconds": 15},
    JPEG: {"backbone": "resnet18", "size": 64, "n": 256, "seconds": 15},
    "ResNet-50, 64 px": {"backbone": "resnet50", "size": 64, "n": 64, "seconds": 20},
}
OURS = {"eqco SiMo": "simo", "eqco MoCo v2": "mocov2", "eqco SimCLR": "simclr"}
LIMITS = {"limit": False, "limit of SimCLR": True}
# at least so many times a peer's speed, at most so many times the limit's time
TARGETS: dict[str, tuple[float, float | None]] = {
    "light, 32 px": (1.5, 1.15),
    "ResNet-18, 32 px": (1.3, 1.1),
    JPEG: (1.0, None),
    "ResNet-50, 64 px": (1.0, 1.05),
}
WAYS = ("workers", "channels_last")
WARM = 2  # steps that are not counted
IMAGES = 16_384


class Photos(Dataset):
    """The embedded photographs over and over, as PIL images: what a torchvision data set gives."""

    def __init__(self, size: int, folder: str | None):
        from eqco.data import open_source

        pixels = open_source("groceries")["train"].images.pixels
        smaller = torch.nn.functional.interpolate(pixels.float(), size, mode="area")
        self.pixels = smaller.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        self.folder = folder
        self.transform = None

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, number: int):
        from PIL import Image

        number %= len(self.pixels)
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


def fresh_backbone(name: str) -> torch.nn.Module:
    from eqco.encoders import backbone_named

    torch.manual_seed(0)
    return backbone_named(name)


class EnoughError(Exception):
    """The time is over."""


class Timer:
    """Called after every step; ends a contender when its time is over."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.ends: list[float] = []

    def __call__(self, *_: object) -> None:
        """A step has ended."""
        self.ends.append(time.perf_counter())
        counted = self.ends[WARM:]
        if len(counted) > 4 and counted[-1] - counted[0] > self.seconds:
            raise EnoughError

    def seconds_per_step(self) -> float:
        """The mean of the counted steps."""
        counted = self.ends[WARM:]
        return (counted[-1] - counted[0]) / (len(counted) - 1)


def our_training(framework: str, question: dict, timer: Timer) -> None:
    """The trainer itself, with schedule, metrics and diagnostics, told to report every step."""
    from eqco.assembly import build_parts
    from eqco.data import open_source, source_from_dataset
    from eqco.recipes import named_recipe, recipe_to_dict
    from eqco.runtime.run_directory import RunDirectory
    from eqco.training.loop import run_training

    photos = Photos(question["size"], None)
    recipe = named_recipe(framework, "desk")
    recipe = replace(
        recipe,
        data=replace(
            recipe.data, image_size=question["size"], pipeline="mocov2", workers=question["workers"]
        ),
        encoder=replace(recipe.encoder, backbone=question["backbone"]),
        training=replace(
            recipe.training, num_queries=question["n"], log_every=1, diagnose_every=10, epochs=1000
        ),
    )
    if question["folder"] is None:
        source = source_from_dataset(photos)
    else:
        source = open_source(question["folder"])
    parts = replace(build_parts(recipe, source), probe=None)
    with tempfile.TemporaryDirectory() as place:
        run, written = RunDirectory(Path(place) / "run"), recipe_to_dict(recipe)
        run.start(written, {})
        run_training(parts, run, written, show=timer)


def peers_training(name: str, question: dict, timer: Timer) -> None:
    photos = Photos(question["size"], question["folder"])
    backbone = fresh_backbone(question["backbone"])
    steps = PEERS[name](backbone, photos, question["n"], question["size"], question["workers"])
    for loss in steps:
        timer(loss)


def encoder_alone(symmetric: bool, question: dict, timer: Timer) -> None:
    """No data, no loss, no optimiser: what nothing can be faster than."""
    from eqco.encoders import Encoder, mlp_head

    backbone = fresh_backbone(question["backbone"])
    encoder = Encoder(backbone, mlp_head(backbone.feature_dim))
    layout = torch.channels_last if question["channels_last"] else torch.contiguous_format
    encoder = encoder.to(memory_format=layout)
    keys = copy.deepcopy(encoder).requires_grad_(False)
    shape = (question["n"], 3, question["size"], question["size"])
    first, second = (torch.randn(shape).to(memory_format=layout) for _ in range(2))
    while True:
        encoder.zero_grad(set_to_none=True)
        if symmetric:
            (encoder(first).mean() + encoder(second).mean()).backward()
        else:
            with torch.no_grad():
                keys(second)
            encoder(first).mean().backward()
        timer()


class Memory(threading.Thread):
    """The largest memory of this process and its children, shared pages counted once (Linux)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest = 0
        self.start()

    def run(self) -> None:
        """Look twice a second."""
        while True:
            self.largest = max(self.largest, sum(map(proportional_bytes, family())))
            time.sleep(0.5)


def family() -> list[int]:
    """This process and its children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [os.getpid(), *map(int, children)]


def proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def child(question: dict) -> dict:
    torch.set_num_threads(question["threads"])
    name, memory, timer = question["name"], Memory(), Timer(question["seconds"])
    try:
        if name in OURS:
            our_training(OURS[name], question, timer)
        elif name in PEERS:
            peers_training(name, question, timer)
        else:
            encoder_alone(LIMITS[name], question, timer)
    except EnoughError:
        pass
    return {"seconds": timer.seconds_per_step(), "bytes": memory.largest}


def questions(setting: dict, folder: str | None) -> list[dict]:
    """Every contender, in every way it is tried."""
    common = {**setting, "folder": folder, "threads": len(os.sched_getaffinity(0))}
    asked = [
        {**common, "name": name, "channels_last": last} for name in LIMITS for last in (False, True)
    ]
    ours = (0,) if folder is None else (0, 2)  # images in memory need no workers
    asked += [{**common, "name": name, "workers": workers} for name in OURS for workers in ours]
    asked += [{**common, "name": name, "workers": workers} for name in PEERS for workers in (0, 2)]
    return asked


def measure(title: str, rounds: int) -> dict[str, float]:
    """`TITLE/CONTENDER/seconds` of a step, and `/bytes`; of several ways the fastest."""
    setting, best = SETTINGS[title], {}
    with tempfile.TemporaryDirectory() as place:
        folder = place if title == JPEG else None
        if folder is not None:
            Photos(setting["size"], None).write(folder)
        for turn in range(rounds):
            for question in questions(setting, folder):
                answer = in_own_process(__file__, question)
                name = question["name"]
                way = {
                    key: question[key] for key in ("workers", "channels_last") if key in question
                }
                if "error" in answer:
                    raise SystemExit(f"{name} {way}: {answer['error']}")
                print(
                    f"round {turn + 1}: {title}: {name} {way} "
                    f"{setting['n'] / answer['seconds']:.0f} images/s",
                    flush=True,
                )
                if name not in best or answer["seconds"] < best[name]["seconds"]:
                    best[name] = answer
    return {
        f"{title}/{name}/{what}": value
        for name, answer in best.items()
        for what, value in answer.items()
    }


def show(title: str, found: dict[str, float]) -> None:
    n, (faster, near) = SETTINGS[title]["n"], TARGETS[title]
    print(f"\n{title}, N = {n}")
    print(f"{'':<20}{'images/s':>10}{'time over limit':>17}{'memory, MB':>12}")
    for name in [*LIMITS, *OURS, *PEERS]:
        seconds = found[f"{title}/{name}/seconds"]
        limit = found[f"{title}/{'limit of SimCLR' if 'SimCLR' in name else 'limit'}/seconds"]
        memory = found[f"{title}/{name}/bytes"] / 1e6
        print(f"{name:<20}{n / seconds:>10.0f}{seconds / limit:>17.2f}{memory:>12.0f}")
    target = "" if near is None else f", at most {near} times the limit's time"
    print(f"target: at least {faster} times the others' speed{target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(json.loads(options.child))))
        return
    begun, found = time.time(), {}
    for title in list(SETTINGS)[: 1 if options.quick else None]:
        measured = measure(title, options.rounds)
        show(title, measured)
        found |= measured
    if options.record:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "lightly")}
        recipe = {"settings": SETTINGS, "rounds": options.rounds, "versions": versions}
        keep_record("bench-train", recipe, found, begun)


if __name__ == "__main__":
    main()
