"""Records of the benchmarks as tables and charts; `benchmarks/NAME.py --record` writes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from eqco.experiments.coordinates import distinct
from eqco.report.benchmark_tables import (
    Column,
    Metrics,
    Table,
    every_round,
    median_words,
    metrics_of,
    number,
    ratio,
    ratio_of_medians,
    speed_column,
    table_of,
)
from eqco.report.charts import Chart, bar_chart
from eqco.report.loss_speed import loss_charts, loss_note, loss_tables
from eqco.report.quality import accuracy_tables, quality_charts
from eqco.report.training_speed import rounds_note, train_charts, train_tables
from eqco.runtime.records import Record, read_records

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "command_of",
    "newest_records",
    "plain_benchmark",
    "united",
]

SCRIPTS = {"bench-lab": "mutual_information"}  # the others are named as their records are
AUGMENTERS = ("torchvision", "torchvision v2", "kornia", "ours")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How the record of one benchmark is shown; `template` of its note has the recipe's names, and
    may depend on the record.

    One that is measured in parts, such as settings or data sets, says in `parts` where its recipe
    names them, one or several: each can be recorded by itself. Where seeds and contenders can be
    too (`adds_up`), the metrics of records with the same recipe are shown in one table.
    """

    title: str
    shows: str
    tables: Callable[[Record], list[Table]]
    charts: Callable[[Record], list[Chart]] = lambda record: []
    template: str | Callable[[Record], str] = ""
    parts: str = ""
    adds_up: bool = False

    def note(self, record: Record) -> str:
        """How it was measured, and beside what."""
        template = self.template if isinstance(self.template, str) else self.template(record)
        names = {**record.recipe, "noise": rounds_note(record) if "{noise}" in template else ""}
        names["peers"] = ", ".join(f"{n} {v}" for n, v in record.recipe.get("peers", {}).items())
        return template.format(**names)


def command_of(name: str) -> str:
    """What measures a benchmark anew.

    >>> command_of("bench-beside-work")
    'python benchmarks/beside_work.py --record'
    """
    script = SCRIPTS.get(name, name.removeprefix("bench-").replace("-", "_"))
    return f"python benchmarks/{script}.py --record"


def newest_records(results: Path, name: str) -> list[list[Record]]:
    """For each part of a benchmark its newest record; where they add up, the older ones that were
    measured in the same way behind it.
    """
    found = sorted(read_records(results, name, "desk"), key=lambda record: record.finished)
    benchmark = BENCHMARKS.get(name, plain_benchmark(name))
    parts, shown, seen = benchmark.parts, list[list[Record]](), set[str]()
    for record in reversed(found):
        named = record.recipe[parts] if parts else ""
        if isinstance(named, str):
            own = {named} - seen
        else:
            measured = {key.split("/")[0] for key in record.metrics}
            own = named.keys() & measured - seen
            several = {part: what for part, what in named.items() if part in own}
            if own:
                record = replace(record, recipe={**record.recipe, parts: several})
        if own:
            shown.append([record])
            seen |= own
        elif benchmark.adds_up:
            for records in shown:
                if way_of(records[0]) == way_of(record):
                    records.append(record)
    return shown


def way_of(record: Record) -> dict[str, Any]:
    """How it was measured, whoever took part."""
    return {name: value for name, value in record.recipe.items() if name not in ("peers", "rows")}


def united(records: Sequence[Record]) -> Record:
    """One record of what several hold, the newest first: metrics and lines as measured last."""
    metrics, peers, curves = dict[str, float](), dict[str, str](), dict[str, Any]()
    for record in reversed(records):
        metrics |= record.metrics
        for part, lines in record.curves.items():
            curves[part] = {**curves.get(part, {}), **lines}
        peers |= record.recipe.get("peers", {})
    recipe = records[0].recipe | ({"peers": dict(sorted(peers.items()))} if peers else {})
    return replace(records[0], recipe=recipe, metrics=dict(sorted(metrics.items())), curves=curves)


def plain_benchmark(name: str) -> Benchmark:
    """One without tables of its own."""
    return Benchmark(title=name, shows="", tables=plain_tables)


def speeds_words(n: int, seconds: Sequence[float]) -> str:
    """Images per second of steps of n images."""
    return median_words([n / each for each in seconds])


def augment_tables(record: Record) -> list[Table]:
    """Microseconds per view of the whole pipeline and of what follows the crop."""
    rows = {
        f"{size} px, {part}": metrics_of(record, f"{size}/{part}/")
        for size in sorted(record.recipe["images"], key=int)
        for part in ("whole", "after crop")
    }
    columns = {name: number(name) for name in AUGMENTERS}
    columns["ours is faster by"] = lambda of: " / ".join(
        f"{of(name) / of('ours'):.1f}" for name in AUGMENTERS[:-1]
    )
    return [table_of("µs per view", rows, columns)]


def augment_charts(record: Record) -> list[Chart]:
    """Bars of the whole pipeline, a chart for each image size."""
    charts = []
    for size in sorted(record.recipe["images"], key=int):
        times = {name: record.metrics[f"{size}/whole/{name}"] for name in AUGMENTERS[::-1]}
        charts.append(bar_chart(f"{size} px", "µs per view", "whole pipeline", times))
    return charts


def lab_tables(record: Record) -> list[Table]:
    """Table 5 in groups beside one critic at a time."""
    counts = sorted({key.split("/")[0] for key in record.metrics}, key=lambda key: int(key[2:]))
    rows = {count: metrics_of(record, f"{count}/") for count in counts}
    rows["whole table"] = lambda way: sum(record.metrics[f"{count}/{way}"] for count in counts)
    columns: dict[str, Column] = {
        "one at a time": number("loop", "{:.1f}"),
        "in groups": number("grouped", "{:.1f}"),
        "faster by": partial(ratio, "grouped", "loop"),
    }
    return [table_of("one seed, full length, s", rows, columns)]


def plain_tables(record: Record) -> list[Table]:
    """Every measurement by its name, for a benchmark without a table of its own."""
    lines = [[name, f"{value:.4g}"] for name, value in record.metrics.items()]
    return [Table(header=["measured", "value"], lines=lines)]


def method_tables(record: Record) -> list[Table]:
    """Time of a step over that of its networks, a table for each setting."""
    header = ["", "networks, images/s", "step over networks", "with views"]
    found = []
    for title, setting in record.recipe["settings"].items():
        lines = []
        for name in distinct(key.split("/")[1] for key in record.metrics if key.startswith(title)):
            of = metrics_of(record, f"{title}/{name}/")
            times = [
                record.curves["ratios"][f"{title}/{name}/{part}"] for part in ("step", "with views")
            ]
            cells = [median_words(each, "{:.2f}") for each in times]
            lines.append([name, speed_column("networks", setting["n"])(of), *cells])
        found.append(Table(title=f"{title}, N = {setting['n']}", header=header, lines=lines))
    return found


def convolution_tables(record: Record) -> list[Table]:
    """The ways to compute a layer, a table for each network."""
    ways = record.recipe["ways"]

    def milliseconds(way: str, of: Metrics) -> str:
        return f"{1e3 * of(way):.2f}" if of(way) else "–"

    columns: dict[str, Column] = {
        name: partial(milliseconds, name) for name in record.recipe["columns"]
    }
    columns["used"] = lambda of: ways[int(of("used"))]
    return [
        table_of(
            "layers of one shape, ms",
            {
                layer: metrics_of(record, f"{title}/{layer}/", missing=0.0)
                for layer in distinct(
                    key.split("/")[1] for key in record.metrics if key.startswith(f"{title}/")
                )
            },
            columns,
            f"{title}, N = {setting['n']}",
        )
        for title, setting in record.recipe["settings"].items()
    ]


def compiling_tables(record: Record) -> list[Table]:
    """Images per second plain and compiled, and the waits."""
    lines = []
    for title, setting in record.recipe["settings"].items():
        cells = []
        for way in ("plain", "compiled"):
            cells.append(speeds_words(setting["n"], record.curves["rounds"][f"{title}/{way}"]))
        waits = (record.metrics[f"{title}/{which} wait"] for which in ("first", "later"))
        lines.append([title, *cells, *(f"{wait:.0f}" for wait in waits)])
    header = ["images/s", "plain", "compiled", "first wait, s", "later waits, s"]
    return [Table(header=header, lines=lines)]


def scaling_tables(record: Record) -> list[Table]:
    """Images per second of one process and of several, and the ratio of the second to the first."""
    ways, lines = record.recipe["ways"], []
    for setting in record.recipe["settings"]:
        speeds = [every_round(record, f"{setting}/{way}", ending="") for way in ways]
        first, second = speeds
        lines.append([setting, *map(median_words, speeds), ratio_of_medians(second, first)])
    return [Table(header=["images/s", *ways, "second over first"], lines=lines)]


def beside_work_tables(record: Record) -> list[Table]:
    """Images per second of each way of waiting, alone and beside other work."""
    places, n, lines = ("alone", "beside other work"), record.recipe["n"], []
    for way in record.recipe["ways"]:
        cells = [speeds_words(n, every_round(record, f"{way}/{place}")) for place in places]
        lines.append([way, *cells])
    return [Table(header=["images/s", *places], lines=lines)]


def startup_tables(record: Record) -> list[Table]:
    """Seconds of each command until its first step."""
    lines = [
        [name, median_words(every_round(record, name), "{:.1f}")]
        for name in record.recipe["commands"]
    ]
    return [Table(header=["", "s"], lines=lines)]


BENCHMARKS: dict[str, Benchmark] = {
    "bench-loss": Benchmark(
        title="The loss: forward + backward",
        shows="N = 256 queries, D = 128, float32. Floor is the matrix products alone.",
        tables=loss_tables,
        charts=loss_charts,
        template=loss_note,
        parts="cases",
    ),
    "bench-step": Benchmark(
        title="A step of MoCo v2 against K",
        shows="ResNet-18 (ImageNet stem), 64 pixels, N = 256.",
        tables=lambda record: [
            table_of(
                "K",
                {
                    str(count): metrics_of(record, f"K={count}/")
                    for count in record.recipe["counts"]
                },
                {
                    "ms per step": number("seconds", unit=1e3),
                    "over K = 256": number(
                        "seconds", "{:.3f}", unit=1 / record.metrics["K=256/seconds"]
                    ),
                    "extra memory, MB": number("bytes", unit=1e-6),
                },
            )
        ],
    ),
    "bench-methods": Benchmark(
        title="A step of every recipe beside its own networks",
        shows=(
            "Networks is what a step calls of encoders, heads and predictors, forward and backward "
            "on the same inputs. A step adds loss, memories, optimiser and momentum update; with "
            "views also reading and augmentation."
        ),
        tables=method_tables,
        template="{rounds} rounds, {threads} threads: median (least–most).",
    ),
    "bench-small-batch": Benchmark(
        title="A large batch in small pieces, and two towers",
        shows=(
            "Batch 256 in micro-batches of 8; two towers of N pairs. What failed or took over "
            "10 GiB has no line."
        ),
        tables=lambda record: [
            table_of(
                "",
                {
                    name.removesuffix("/seconds"): metrics_of(record, name.removesuffix("seconds"))
                    for name in record.metrics
                    if name.endswith("/seconds")
                },
                {
                    "ms per step": number("seconds", unit=1e3),
                    "extra memory, MB": number("bytes", unit=1e-6),
                },
            )
        ],
    ),
    "bench-train": Benchmark(
        title="Training end to end",
        shows=(
            "From stored images to the optimiser's step: same backbone, images, N and "
            "augmentation. Limit is the same work of the encoder alone, on a fixed batch."
        ),
        tables=train_tables,
        charts=train_charts,
        template=(
            "{peers}; {threads} threads. {noise} Peers of MoCo's kind are compared with our MoCo "
            "v2, of SimCLR's with our SimCLR."
        ),
        parts="settings",
    ),
    "bench-augment": Benchmark(
        title="Augmentation",
        shows="MoCo v2's pipeline with hue and blur.",
        tables=augment_tables,
        charts=augment_charts,
        template="{peers}; {threads} thread.",
    ),
    "bench-loading": Benchmark(
        title="Loading",
        shows="The share of a training step that goes to data and augmentation.",
        tables=lambda record: [
            table_of(
                "SiMo step, N = 256, 32 px",
                {
                    case.replace("/", ", "): metrics_of(record, f"{case}/")
                    for case in distinct(key.rsplit("/", 1)[0] for key in record.metrics)
                },
                {
                    "data, ms": number("data"),
                    "rest, ms": number("rest"),
                    "share of data": number("share", "{:.1f} %", unit=100),
                },
            )
        ],
        template=lambda record: (
            "In {precision}; medians of {steps} steps." if "precision" in record.recipe else ""
        ),
    ),
    "bench-lab": Benchmark(
        title="The lab",
        shows="Table 5 trains its 40 critics in groups; measured on a slice of the steps.",
        tables=lab_tables,
    ),
    "bench-scaling": Benchmark(
        title="Several processes",
        shows="Whole SiMo steps at N = 256 on two cores.",
        tables=scaling_tables,
        template=lambda record: (
            "Median step of each round, median of {rounds} rounds (least–most)."
            if "rounds" in record.curves
            else "The shortest step of {rounds} rounds."
        ),
    ),
    "bench-evaluation": Benchmark(
        title="Evaluation",
        shows="10,000 CIFAR-10 test features against 50,000, 256 numbers each.",
        tables=lambda record: [
            table_of(
                "",
                {
                    name.removesuffix(" seconds"): metrics_of(record, name.removesuffix("seconds"))
                    for name in record.metrics
                    if name.endswith("seconds")
                },
                {
                    "s": number("seconds", "{:.2f}"),
                    "extra memory, MB": number("extra_bytes", unit=1e-6),
                    "% right": number("accuracy", "{:.2f}", unit=100),
                },
            )
        ],
        template="Features: {features}; best of {rounds} round(s); {seconds}, {threads} thread.",
    ),
    "bench-quality": Benchmark(
        title="Quality at equal time",
        shows="What each reaches in so many minutes, from the folder to the last step, on test "
        "images: kNN and probe in %, the mean over seeds (least–most); and the minutes that "
        "trainings of ours took, whose length is chosen before.",
        tables=accuracy_tables,
        charts=quality_charts,
        template="{peers}; {minutes:g} minutes each on {threads} core(s). Without range: one seed.",
        parts="data",
        adds_up=True,
    ),
    "bench-rules": Benchmark(
        title="The rules of eqco train",
        shows="Each variation changes one rule of the default and trains for as many minutes of "
        "one core: kNN and probe in %, the mean over seeds (least–most).",
        tables=accuracy_tables,
        template="N = {n}, on {tested} images. Without range: one seed.",
        parts="data",
        adds_up=True,
    ),
    "bench-beside-work": Benchmark(
        title="Beside other work",
        shows="How OpenMP's threads wait for each other, alone on the cores and beside one process "
        "that computes without a pause.",
        tables=beside_work_tables,
        template="{backbone}, {size} pixels, N = {n}; median of {rounds} round(s) (least–most).",
        parts="backbone",
    ),
    "bench-convolution": Benchmark(
        title="Convolutions in bfloat16",
        shows="Each convolution of our networks, forward and backward and forward alone: by torch, "
        "with the gradient of the weights by one matrix product, and by products throughout.",
        tables=convolution_tables,
        template="{threads} threads; median of {rounds} rounds.",
    ),
    "bench-compiling": Benchmark(
        title="Compiled encoders",
        shows="Whole steps of SimCLR, plain and with the encoders compiled: median (least–most), "
        "and how long the first step waits, with an empty cache of the compiler and with its own.",
        tables=compiling_tables,
        template="{precision}; {rounds} rounds.",
        parts="settings",
    ),
    "bench-startup": Benchmark(
        title="Start-up",
        shows="Seconds from the command to its first step, or to its end where it trains nothing.",
        tables=startup_tables,
        template="Embedded photos, uncompiled; median of {rounds} rounds (least–most).",
    ),
    "bench-faults": Benchmark(
        title="Faults and bad input",
        shows="What the tests under tests/faults did to it, and it survived.",
        tables=lambda record: [
            Table(
                header=["", "count"],
                lines=[[what, f"{count:,.0f}"] for what, count in sorted(record.metrics.items())],
            )
        ],
    ),
}
