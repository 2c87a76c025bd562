"""`eqco lab`: estimate the information between correlated Gaussians; bound or estimate?"""

import json
from dataclasses import asdict
from typing import Annotated

import tyro
from rich.console import Console

from eqco.cli.progress import progress_bar
from eqco.mutual_information import measure, named_estimators
from eqco.report.mutual_information import print_readings
from eqco.runtime.errors import InputError


def run(
    *,
    information: tuple[float, ...] = (2.0, 6.0, 10.0),
    pairs: tuple[int, ...] = (16, 64),
    alpha: float = 512,
    estimators: tuple[str, ...] = ("infonce", "eqco", "ml-cpc"),
    dim: int = 20,
    hidden_size: int = 256,
    output_size: int = 32,
    steps: int = 1000,
    repeats: int = 200,
    learning_rate: float = 5e-4,
    seeds: tuple[int, ...] = (0,),
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Train critics on Gaussians of known information and read the estimates (as in Table 5).

    Args:
        information: true values, in nats.
        pairs: K of Table 5, pairs per batch: each query has K - 1 negatives.
        alpha: the number of negatives imitated by eqco and ml-cpc.
        estimators: of infonce, eqco, ml-cpc.
        dim: dimensions of X and of Y.
        hidden_size: units in the hidden layer of each MLP.
        output_size: entries of an embedding.
        steps: training steps; the paper trains for 5000.
        repeats: frozen estimates that are averaged; the paper takes 1000.
        learning_rate: Adam's.
        seeds: one measurement for each.
        json_output: print the readings as JSON instead of a table.

    Examples:
        eqco lab
        eqco lab --information 2 6 --pairs 64 128 --alpha 512 --steps 2000
        eqco lab --estimators infonce ml-cpc --seeds 0 1 2 --json
    """
    for name, given in (("seeds", seeds), ("pairs", pairs)):
        if not given:
            raise InputError(f"no {name} given; name at least one.")
    console = Console(stderr=json_output)
    chosen = named_estimators([*estimators], alpha)
    total = len(seeds) * len(pairs) * (steps + repeats)
    readings = []
    with progress_bar(console, "training critics", total) as advance:
        for seed in seeds:
            for num_pairs in pairs:
                readings += measure(
                    information,
                    num_pairs,
                    chosen,
                    seed=seed,
                    dim=dim,
                    hidden_size=hidden_size,
                    output_size=output_size,
                    learning_rate=learning_rate,
                    steps=steps,
                    repeats=repeats,
                    advance=advance,
                )
    if json_output:
        print(json.dumps([asdict(reading) for reading in readings], indent=1))
    else:
        print_readings(console, readings)
