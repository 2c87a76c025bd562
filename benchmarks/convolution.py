"""Convolutions in bfloat16: torch's own way beside matrix products.

    python benchmarks/convolution.py             the layers of three networks, three rounds
    python benchmarks/convolution.py --record    keep it under results/bench-convolution/

Every convolution of 1×1 and 3×3 of our networks, once for each shape, on a batch of random maps,
channels-last: forward with the gradients of maps and weights, and forward alone, as a key encoder
has it. `gradient` computes the gradient of the weights by one product and the rest by torch;
`products` computes everything by products, for the kernels and maps that allow it. `used` is what
`eqco.encoders.convolution` takes for a training. One way follows the other in every round; the
shortest of a round counts, and the median over rounds is shown.
"""

import os
import time
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from measure import best_seconds, command_line, in_own_process, keep_record, read_options
from torch import nn

from eqco.encoders import backbone_named
from eqco.encoders.convolution import (
    Conv1x1,
    Conv3x3,
    WeightGradient,
    convolve_2x2,
    convolve_pixels,
    fastest_way,
)

SETTINGS = {
    "light, 32 px": {"backbone": "light", "size": 32, "n": 256},
    "ResNet-18, 32 px": {"backbone": "resnet18", "size": 32, "n": 256},
    "ResNet-18, 64 px": {"backbone": "resnet18", "size": 64, "n": 256},
    "ResNet-50, 64 px": {"backbone": "resnet50", "size": 64, "n": 64},
}
WAYS = ("torch", "gradient", "products")
ALONE = {"torch": "torch, forward alone", "products": "products, forward alone"}
COLUMNS = (*WAYS, *ALONE.values())


def layers_of(backbone: str, size: int) -> dict[tuple[nn.Module, tuple[int, ...]], int]:
    """The convolutions with the maps they see, (channels, H, W), and how often each is there."""
    found: dict[tuple, tuple[nn.Module, tuple[int, ...], int]] = {}

    def note(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        kind = (*layer.weight.shape, layer.stride, *inputs[0].shape[1:])
        count = found[kind][2] if kind in found else 0
        found[kind] = layer, tuple(inputs[0].shape[1:]), count + 1

    network = backbone_named(backbone)
    for module in network.modules():
        if isinstance(module, Conv1x1 | Conv3x3):
            module.register_forward_hook(note)
    with torch.no_grad():
        network(torch.zeros(2, 3, size, size))
    return {(layer, maps): count for layer, maps, count in found.values()}


def calls(maps: torch.Tensor, weight: torch.Tensor, stride: int) -> dict:
    """The ways to compute one layer."""
    padding = (weight.shape[2] // 2,) * 2

    def gradient() -> torch.Tensor:
        output = F.conv2d(maps, weight.detach(), stride=stride, padding=padding)
        return WeightGradient.apply(output, maps.detach(), weight, stride, padding)

    found = {
        "torch": partial(F.conv2d, maps, weight, stride=stride, padding=padding),
        "gradient": gradient,
    }
    if weight.shape[2] == 1:
        found["products"] = partial(convolve_pixels, maps, weight, stride=stride)
    elif maps.shape[2] == 2:
        found["products"] = partial(convolve_2x2, maps, weight, stride=stride)
    return found


def child(question: dict) -> dict:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    found = {}
    for (layer, shape), count in layers_of(question["backbone"], question["size"]).items():
        stride, side = layer.stride[0], shape[1]
        maps = torch.randn(question["n"], *shape).bfloat16().to(memory_format=torch.channels_last)
        maps.requires_grad_()
        weight = layer.weight.detach()
        if side == 1 and weight.shape[2] == 3:  # the other taps meet padding only
            weight = weight[:, :, 1:2, 1:2]
        weight = weight.bfloat16().requires_grad_()
        ways = calls(maps, weight, stride)
        upstream = torch.randn_like(ways["torch"]())

        def both_passes(call, given=(maps, weight), upstream=upstream) -> None:
            torch.autograd.grad(call(), given, upstream)

        title = (
            f"{count} × {weight.shape[2]}×{weight.shape[3]}, {weight.shape[1]}→{weight.shape[0]}, "
            f"stride {stride}, {side} px"
        )
        times = {
            way: best_seconds(partial(both_passes, call), budget=0.3) for way, call in ways.items()
        }
        with torch.no_grad():
            times |= {
                title_alone: best_seconds(ways[way], budget=0.3)
                for way, title_alone in ALONE.items()
                if way in ways
            }
        used = WAYS.index(fastest_way(maps, weight, stride=stride))
        found[title] = {**times, "used": float(used), "count": count}
    return found


def width(name: str) -> int:
    """Of a column that is printed."""
    return max(10, len(name) + 2)


def main() -> None:
    options = read_options(command_line(__doc__, rounds=3, quick=False), child)
    begun, every = time.time(), {}
    for _ in range(options.rounds):
        for title, setting in SETTINGS.items():
            answer = in_own_process(__file__, setting)
            if "error" in answer:
                raise SystemExit(f"{title}: {answer['error']}")
            for layer, values in answer.items():
                for name, value in values.items():
                    every.setdefault(f"{title}/{layer}/{name}", []).append(value)
    found = {key: median(values) for key, values in every.items()}
    for title in SETTINGS:
        print(
            f"\n{title + ', ms':<40}"
            + "".join(f"{name:>{width(name)}}" for name in (*COLUMNS, "used"))
        )
        for layer in dict.fromkeys(key.split("/")[1] for key in found if key.startswith(title)):
            cells = ""
            for name in COLUMNS:
                seconds = found.get(f"{title}/{layer}/{name}")
                cells += f"{'–' if seconds is None else f'{1e3 * seconds:.2f}':>{width(name)}}"
            used = WAYS[int(found[f"{title}/{layer}/used"])]
            print(f"{layer:<40}{cells}{used:>{width('used')}}")
    if options.record:
        recipe = {"settings": SETTINGS, "ways": WAYS, "columns": COLUMNS, "rounds": options.rounds}
        recipe |= {"threads": len(os.sched_getaffinity(0))}
        keep_record("bench-convolution", recipe, found, begun)


if __name__ == "__main__":
    main()
