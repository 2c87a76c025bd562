"""Training end to end, ours and others': images per second and memory, beside the encoder alone.

    python benchmarks/train.py                 all settings, three rounds of some 15 minutes
    python benchmarks/train.py --only light    the settings whose names begin so
    python benchmarks/train.py --record        keep each under results/bench-train/

From stored images to the optimiser's step: same backbone, images, N, batch norm over the batch and
two views by MoCo v2's augmentation (the others' blur is Pillow's, ours has a kernel of a tenth of
the image). Ours runs as it comes, in the precision that auto chooses, and decodes JPEG files of one
size once, before the first step; others as their documentation has it, which is in every epoch, and
once more in bfloat16 by their own means: both ratios are shown, out of the box and like for like.
`limit` is the same work of the encoder alone, in our precision, channels-last, on a fixed batch:
queries forward and backward and keys forward; for SimCLR both views forward and backward.
Others run with 0 and with 2 loading processes; the faster counts, and one that was 15 % slower in
the first round is not measured again. Each contender has a process of its own and runs once a
round, each round in another order; all rounds are kept, their median counts, and contenders whose
rounds overlap count as equal. Memory is the largest sum of what process and workers hold beyond
program files. A profile says where a step of SiMo goes: medians over steps of its parts, and of the
whole, which take turns.
"""

import copy
import importlib.metadata
import os
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
from measure import (
    clearly_slower,
    command_line,
    fastest_way,
    in_own_process,
    interleave,
    keep_record,
    read_options,
    settings_named,
)
from peers import PEERS
from photos import IMAGES, Photos

from eqco.encoders import Encoder, autocast_to, backbone_named, choose_precision, mlp_head

JPEG = "ResNet-18, 64 px, JPEG"
SETTINGS = {
    "light, 32 px": {"backbone": "light", "size": 32, "n": 256, "seconds": 4},
    "ResNet-18, 32 px": {"backbone": "resnet18", "size": 32, "n": 256, "seconds": 6},
    JPEG: {"backbone": "resnet18", "size": 64, "n": 256, "seconds": 6},
    "ResNet-50, 64 px": {"backbone": "resnet50", "size": 64, "n": 64, "seconds": 8},
}
OURS = {"eqco SiMo": "simo", "eqco MoCo v2": "mocov2", "eqco SimCLR": "simclr"}
LIMITS = {"limit": False, "limit of SimCLR": True}
# at least so many times a peer's speed: out of the box, and like for like in bfloat16
TARGETS: dict[str, tuple[float, float]] = {
    "light, 32 px": (4.0, 1.5),
    "ResNet-18, 32 px": (2.0, 1.0),
    JPEG: (1.8, 1.0),
    "ResNet-50, 64 px": (1.6, 1.0),
}
THREADS = len(os.sched_getaffinity(0))
HALF = ", bfloat16"  # after the name of a peer
WARM = 2  # steps that are not counted


def fresh_backbone(name: str) -> torch.nn.Module:
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


def peers_training(name: str, question: dict, timer: Timer) -> None:
    photos = Photos(question["size"], question["folder"])
    backbone = fresh_backbone(question["backbone"])
    setting = (question["n"], question["size"], question["workers"])
    PEERS[name](backbone, photos, *setting, timer, half=question["half"])


def encoder_alone(symmetric: bool, question: dict, timer: Timer) -> None:
    """No data, no loss, no optimiser."""
    backbone = fresh_backbone(question["backbone"])
    encoder = Encoder(backbone, mlp_head(backbone.feature_dim))
    keys = copy.deepcopy(encoder).requires_grad_(False)
    shape = (question["n"], 3, question["size"], question["size"])
    first, second = (torch.randn(shape).to(memory_format=torch.channels_last) for _ in range(2))
    cast = partial(autocast_to, choose_precision("auto", first.device), first.device)
    while True:
        encoder.zero_grad(set_to_none=True)
        if symmetric:
            with cast():
                embeddings = encoder(first), encoder(second)
        else:
            with cast():
                with torch.no_grad():
                    keys(second)
                embeddings = (encoder(first),)
        sum(each.float().mean() for each in embeddings).backward()
        timer()


class Memory(threading.Thread):
    """The largest memory of this process and its children beyond program files (Linux)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest = 0
        self.start()

    def run(self) -> None:
        """Look five times a second."""
        while True:
            self.largest = max(self.largest, sum(map(held_bytes, family())))
            time.sleep(0.2)


def family() -> list[int]:
    """This process and its children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [os.getpid(), *map(int, children)]


def held_bytes(process: int) -> int:
    """What is not read from a file; pages that processes share are divided among them."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


def child(question: dict) -> dict:
    torch.set_num_threads(question["threads"])
    if question["name"] in (*OURS, "profile"):
        import ours  # only here: others shall not pay for what it loads
    name, memory, timer = question["name"], Memory(), Timer(question["seconds"])
    if name == "profile":
        return ours.profile(question)
    try:
        if name in OURS:
            ours.our_training(OURS[name], question, timer)
        elif name in PEERS:
            peers_training(name, question, timer)
        else:
            encoder_alone(LIMITS[name], question, timer)
    except EnoughError:
        pass
    return {"seconds": timer.seconds_per_step(), "bytes": memory.largest}


def questions(setting: dict, folder: str | None) -> list[dict]:
    """Every contender, in every way it is tried."""
    common = {**setting, "folder": folder, "threads": THREADS}
    settings = [{**common, "name": name, "workers": 0} for name in LIMITS]
    tried = (0,) if folder is None else (0, 2)  # images in memory need no workers
    settings += [{**common, "name": name, "workers": workers} for name in OURS for workers in tried]
    settings += [
        {**common, "name": name, "workers": workers, "half": half}
        for name in PEERS
        for half in (False, True)
        for workers in (0, 2)
    ]
    return settings


def title_of(question: dict) -> str:
    """The contender, in the way it computes."""
    return question["name"] + (HALF if question.get("half") else "")


def ask(question: dict) -> dict | None:
    """What a process of its own has measured; None: a peer failed, and is left out."""
    answer = in_own_process(__file__, question)
    if "error" not in answer:
        return answer
    said = f"{title_of(question)}, {question['workers']} workers, failed: {answer['error']}"
    if question["name"] not in PEERS:
        raise SystemExit(said)
    print(said, file=sys.stderr, flush=True)
    return None


def measure(title: str, rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Of each contender `TITLE/CONTENDER/seconds` of a step (the median over rounds) and `/bytes`
    (the most); then the seconds of every round, by `TITLE/CONTENDER`.
    """
    setting, seconds, held = SETTINGS[title], {}, {}
    with tempfile.TemporaryDirectory() as place:
        folder = place if title == JPEG else None
        if folder is not None:
            Photos(setting["size"]).write(folder)
        for turn, question in interleave(questions(setting, folder), rounds):
            name, workers = title_of(question), question["workers"]
            ways = seconds.get(name, {})
            rest = [times for way, times in ways.items() if way != workers]
            if turn and any(clearly_slower(ways.get(workers, []), times) for times in rest):
                continue
            answer = ask(question)
            if answer is None:
                continue
            speed = setting["n"] / answer["seconds"]
            print(
                f"round {turn + 1}: {title}: {name}, {workers} workers: {speed:.0f} images/s",
                flush=True,
            )
            seconds.setdefault(name, {}).setdefault(workers, []).append(answer["seconds"])
            held[name, workers] = max(answer["bytes"], held.get((name, workers), 0))
        metrics, every = {}, {}
        for name, ways in seconds.items():
            chosen = fastest_way(list(ways.values()), rounds)
            if chosen is None:
                continue
            workers = next(way for way, times in ways.items() if times is chosen)
            every[f"{title}/{name}"] = chosen
            metrics[f"{title}/{name}/seconds"] = median(chosen)
            metrics[f"{title}/{name}/bytes"] = held[name, workers]
        profiled = {**setting, "name": "profile", "workers": 0, "folder": folder}
        parts = ask({**profiled, "threads": THREADS}).items()
        metrics |= {f"{title}/profile/{part}": value for part, value in parts}
    return metrics, every


def describe_ratios(title: str, found: dict[str, float], ours: str) -> str:
    """Our speed over that of each peer of the same framework, out of the box and like for like."""
    framework = ours.removeprefix("eqco ")
    kin = [name for name in PEERS if ("SimCLR" in name) == (framework == "SimCLR")]
    parts = []
    for name in kin:
        ratios = [
            f"{found[f'{title}/{name}{half}/seconds'] / found[f'{title}/{ours}/seconds']:.2f}"
            if f"{title}/{name}{half}/seconds" in found
            else "failed"
            for half in ("", HALF)
        ]
        parts.append(f"{ratios[0]} times {name} out of the box, {ratios[1]} like for like")
    return "; ".join(parts)


def show(title: str, found: dict[str, float], rounds: dict[str, list[float]]) -> None:
    n, (faster, alike) = SETTINGS[title]["n"], TARGETS[title]
    print(f"\n{title}, N = {n}")
    print(f"{'':<28}{'images/s':>10}{'range':>14}{'time over limit':>17}{'memory, MB':>12}")
    peers = [name + half for name in PEERS for half in ("", HALF)]
    for name in [*LIMITS, *OURS, *peers]:
        if f"{title}/{name}/seconds" not in found:
            print(f"{name:<28}{'failed':>10}")
            continue
        seconds, times = found[f"{title}/{name}/seconds"], rounds[f"{title}/{name}"]
        limit = found[f"{title}/{'limit of SimCLR' if 'SimCLR' in name else 'limit'}/seconds"]
        memory = found[f"{title}/{name}/bytes"] / 1e6
        reach = f"{n / max(times):.0f}–{n / min(times):.0f}"
        print(f"{name:<28}{n / seconds:>10.0f}{reach:>14}{seconds / limit:>17.2f}{memory:>12.0f}")
    for key in [key for key in found if key.startswith(f"{title}/profile/")]:
        print(f"  {key.split('/')[-1]:<26}{1e3 * found[key]:>10.1f} ms")
    for ours in OURS:
        print(f"{ours}: {describe_ratios(title, found, ours)}")
    print(f"target: {faster} times lightly's speed out of the box, {alike} like for like")


def main() -> None:
    parser = command_line(__doc__, rounds=3, quick=False)
    parser.add_argument("--only", default="", metavar="SETTING", help="such as light")
    options = read_options(parser, child)
    chosen = settings_named(parser, options.only, SETTINGS)
    if "stable-pretraining SimCLR" not in PEERS:
        print("stable-pretraining is not installed and left out")
    others = {name.split()[0] for name in PEERS} - {"MoCo-style"}
    versions = {name: importlib.metadata.version(name) for name in ("torch", *sorted(others))}
    for title in chosen:
        begun = time.time()
        found, rounds = measure(title, options.rounds)
        show(title, found, rounds)
        if options.record:
            recipe = {"settings": {title: SETTINGS[title]}, "rounds": options.rounds}
            recipe |= {"peers": versions, "threads": THREADS, "images": IMAGES}
            keep_record("bench-train", recipe, found, begun, curves={"rounds": rounds})


if __name__ == "__main__":
    main()
