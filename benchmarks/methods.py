"""A training step of every recipe beside the work of its own networks.

    python benchmarks/methods.py             light encoder and ResNet-18, 32 pixels, three rounds
    python benchmarks/methods.py --quick     the light encoder, one round
    python benchmarks/methods.py --record    keep it under results/bench-methods/

`networks` is what no method can do without: every call of an encoder, head or predictor that a
step makes, on the same inputs, forward, and backward where the step trains it. `step` adds loss,
memories, optimiser and momentum update on a batch that is ready; `with views` adds what it takes to
make the batch, from stored pixels to augmented views. All three take turns in one process, in the
precision that auto chooses; each recipe has a process of its own, and rounds take turns. The ratio
is that of a round's medians.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from measure import command_line, in_own_process, interleave, keep_record, read_options
from torch import Tensor, nn

SETTINGS = {
    "light, 32 px": {"backbone": "light", "size": 32, "n": 256, "turns": 9},
    "ResNet-18, 32 px": {"backbone": "resnet18", "size": 32, "n": 256, "turns": 4},
}
PARTS = ("networks", "step", "with views")
TARGET = 1.2  # a step over its networks


@dataclass(frozen=True)
class Call:
    """A network, what a step gave it, and whether the step keeps what backward needs."""

    network: nn.Module
    inputs: tuple[Any, ...]
    trained: bool

    def outputs(self) -> list[Tensor]:
        """What backward starts from: nothing where the step has no gradient."""
        given = [
            each.detach().requires_grad_(each.requires_grad) if isinstance(each, Tensor) else each
            for each in self.inputs
        ]
        with torch.set_grad_enabled(self.trained):
            found = self.network(*given)
        each = [found] if isinstance(found, Tensor) else list(found)
        return [one for one in each if one.requires_grad]


@contextmanager
def noted_calls(method: nn.Module) -> Iterator[list[Call]]:
    """The outermost calls of networks: of modules with weights, that are or lie in an encoder, or
    have no encoder in them.
    """
    from eqco.encoders import Encoder

    calls: list[Call] = []
    depth = [0]

    def enter(network: nn.Module, inputs: tuple[Any, ...]) -> None:
        if depth[0] == 0:
            calls.append(Call(network, inputs, torch.is_grad_enabled()))
        depth[0] += 1

    def leave(*_: object) -> None:
        depth[0] -= 1

    handles = []
    for network in method.modules():
        below = [each for each in network.modules() if each is not network]
        if any(isinstance(each, Encoder) for each in below) or not list(network.parameters()):
            continue
        handles.append(network.register_forward_pre_hook(enter))
        handles.append(network.register_forward_hook(leave))
    yield calls
    for handle in handles:
        handle.remove()


def child(question: dict) -> dict:
    """The median seconds of each part, and how many calls of networks a step makes."""
    from photos import Photos

    from eqco.assembly import build_components
    from eqco.data import source_from_dataset
    from eqco.encoders import autocast_to
    from eqco.recipes import named_recipe
    from eqco.training.loop import optimise, warm_up

    recipe = named_recipe(question["name"], "folder")
    backbone, n = question["backbone"], question["n"]
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=question["size"]),
        encoder=replace(recipe.encoder, backbone=backbone),
        training=replace(recipe.training, num_queries=n, epochs=1000, compile=False),
    )
    components = build_components(recipe, source_from_dataset(Photos(question["size"])))
    method, loader = components.method.train(), components.loader
    scaler = torch.amp.GradScaler(enabled=False)
    warm_up(components)
    for group in components.optimiser.param_groups:
        group["lr"] = 0.0  # the same batch again and again must not move the weights
    ready = loader.micro_batches(0)
    with noted_calls(method) as calls:
        optimise(components, scaler, ready, 0)
    noted = list(calls)

    def networks() -> None:
        method.zero_grad(set_to_none=True)
        with autocast_to(components.precision, ready[0].index.device):
            outputs = [output for call in noted for output in call.outputs()]
        torch.stack([output.float().mean() for output in outputs]).sum().backward()

    def step(batches: list | None = None) -> None:
        method.after_step(optimise(components, scaler, batches or ready, 1))

    def with_views() -> None:
        step(loader.micro_batches(1))

    measured: list[Callable[[], None]] = [networks, step, with_views]
    taken: dict[str, list[float]] = {part: [] for part in PARTS}
    for turn in range(1 + question["turns"]):
        for part, work in zip(PARTS, measured, strict=True):
            start = time.perf_counter()
            work()
            if turn:  # the first warms up
                taken[part].append(time.perf_counter() - start)
    return {part: median(times) for part, times in taken.items()} | {"calls": len(noted)}


def measure(title: str, names: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """What every round found, by recipe and part."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for turn, name in interleave(names, rounds):
        answer = in_own_process(__file__, {**SETTINGS[title], "name": name})
        if "error" in answer:
            raise SystemExit(f"{title}, {name}: {answer['error']}")
        ratio = answer["step"] / answer["networks"]
        print(f"round {turn + 1}: {title}: {name}: {ratio:.2f}", flush=True)
        for part, value in answer.items():
            found[name].setdefault(part, []).append(value)
    return found


def ratios(found: dict[str, list[float]], part: str) -> list[float]:
    """A part over the networks, in each round."""
    return [one / other for one, other in zip(found[part], found["networks"], strict=True)]


def show(title: str, found: dict[str, dict[str, list[float]]]) -> None:
    n = SETTINGS[title]["n"]
    print(f"\n{title}, N = {n}: time over that of the networks (target of a step: {TARGET})")
    print(
        f"{'':<12}{'calls':>6}{'networks, images/s':>20}{'step':>8}{'range':>12}{'with views':>12}"
    )
    for name, parts in found.items():
        each = ratios(parts, "step")
        reach, views = f"{min(each):.2f}–{max(each):.2f}", median(ratios(parts, "with views"))
        speed = n / median(parts["networks"])
        print(
            f"{name:<12}{parts['calls'][0]:>6}{speed:>20.0f}{median(each):>8.2f}{reach:>12}"
            f"{views:>12.2f}"
        )


def main() -> None:
    options = read_options(command_line(__doc__, rounds=3), child)
    from eqco.recipes import RECIPES

    begun, metrics, curves = time.time(), {}, {}
    # a vision transformer has no other backbone
    names = [name for name, recipe in RECIPES.items() if not recipe.encoder.fixed_patches]
    settings = dict(list(SETTINGS.items())[: 1 if options.quick else None])
    rounds = 1 if options.quick else options.rounds
    for title in settings:
        found = measure(title, names, rounds)
        show(title, found)
        for name, parts in found.items():
            metrics |= {f"{title}/{name}/{part}": median(parts[part]) for part in PARTS}
            curves |= {f"{title}/{name}/{part}": ratios(parts, part) for part in PARTS[1:]}
    if options.record:
        recipe = {"settings": settings, "rounds": rounds, "threads": torch.get_num_threads()}
        keep_record("bench-methods", recipe, metrics, begun, curves={"ratios": curves})


if __name__ == "__main__":
    main()
