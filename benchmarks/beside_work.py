"""How waiting threads share the cores with other work: images per second, alone and beside it.

    python benchmarks/beside_work.py                 the light encoder at 32 pixels and ResNet-18 at
                                                     64, N = 256, three rounds
    python benchmarks/beside_work.py --only light    one of them
    python benchmarks/beside_work.py --record        keep each under results/bench-beside-work/

OpenMP's threads wait for each other after every layer. By default they spin, which wastes the time
of a core that another process wants too; a passive thread leaves it at once, and has to be woken;
one thread alone waits for none. The steps are the encoder's, forward and backward, in the precision
that auto chooses. The other work is one process that computes without a pause. Every way of waiting
has a process of its own, alone and beside the other work, in each round; the median counts.
"""

import os
import subprocess
import sys
import time
from statistics import median

from measure import (
    command_line,
    in_own_process,
    interleave,
    keep_record,
    read_options,
    seconds_of_calls,
    settings_named,
)

WAYS: dict[str, dict[str, str]] = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "1000 spins": {"GOMP_SPINCOUNT": "1000"},
    "10000 spins": {"GOMP_SPINCOUNT": "10000"},
    "1 thread": {"OMP_NUM_THREADS": "1"},
}
PLACES = ("alone", "beside other work")
SETTINGS = {
    "light": {"backbone": "light", "size": 32, "n": 256, "budget": 3.0},
    "resnet18": {"backbone": "resnet18", "size": 64, "n": 256, "budget": 15.0},
}


def take_threads() -> None:
    """One for each core, unless the environment says how many, which torch has read."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(len(os.sched_getaffinity(0)))


def child(question: dict) -> dict:
    import torch

    from eqco.encoders import Encoder, autocast_to, backbone_named, choose_precision, mlp_head

    take_threads()
    torch.manual_seed(0)
    backbone = backbone_named(question["backbone"])
    encoder = Encoder(backbone, mlp_head(backbone.feature_dim))
    images = torch.randn(question["n"], 3, question["size"], question["size"])
    precision = choose_precision("auto", images.device)

    def step() -> None:
        encoder.zero_grad(set_to_none=True)
        with autocast_to(precision, images.device):
            embeddings = encoder(images)
        embeddings.float().mean().backward()

    return {"seconds": median(seconds_of_calls(step, budget=question["budget"]))}


def measure(question: dict, way: str, place: str) -> float:
    """Seconds of a step."""
    busy = None
    if place != "alone":
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        answer = in_own_process(__file__, question, environment=WAYS[way])
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    if "error" in answer:
        raise SystemExit(f"{way}, {place}: {answer['error']}")
    return answer["seconds"]


def measure_all(setting: dict, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step in every round, by `WAY/PLACE`."""
    seconds: dict[str, list[float]] = {}
    cases = [(way, place) for place in PLACES for way in WAYS]
    for turn, (way, place) in interleave(cases, rounds):
        seconds.setdefault(f"{way}/{place}", []).append(measure(setting, way, place))
        speed = setting["n"] / seconds[f"{way}/{place}"][-1]
        print(f"round {turn + 1}: {way}, {place}: {speed:.0f} images/s", flush=True)
    return seconds


def show(setting: dict, seconds: dict[str, list[float]]) -> None:
    print(f"\n{setting['backbone']}, {setting['size']} pixels")
    print(f"{'images/s':<16}" + "".join(f"{place:>20}{'range':>14}" for place in PLACES))
    for way in WAYS:
        cells = []
        for place in PLACES:
            speeds = [setting["n"] / value for value in seconds[f"{way}/{place}"]]
            cells.append(f"{median(speeds):>20.0f}{f'{min(speeds):.0f}–{max(speeds):.0f}':>14}")
        print(f"{way:<16}" + "".join(cells))


def main() -> None:
    parser = command_line(__doc__, rounds=3, quick=False)
    parser.add_argument("--only", default="", metavar="SETTING", help="light or resnet18")
    options = read_options(parser, child)
    for name in {name for way in WAYS.values() for name in way}:
        if os.environ.pop(name, None) is not None:
            print(f"{name} is taken out of the environment, since it is what is compared")
    for title in settings_named(parser, options.only, SETTINGS):
        begun, setting = time.time(), SETTINGS[title]
        rounds = measure_all(setting, options.rounds)
        show(setting, rounds)
        if options.record:
            found = {f"{name}/seconds": median(each) for name, each in rounds.items()}
            recipe = {**setting, "ways": WAYS, "rounds": options.rounds}
            keep_record("bench-beside-work", recipe, found, begun, curves={"rounds": rounds})


if __name__ == "__main__":
    main()
