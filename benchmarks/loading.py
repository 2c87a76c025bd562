"""How much of a training step goes to data and augmentation: one table, one run.

    python benchmarks/loading.py --cifar10 FOLDER_OR_NAME      about three minutes on two cores
    python benchmarks/loading.py --record                      keep it under results/bench-loading/

SiMo (N = 256, K = 16) at 32 pixels with MoCo v2's pipeline: two views of every image, query encoder
forward and backward, key encoder forward, loss, SGD, momentum update. `data` is the time until the
views of the next step are there, `rest` all that follows; both are medians over the steps, and
steps of the encoders take turns. Networks compute in the precision that auto chooses, as those of
`eqco train` do. Images are in memory, so no worker hides the data's time.
"""

import statistics
import time
from collections.abc import Callable

import torch
from measure import command_line, keep_record, read_options

from eqco.contrast import Objective
from eqco.data import Batch, StepLoader, ViewSpec, find_pipeline, open_source
from eqco.encoders import (
    Encoder,
    Precision,
    autocast_to,
    backbone_named,
    choose_precision,
    normalised_head,
)
from eqco.methods import MethodParts, SiMoSettings
from eqco.runtime.errors import InputError

N, SIZE = 256, 32
TARGETS = {"light": 0.15, "resnet18": 0.08}


def training_step(backbone: str, precision: Precision) -> Callable[[Batch, int], None]:
    """Everything of a step but its data."""
    torch.manual_seed(0)
    network = backbone_named(backbone)
    encoder = Encoder(network, normalised_head(network.feature_dim, 128))
    method = SiMoSettings().build(
        MethodParts(
            make_encoder=lambda number=0, in_channels=None: encoder,
            objective=Objective(temperature=0.2, alpha=256),
            total_steps=1,
            seed=0,
        )
    )
    parameters = encoder.parameters()
    optimiser = torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=1e-4)

    def step(batch: Batch, number: int) -> None:
        with autocast_to(precision, batch.index.device):
            output = method(batch, number)
        optimiser.zero_grad(set_to_none=True)
        output.loss.backward()
        optimiser.step()
        method.after_step(output)

    return step


def measure(sources: dict[str, str], steps: int, precision: Precision) -> dict[str, float]:
    """`SET/ENCODER/data`, `/rest` in milliseconds and `/share`."""
    found: dict[str, float] = {}
    rests = {name: training_step(name, precision) for name in TARGETS}
    for title, place in sources.items():
        views = [ViewSpec(find_pipeline("mocov2"), SIZE)] * 2
        loader = StepLoader(open_source(place)["train"], views, num_queries=N, seed=0)
        times: dict[str, list[float]] = {}
        for number in range(steps + 2):
            for name, rest in rests.items():
                start = time.perf_counter()
                (batch,) = loader.micro_batches(number)
                middle = time.perf_counter()
                rest(batch, number)
                end = time.perf_counter()
                if number >= 2:  # the first two warm up
                    times.setdefault(f"{name}/data", []).append(1e3 * (middle - start))
                    times.setdefault(f"{name}/rest", []).append(1e3 * (end - middle))
        for name in TARGETS:
            data, other = (statistics.median(times[f"{name}/{part}"]) for part in ("data", "rest"))
            found[f"{title}/{name}/data"] = round(data, 2)
            found[f"{title}/{name}/rest"] = round(other, 2)
            found[f"{title}/{name}/share"] = round(data / (data + other), 4)
    return found


def show(found: dict[str, float]) -> None:
    print(
        f"{'data set':<12}{'encoder':<12}{'data, ms':>10}{'rest, ms':>10}{'share':>9}{'target':>9}"
    )
    for key in [key for key in found if key.endswith("/share")]:
        title, name, _ = key.split("/")
        data, rest = found[f"{title}/{name}/data"], found[f"{title}/{name}/rest"]
        row = f"{title:<12}{name:<12}{data:>10.1f}{rest:>10.1f}{found[key]:>9.1%}"
        print(row + f"{TARGETS[name]:>9.0%}")


def main() -> None:
    parser = command_line(__doc__, quick=False)
    parser.add_argument("--cifar10", default="cifar10", help="its folder, or the name to download")
    parser.add_argument("--steps", type=int, default=20)
    options = read_options(parser)
    sources = {"groceries": "groceries", "cifar10": options.cifar10}
    try:
        open_source(options.cifar10)
    except InputError as error:
        print(f"without CIFAR-10: {error}")
        del sources["cifar10"]
    start, precision = time.time(), choose_precision("auto", torch.device("cpu"))
    found = measure(sources, options.steps, precision)
    print(f"in {precision}")
    show(found)
    if options.record:
        recipe = {"method": "simo", "pipeline": "mocov2", "num_queries": N, "image_size": SIZE,
                  "steps": options.steps, "sets": sorted(sources),
                  "precision": precision}  # fmt: skip
        keep_record("bench-loading", recipe, found, start)


if __name__ == "__main__":
    main()
