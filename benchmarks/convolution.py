"""The gradient of a convolution's weights in bfloat16: torch's own way beside one matrix product.

    python benchmarks/convolution.py             the layers of three networks, three rounds
    python benchmarks/convolution.py --record    keep it under results/bench-convolution/

Every convolution of 1×1 and 3×3 of our networks, once for each shape, on a batch of random maps,
channels-last. `eqco.encoders.convolution` takes the product where the output map is small enough;
`used` says which way that is. One way follows the other in every round; the shortest of a round
counts, and the median over rounds is shown.
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
from eqco.encoders.convolution import Conv1x1, Conv3x3, WeightGradient, product_is_faster

SETTINGS = {
    "light, 32 px": {"backbone": "light", "size": 32, "n": 256},
    "ResNet-18, 32 px": {"backbone": "resnet18", "size": 32, "n": 256},
    "ResNet-18, 64 px": {"backbone": "resnet18", "size": 64, "n": 256},
    "ResNet-50, 64 px": {"backbone": "resnet50", "size": 64, "n": 64},
}
WAYS = ("torch", "product")


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


def child(question: dict) -> dict:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    found = {}
    for (layer, shape), count in layers_of(question["backbone"], question["size"]).items():
        stride, side = layer.stride[0], shape[1]
        maps = torch.randn(question["n"], *shape).bfloat16().to(memory_format=torch.channels_last)
        weight = layer.weight.detach().bfloat16().requires_grad_()
        if side == 1 and weight.shape[2] == 3:  # the other taps meet padding only
            weight = weight[:, :, 1:2, 1:2].detach().requires_grad_()
        padding = (weight.shape[2] // 2,) * 2
        output = F.conv2d(maps, weight, stride=stride, padding=padding)
        gradient = torch.randn_like(output)
        passed = WeightGradient.apply(output.detach(), maps, weight, stride, padding)
        times = {
            way: best_seconds(
                partial(torch.autograd.grad, made, weight, gradient, retain_graph=True), budget=0.3
            )
            for way, made in (("torch", output), ("product", passed))
        }
        used = product_is_faster(maps, weight, stride=stride)
        title = (
            f"{count} × {weight.shape[2]}×{weight.shape[3]}, {weight.shape[1]}→{weight.shape[0]}, "
            f"stride {stride}, {side} px"
        )
        found[title] = {**times, "used": float(used), "count": count}
    return found


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
        print(f"\n{title}{'torch, ms':>46}{'product, ms':>14}{'used':>10}")
        for layer in dict.fromkeys(key.split("/")[1] for key in found if key.startswith(title)):
            own, product, used = (found[f"{title}/{layer}/{name}"] for name in (*WAYS, "used"))
            way = WAYS[int(used)]
            print(f"{layer:<44}{1e3 * own:>12.2f}{1e3 * product:>14.2f}{way:>10}")
    if options.record:
        recipe = {"settings": SETTINGS, "rounds": options.rounds}
        recipe |= {"threads": len(os.sched_getaffinity(0))}
        keep_record("bench-convolution", recipe, found, begun)


if __name__ == "__main__":
    main()
