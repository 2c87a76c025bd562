"""A training step of MoCo v2 against K: time and peak memory, from 16 to 65536 negatives.

    python benchmarks/step.py             ResNet-18 (ImageNet stem) at 64 pixels, N = 256
    python benchmarks/step.py --quick     the light encoder at 32 pixels
    python benchmarks/step.py --record    keep it under results/bench-step/

A step is forward of queries and keys, loss, backward, optimiser, momentum update and queue, on a
fixed batch. Each K has a process of its own; rounds take turns, and the best of each counts.
"""

import time

import torch
from measure import (
    best_seconds,
    command_line,
    in_own_process,
    keep_record,
    peak_extra_bytes,
    read_options,
)

COUNTS = [16, 256, 4096, 65536]


def child(question: dict) -> dict:
    from eqco.contrast import Objective
    from eqco.data import Batch
    from eqco.encoders import Encoder, backbone_named, mlp_head
    from eqco.methods import MethodParts, MoCoSettings
    from eqco.training.optimisers import sgd

    n, size, count = question["num_queries"], question["size"], question["count"]
    torch.manual_seed(0)
    backbone = backbone_named(question["backbone"])
    encoder = Encoder(backbone, mlp_head(backbone.feature_dim))
    method = MoCoSettings(queue_size=count, shuffle_bn=False).build(
        MethodParts(
            make_encoder=lambda number=0, in_channels=None: encoder,
            objective=Objective(temperature=0.2, alpha=65536),
            total_steps=1,
            seed=0,
        )
    )
    method.queue.enqueue(torch.nn.functional.normalize(torch.randn(count, 128), dim=1))
    optimiser = sgd(encoder.parameters(), 0.03)
    batch = Batch(tuple(torch.randn(2, n, 3, size, size)), torch.arange(n))

    def step() -> None:
        output = method(batch, 0)
        optimiser.zero_grad(set_to_none=True)
        output.loss.backward()
        optimiser.step()
        method.after_step(output)

    memory = peak_extra_bytes(step)
    return {"seconds": best_seconds(step, budget=question["budget"], least=3), "bytes": memory}


def main() -> None:
    options = read_options(command_line(__doc__), child)
    setting = {"backbone": "light", "size": 32, "num_queries": 256, "budget": 2.0}
    if not options.quick:
        setting = {"backbone": "resnet18", "size": 64, "num_queries": 256, "budget": 8.0}
    start, found = time.time(), {}
    for turn in range(2):
        for count in COUNTS:
            answer = in_own_process(__file__, {**setting, "count": count})
            if "error" in answer:
                raise SystemExit(f"K={count}: {answer['error']}")
            for what, value in answer.items():
                key = f"K={count}/{what}"
                found[key] = min(found.get(key, float("inf")), value)
            print(f"round {turn + 1}: K={count} {answer['seconds']:.3f} s", flush=True)
    print(f"\n{'K':>8}{'ms per step':>14}{'over K=256':>12}{'extra memory, MB':>18}")
    for count in COUNTS:
        seconds = found[f"K={count}/seconds"]
        ratio = seconds / found["K=256/seconds"]
        memory = found[f"K={count}/bytes"] / 1e6
        print(f"{count:>8}{1e3 * seconds:>14.1f}{ratio:>12.3f}{memory:>18.0f}")
    if options.record:
        keep_record("bench-step", {**setting, "counts": COUNTS}, found, start)


if __name__ == "__main__":
    main()
