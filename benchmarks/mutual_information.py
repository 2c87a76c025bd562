"""Table 5 in groups against the straightforward loop, one critic after another.

    python benchmarks/mutual_information.py [--steps 100] [--rounds 3] [--output-size 32] [--record]

Both sides train and read the same critics (all four K, five values of information, two losses) on a
slice of the full length, in turns, so that a noisy machine hits both. Full-length times are the
slice's, scaled; the 40 critics of the loop take too long to do otherwise.
"""

import math
import time

import torch
import torch.nn.functional as F
from measure import command_line, keep_record, read_options
from torch import nn

from eqco.mutual_information import measure, named_estimators
from eqco.theory import gaussian_correlation

INFORMATIONS = [2.0, 4.0, 6.0, 8.0, 10.0]
PAIRS = [64, 128, 256, 512]
ALPHA = 512
FULL = {"steps": 5000, "repeats": 1000}


def one_at_a_time(num_pairs: int, steps: int, repeats: int, output_size: int) -> None:
    """What one would write first: torch.nn, autograd, torch.optim.Adam, critic by critic."""
    labels = torch.arange(num_pairs)
    for information in INFORMATIONS:
        correlation = gaussian_correlation(information, dim=20)
        rest = math.sqrt(1 - correlation * correlation)
        for alpha in (num_pairs - 1, ALPHA):
            margin = math.log(alpha / (num_pairs - 1)) * torch.eye(num_pairs)
            towers = [
                nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, output_size))
                for _ in range(2)
            ]
            optimizer = torch.optim.Adam([p for t in towers for p in t.parameters()], lr=5e-4)

            def loss(correlation=correlation, rest=rest, margin=margin, towers=towers):
                x = torch.randn(num_pairs, 20)
                y = correlation * x + rest * torch.randn(num_pairs, 20)
                return F.cross_entropy(towers[0](x) @ towers[1](y).T - margin, labels)

            for _ in range(steps):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
            with torch.no_grad():
                math.log1p(alpha) - sum(float(loss()) for _ in range(repeats)) / repeats


def together(num_pairs: int, steps: int, repeats: int, output_size: int) -> None:
    estimators = named_estimators(["infonce", "eqco"], ALPHA)
    measure(
        INFORMATIONS, num_pairs, estimators, steps=steps, repeats=repeats, output_size=output_size
    )


def seconds(side, *arguments) -> float:
    start = time.perf_counter()
    side(*arguments)
    return time.perf_counter() - start


def main() -> None:
    parser = command_line(__doc__, rounds=3, quick=False)
    parser.add_argument("--steps", type=int, default=100, help="of the slice; 5000 in the paper")
    parser.add_argument("--output-size", type=int, default=32)
    given = read_options(parser)
    start, found = time.time(), {}
    repeats = max(2, given.steps * FULL["repeats"] // FULL["steps"])
    scale = FULL["steps"] / given.steps
    print(
        f"slice of {given.steps} steps and {repeats} estimates, output {given.output_size}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; best of {given.rounds}"
    )
    print(f"{'K':>5} {'one at a time':>15} {'together':>10} {'ratio':>7}   (full length, s)")
    total = [0.0, 0.0]
    for num_pairs in PAIRS:
        best = [math.inf, math.inf]
        for side in (one_at_a_time, together):
            side(num_pairs, 2, 2, given.output_size)
        for _ in range(given.rounds):
            for index, side in enumerate((one_at_a_time, together)):
                spent = seconds(side, num_pairs, given.steps, repeats, given.output_size)
                best[index] = min(best[index], spent * scale)
        print(f"{num_pairs:>5} {best[0]:>15.1f} {best[1]:>10.1f} {best[0] / best[1]:>7.2f}")
        found[f"K={num_pairs}/loop"], found[f"K={num_pairs}/grouped"] = best
        total = [sum(pair) for pair in zip(total, best, strict=True)]
    print(f"{'all':>5} {total[0]:>15.1f} {total[1]:>10.1f} {total[0] / total[1]:>7.2f}")
    if given.record:
        recipe = {"steps": given.steps, "rounds": given.rounds, "output_size": given.output_size}
        keep_record("bench-lab", recipe, found, start)


if __name__ == "__main__":
    main()
