"""What compiling the encoders gains, and how long it makes a training wait.

    python benchmarks/compiling.py             light encoder and ResNet-18, 32 and 64 pixels
    python benchmarks/compiling.py --only 'light, 32 px, N = 64'
    python benchmarks/compiling.py --record    keep each under results/bench-compiling/

A step is the whole step of what `eqco train` chooses, SimCLR in the precision that auto chooses,
from pixels in memory to the weights; compiled are its encoders, forward and backward. The wait is
the first step of a process that has never compiled them (an empty cache of the compiler), less a
later step; a second training with the same network and batch on this machine waits less. Plain and
compiled take turns over rounds, each in a process of its own, the compiled ones of later rounds
from the cache of the first. A run of so many minutes gains where its time is saved beyond the wait.
"""

import os
import tempfile
import time
from statistics import median

from measure import (
    command_line,
    in_own_process,
    interleave,
    keep_record,
    read_options,
    settings_named,
)

SETTINGS = {
    "light, 32 px, N = 64": {"backbone": "light", "size": 32, "n": 64, "seconds": 10},
    "light, 32 px, N = 256": {"backbone": "light", "size": 32, "n": 256, "seconds": 10},
    "light, 64 px, N = 64": {"backbone": "light", "size": 64, "n": 64, "seconds": 10},
    "ResNet-18, 32 px, N = 256": {"backbone": "resnet18", "size": 32, "n": 256, "seconds": 15},
    "ResNet-18, 64 px, N = 64": {"backbone": "resnet18", "size": 64, "n": 64, "seconds": 15},
}
WAYS = {"plain": False, "compiled": True}


def child(question: dict) -> dict:
    import torch
    from photos import Photos

    from eqco.assembly import build_components
    from eqco.data import source_from_dataset
    from eqco.recipes import with_settings
    from eqco.recipes.rules import BASE
    from eqco.training.loop import time_steps

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    recipe = with_settings(
        BASE,
        backbone=question["backbone"],
        image_size=question["size"],
        num_queries=question["n"],
        epochs=10_000,
        compile=question["compile"],
    )
    components = build_components(recipe, source_from_dataset(Photos(question["size"])))
    begun = time.perf_counter()
    step = time_steps(components, question["seconds"])
    whole = time.perf_counter() - begun
    return {"seconds": step, "whole": whole, "precision": components.precision}


def main() -> None:
    parser = command_line(__doc__, rounds=3, quick=False)
    parser.add_argument("--only", default="", metavar="SETTING", help="whose names begin so")
    options = read_options(parser, child)
    chosen = settings_named(parser, options.only, SETTINGS)
    for title in chosen:
        setting, begun, seconds = SETTINGS[title], time.time(), {way: [] for way in WAYS}
        waits, precision = [], ""
        with tempfile.TemporaryDirectory() as cache:
            for turn, way in interleave(list(WAYS), options.rounds):
                question = {**setting, "compile": WAYS[way]}
                answer = in_own_process(
                    __file__, question, 1200, {"TORCHINDUCTOR_CACHE_DIR": cache}
                )
                if "error" in answer:
                    raise SystemExit(f"{title}, {way}: {answer['error']}")
                seconds[way].append(answer["seconds"])
                precision = answer["precision"]
                # the time before the steps that are counted
                wait = answer["whole"] - setting["seconds"] - answer["seconds"]
                if WAYS[way]:
                    waits.append(max(0.0, wait))
                speed = setting["n"] / answer["seconds"]
                print(
                    f"round {turn + 1}: {title}: {way}: {speed:.0f} images/s, {wait:.1f} s before",
                    flush=True,
                )
        plain, compiled = (median(seconds[way]) for way in WAYS)
        saved = 1 - compiled / plain
        print(f"{title}: saves {100 * saved:.1f} % of a step, waits {waits[0]:.0f} s", flush=True)
        if options.record:
            found = {f"{title}/{way}/seconds": median(times) for way, times in seconds.items()}
            found |= {f"{title}/first wait": waits[0], f"{title}/later wait": min(waits)}
            recipe = {"settings": {title: setting}, "rounds": options.rounds}
            recipe |= {"precision": precision}
            rounds = {f"{title}/{way}": times for way, times in seconds.items()}
            keep_record("bench-compiling", recipe, found, begun, curves={"rounds": rounds})


if __name__ == "__main__":
    main()
