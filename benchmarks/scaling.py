"""One process with two threads against two processes with one thread each: images per second.

    python benchmarks/scaling.py              the light encoder at 32 pixels, ResNet-18 at 64, in
                                              bfloat16 and in float32
    python benchmarks/scaling.py --quick      the light encoder in bfloat16 only
    python benchmarks/scaling.py --record     keep it under results/bench-scaling/

Whole training steps of SiMo at N = 256, data included; two processes gather keys, average gradients
and synchronise batch norm directly. Rounds take turns; the median step of each is kept, and the
median over rounds counts.
"""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median

import torch
from measure import command_line, interleave, keep_record, read_options

SETTINGS = {
    f"{backbone} at {size}, {precision}": (backbone, size, precision)
    for precision in ("bfloat16", "float32")
    for backbone, size in (("light", 32), ("resnet18", 64))
}
WAYS = {"1 process, 2 threads": (1, 2), "2 processes, 1 thread each": (2, 1)}


class Noise(torch.utils.data.Dataset):
    """Random pictures: their content does not matter for speed."""

    def __init__(self, size: int):
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(256, (1024, 3, size, size), generator=generator)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.pixels[number].to(torch.uint8), 0


def child(question: dict) -> dict:
    from eqco.assembly import build_components
    from eqco.data import source_from_dataset
    from eqco.recipes import named_recipe
    from eqco.runtime import processes
    from eqco.training.loop import optimise

    backbone, size = question["backbone"], question["size"]
    recipe = named_recipe("simo", "desk")
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=size),
        encoder=replace(recipe.encoder, backbone=backbone),
        training=replace(recipe.training, precision=question["precision"]),
    )
    with processes.process_group("cpu"):
        components = build_components(recipe, source_from_dataset(Noise(size)))
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        times, step, end = [], 0, time.perf_counter() + question["budget"]
        # all processes must agree on the number of steps
        while not processes.any_of(len(times) > 4 and time.perf_counter() > end):
            start = time.perf_counter()
            batches = components.loader.micro_batches(step)
            components.method.after_step(optimise(components, scaler, batches, step))
            times.append(time.perf_counter() - start)
            step += 1
    return {"images_per_second": recipe.training.num_queries / median(times[1:])}


def ask(question: dict, count: int, threads: int) -> float:
    """Images per second of `count` processes with `threads` threads each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    command = [sys.executable, __file__, "--child", json.dumps(question)]
    workers = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": str(threads)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    answers = [worker.communicate(timeout=600)[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise SystemExit(f"a process of {count} failed; its message is above.")
    return json.loads(answers[0].strip().splitlines()[-1])["images_per_second"]


def main() -> None:
    options = read_options(command_line(__doc__, rounds=3), child)
    begun, metrics, rounds = time.time(), {}, {}
    chosen = list(SETTINGS.items())[: 1 if options.quick else None]
    for name, (backbone, size, precision) in chosen:
        question = {"backbone": backbone, "size": size, "precision": precision}
        question["budget"] = 4.0 if size == 32 else 10.0
        speeds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _, way in interleave(list(WAYS), options.rounds):
            speeds[way].append(ask(question, *WAYS[way]))
        for way, found in speeds.items():
            rounds[f"{name}/{way}"] = [round(speed, 1) for speed in found]
            metrics[f"{name}/{way}"] = round(median(found), 1)
            each = ", ".join(f"{speed:.0f}" for speed in found)
            print(f"{name:>24}  {way:<28} {median(found):8.1f} images/s  ({each})", flush=True)
        alone, shared = map(median, speeds.values())
        print(f"{name:>24}  {'ratio (target 0.9)':<28} {shared / alone:8.2f}", flush=True)
    if options.record:
        settings = [name for name, _ in chosen]
        recipe = {"num_queries": 256, "method": "simo", "rounds": options.rounds}
        recipe |= {"settings": settings, "ways": list(WAYS), "step": "median"}
        keep_record("bench-scaling", recipe, metrics, begun, curves={"rounds": rounds})


if __name__ == "__main__":
    main()
