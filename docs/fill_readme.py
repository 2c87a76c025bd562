"""Writes the tables of the README from the records under results/: `make readme`.

Each `<!-- block NAME -->` … `<!-- end -->` is filled by the function of that name below.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from eqco.experiments.catalog import find_experiment
from eqco.report.tables import comparison_table, markdown
from eqco.runtime.records import Record, read_records

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
BLOCK = re.compile(r"(<!-- block ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    """The README with every block made anew from the records."""
    return BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]]() + "\n" + match[3], text)


def experiment_block(name: str, profile: str, heading: str) -> str:
    """The table of an experiment, where it ran, and what follows from it."""
    experiment = find_experiment(name)
    records = read_records(RESULTS, name, profile)
    if not records:
        return f"Not run yet: `eqco reproduce {name} --profile {profile}`."
    cells = experiment.compare(records)
    tables = [markdown(*comparison_table(cells))]
    tables += [
        f"{title}:\n\n{markdown(*comparison_table(concluded))}"
        for title, concluded in experiment.conclude(cells).items()
    ]
    return "\n\n".join([heading + provenance(records), *tables])


def provenance(records: list[Record]) -> str:
    """Profile, seeds, machine and code of the records."""
    seeds = ", ".join(map(str, sorted({record.seed for record in records})))
    machine = records[0].hardware
    codes = ", ".join(sorted({record.code for record in records}))
    day = max(record.finished for record in records)[:10]
    return (
        f"Profile {records[0].profile}, seeds {seeds}; {machine['processor']}, "
        f"{machine['cores']} cores, torch {machine['torch']}; {day}, code {codes}."
    )


def benchmark(name: str) -> Record:
    """The newest record of a benchmark."""
    found = read_records(RESULTS, name, "desk")
    if not found:
        raise SystemExit(f"no record of {name}: run benchmarks/{name[6:]}.py --record")
    return max(found, key=lambda record: record.finished)


def loss_block() -> str:
    """Times and memory of the loss beside its peers."""
    record = benchmark("bench-loss")
    found, cases = record.metrics, record.recipe["cases"]
    titles = {
        "queue": "Gradient to queries (MoCo)",
        "keys": "Gradient to queries and keys",
        "views": "SimCLR's loss on two views of N images; K stands for N here",
    }
    tables = []
    for case, ks in cases.items():
        names = list(dict.fromkeys(key.split("/")[2] for key in found if key.startswith(case)))
        lines = []
        for k in ks:
            cells = []
            for name in names:
                seconds = found.get(f"{case}/{k}/{name}/seconds")
                memory = found.get(f"{case}/{k}/{name}/bytes")
                shown = seconds is not None and memory is not None
                cells.append(f"{1e3 * seconds:.2f} ms, {memory / 1e6:.1f} MB" if shown else "–")
            lines.append([str(k), *cells])
        tables.append(f"{titles[case]}:\n\n{markdown(['K', *names], lines)}")
    peers = ", ".join(f"{name} {version}" for name, version in record.recipe["peers"].items())
    rounds, decisive = record.recipe["rounds"], record.recipe["rounds_at_65536"]
    note = (
        f"{provenance([record])} {peers}. Best of {rounds} round(s), of {decisive} at K = 65536; "
        f"single rounds differ by 15 % and more. –: failed or over 10 GiB."
    )
    return "\n\n".join([note, *tables])


def step_block() -> str:
    """Time and memory of a step against K."""
    record = benchmark("bench-step")
    base = record.metrics["K=256/seconds"]
    lines = [
        [
            str(count),
            f"{1e3 * record.metrics[f'K={count}/seconds']:.0f}",
            f"{record.metrics[f'K={count}/seconds'] / base:.3f}",
            f"{record.metrics[f'K={count}/bytes'] / 1e6:.0f}",
        ]
        for count in record.recipe["counts"]
    ]
    header = ["K", "ms per step", "over K = 256", "extra memory, MB"]
    return f"{provenance([record])}\n\n{markdown(header, lines)}"


def augment_block() -> str:
    """Microseconds per view of the whole pipeline and of what follows the crop."""
    record = benchmark("bench-augment")
    names = ["torchvision", "torchvision v2", "kornia", "ours"]
    lines = []
    for size in sorted(record.recipe["images"], key=int):
        for part in ("whole", "after crop"):
            times = [record.metrics[f"{size}/{part}/{name}"] for name in names]
            ratios = " / ".join(f"{time / times[-1]:.1f}" for time in times[:-1])
            lines.append([f"{size} px, {part}", *(f"{time:.0f}" for time in times), ratios])
    header = ["µs per view", *names, "ours is faster by"]
    peers = ", ".join(f"{name} {version}" for name, version in record.recipe["peers"].items())
    threads = record.recipe["threads"]
    return f"{provenance([record])} {peers}; {threads} thread.\n\n{markdown(header, lines)}"


def loading_block() -> str:
    """The share of a training step that goes to data and augmentation."""
    record = benchmark("bench-loading")
    cases = list(dict.fromkeys(key.rsplit("/", 1)[0] for key in record.metrics))
    lines = [
        [
            case.replace("/", ", "),
            f"{record.metrics[f'{case}/data']:.0f}",
            f"{record.metrics[f'{case}/rest']:.0f}",
            f"{100 * record.metrics[f'{case}/share']:.1f} %",
        ]
        for case in cases
    ]
    header = ["SiMo step, N = 256, 32 px", "data, ms", "rest, ms", "share of data"]
    return f"{provenance([record])}\n\n{markdown(header, lines)}"


def lab_block() -> str:
    """Table 5 in groups beside one critic at a time."""
    record = benchmark("bench-lab")
    counts = sorted({key.split("/")[0] for key in record.metrics}, key=lambda key: int(key[2:]))
    lines, totals = [], [0.0, 0.0]
    for count in counts:
        times = [record.metrics[f"{count}/{side}"] for side in ("loop", "grouped")]
        totals = [total + time for total, time in zip(totals, times, strict=True)]
        lines.append([count, *(f"{t:.1f}" for t in times), f"{times[0] / times[1]:.2f}"])
    ratio = f"{totals[0] / totals[1]:.2f}"
    lines.append(["whole table", *(f"{total:.1f}" for total in totals), ratio])
    header = ["one seed, full length, s", "one at a time", "in groups", "faster by"]
    return f"{provenance([record])}\n\n{markdown(header, lines)}"


BLOCKS: dict[str, Callable[[], str]] = {
    "tab5": lambda: experiment_block(
        "tab5", "paper", "Ours ± half the spread over seeds (paper's, difference). "
    ),
    "study-bound": lambda: experiment_block("study-bound", "desk", ""),
    "demo": lambda: experiment_block("demo", "desk", "Mean ± half the spread over seeds. "),
    "cifar10-simo": lambda: experiment_block("cifar10-simo", "desk", ""),
    "bench-loss": loss_block,
    "bench-step": step_block,
    "bench-augment": augment_block,
    "bench-loading": loading_block,
    "bench-lab": lab_block,
}


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = fill(before)
    readme.write_text(after)
    print("README.md written" if after != before else "README.md agrees with the records")
    sys.exit(0)
