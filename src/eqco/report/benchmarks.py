"""Records of the benchmarks as tables and charts; `benchmarks/NAME.py --record` writes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from eqco.report.charts import Chart, LineStyle, Series
from eqco.runtime.records import Record, read_records

__all__ = ["BENCHMARKS", "Benchmark", "Table", "newest_benchmark", "rounds_note", "training_ratios"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with its heading, which is empty where it stands alone."""

    title: str = ""
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How the record of one benchmark is shown."""

    title: str
    shows: str
    tables: Callable[[Record], list[Table]]
    charts: Callable[[Record], list[Chart]] = lambda record: []
    note: Callable[[Record], str] = lambda record: ""


def newest_benchmark(results: Path, name: str) -> Record | None:
    """The newest record of a benchmark, or None if there is none."""
    found = read_records(results, name, "desk")
    return max(found, key=lambda record: record.finished, default=None)


CASES = {
    "queue": "Gradient to queries (MoCo)",
    "keys": "Gradient to queries and keys",
    "views": "SimCLR's loss on two views of N images; K stands for N here",
}


LEAST_ROUNDS = 3  # fewer say nothing about the noise

RIVALS = {
    "ours": "eqco",
    "cross-entropy": "infonce",
    "compiled": "ml-cpc",
    "info-nce": "decoupled",
    "lightly": "other",
    "metric-learning": "shade 5",
}


def rivals(record: Record, case: str) -> list[str]:
    """The losses measured in one case."""
    return list(dict.fromkeys(key.split("/")[2] for key in record.metrics if key.startswith(case)))


def loss_tables(record: Record) -> list[Table]:
    """Times and memory of the loss beside its peers."""
    tables = []
    for case, ks in record.recipe["cases"].items():
        names = rivals(record, case)
        lines = []
        for k in ks:
            cells = []
            for name in names:
                seconds = record.metrics.get(f"{case}/{k}/{name}/seconds")
                memory = record.metrics.get(f"{case}/{k}/{name}/bytes")
                if seconds is None or memory is None:
                    cells.append("–")
                else:
                    cells.append(f"{1e3 * seconds:.2f} ms, {memory / 1e6:.1f} MB")
            lines.append([str(k), *cells])
        tables.append(Table(title=CASES[case], header=["K", *names], lines=lines))
    return tables


def loss_charts(record: Record) -> list[Chart]:
    """Milliseconds against K, a line for each loss."""
    charts = []
    for case, ks in record.recipe["cases"].items():
        series = []
        for name in rivals(record, case):
            times = [(k, record.metrics.get(f"{case}/{k}/{name}/seconds")) for k in ks]
            points = [(float(k), 1e3 * seconds) for k, seconds in times if seconds is not None]
            colour = RIVALS.get(name, "ink")
            look: LineStyle = "dashed" if name == "floor" else "line"
            series.append(Series(name=name, points=points, colour=colour, look=look))
        charts.append(
            Chart(
                title=CASES[case].split(";")[0],
                x_label="N, images" if case == "views" else "K, negatives per query",
                y_label="ms, forward + backward",
                series=series,
                log_x=True,
                log_y=True,
                ticks=ks,
            )
        )
    return charts


def loss_note(record: Record) -> str:
    """Peers, and how the best round was chosen."""
    rounds, decisive = record.recipe["rounds"], record.recipe["rounds_at_65536"]
    return (
        f"{peers(record)}. Best of {rounds} round(s), of {decisive} at K = 65536; "
        f"single rounds differ by 15 % and more. –: failed or over 10 GiB."
    )


def step_tables(record: Record) -> list[Table]:
    """Time and memory of a step against K."""
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
    return [Table(header=["K", "ms per step", "over K = 256", "extra memory, MB"], lines=lines)]


def augment_tables(record: Record) -> list[Table]:
    """Microseconds per view of the whole pipeline and of what follows the crop."""
    names = ["torchvision", "torchvision v2", "kornia", "ours"]
    lines = []
    for size in sorted(record.recipe["images"], key=int):
        for part in ("whole", "after crop"):
            times = [record.metrics[f"{size}/{part}/{name}"] for name in names]
            ratios = " / ".join(f"{time / times[-1]:.1f}" for time in times[:-1])
            lines.append([f"{size} px, {part}", *(f"{time:.0f}" for time in times), ratios])
    return [Table(header=["µs per view", *names, "ours is faster by"], lines=lines)]


def augment_charts(record: Record) -> list[Chart]:
    """Bars of the whole pipeline, a chart for each image size."""
    names = ["ours", "kornia", "torchvision", "torchvision v2"]
    return [
        Chart(
            title=f"{size} px",
            x_label="",
            y_label="µs per view",
            categories=names,
            from_zero=True,
            series=[
                Series(
                    name="whole pipeline",
                    points=[(i, record.metrics[f"{size}/whole/{n}"]) for i, n in enumerate(names)],
                    look="bars",
                )
            ],
        )
        for size in sorted(record.recipe["images"], key=int)
    ]


def augment_note(record: Record) -> str:
    """Peers and threads."""
    return f"{peers(record)}; {record.recipe['threads']} thread."


def loading_tables(record: Record) -> list[Table]:
    """The share of a training step that goes to data and augmentation."""
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
    return [Table(header=header, lines=lines)]


def lab_tables(record: Record) -> list[Table]:
    """Table 5 in groups beside one critic at a time."""
    counts = sorted({key.split("/")[0] for key in record.metrics}, key=lambda key: int(key[2:]))
    lines, totals = [], [0.0, 0.0]
    for count in counts:
        times = [record.metrics[f"{count}/{side}"] for side in ("loop", "grouped")]
        totals = [total + time for total, time in zip(totals, times, strict=True)]
        lines.append([count, *(f"{t:.1f}" for t in times), f"{times[0] / times[1]:.2f}"])
    ratio = f"{totals[0] / totals[1]:.2f}"
    lines.append(["whole table", *(f"{total:.1f}" for total in totals), ratio])
    header = ["one seed, full length, s", "one at a time", "in groups", "faster by"]
    return [Table(header=header, lines=lines)]


def contenders(record: Record, setting: str) -> list[str]:
    """Who was measured in one setting: ours, then the others, then the limits."""
    names = {key.split("/")[1] for key in record.metrics if key.startswith(f"{setting}/")}
    kinds = {name: 0 if "eqco" in name else 2 if "limit" in name else 1 for name in names}
    return sorted(names - {"profile"}, key=lambda name: (kinds[name], name))


def fastest_first(record: Record) -> dict[str, int]:
    """The settings and their N, the lightest network first."""
    sizes = {setting: what["n"] for setting, what in record.recipe["settings"].items()}
    return dict(
        sorted(sizes.items(), key=lambda item: record.metrics[f"{item[0]}/limit/seconds"] / item[1])
    )


def limit_of(name: str) -> str:
    """The encoder alone, as this contender uses it."""
    return "limit of SimCLR" if "SimCLR" in name else "limit"


def ours_beside(name: str) -> str:
    """Our training of the same kind."""
    return "eqco SimCLR" if "SimCLR" in name else "eqco MoCo v2"


def is_rival(name: str) -> bool:
    """Whether a contender is another library's training."""
    return not name.startswith(("eqco", "limit"))


def rounds_of(record: Record, setting: str, name: str) -> list[float]:
    """Seconds of a step in each round; of a record that kept none but the best, that one."""
    single = [record.metrics[f"{setting}/{name}/seconds"]]
    return record.curves.get("rounds", {}).get(f"{setting}/{name}", single)


def ratio_words(longer: Sequence[float], shorter: Sequence[float]) -> str:
    """How many times as long one takes: the ratio of medians (and its range), where it is one.

    Rounds that overlap show no difference, and fewer than three show no noise.

    >>> ratio_words([3.0, 3.3, 3.1], [2.0, 2.1, 2.0]), ratio_words([2.0, 2.2, 2.1], [2.0, 2.1, 2.0])
    ('1.55 (1.43–1.65)', 'within noise (0.95–1.10)')
    >>> ratio_words([3.0], [2.0])
    '[1.50]'
    """
    ratio = median(longer) / median(shorter)
    if min(len(longer), len(shorter)) < LEAST_ROUNDS:
        return f"[{ratio:.2f}]"
    low, high = min(longer) / max(shorter), max(longer) / min(shorter)
    claim = f"{ratio:.2f}" if low > 1 or high < 1 else "within noise"
    return f"{claim} ({low:.2f}–{high:.2f})"


def speed_words(n: int, rounds: Sequence[float]) -> str:
    """Images per second: the median over rounds, and the range of several.

    >>> speed_words(256, [0.5]), speed_words(256, [0.5, 0.4, 0.64])
    ('512', '512 (400–640)')
    """
    reach = f" ({n / max(rounds):.0f}–{n / min(rounds):.0f})" if len(rounds) > 1 else ""
    return f"{n / median(rounds):.0f}{reach}"


def training_ratios(record: Record) -> Table:
    """By how much our training is faster: a line for each rival, a column for each setting."""
    settings = list(fastest_first(record))
    everyone = dict.fromkeys(name for each in settings for name in contenders(record, each))
    names = [name for name in everyone if is_rival(name)]
    lines = []
    for name in names:
        cells = []
        for setting in settings:
            if name in contenders(record, setting):
                ours = rounds_of(record, setting, ours_beside(name))
                cells.append(ratio_words(rounds_of(record, setting, name), ours))
            else:
                cells.append("–")
        lines.append([f"{ours_beside(name)} over {name}", *cells])
    return Table(header=["ratio of images/s", *settings], lines=lines)


def train_tables(record: Record) -> list[Table]:
    """Images per second and memory in each setting, then where a step goes."""
    tables = []
    for setting, n in fastest_first(record).items():
        times = {name: rounds_of(record, setting, name) for name in contenders(record, setting)}
        lines = []
        for name, rounds in times.items():
            is_limit = name == limit_of(name)
            lines.append(
                [
                    name,
                    speed_words(n, rounds),
                    ratio_words(rounds, times[ours_beside(name)]) if is_rival(name) else "",
                    "" if is_limit else ratio_words(rounds, times[limit_of(name)]),
                    f"{record.metrics[f'{setting}/{name}/bytes'] / 1e6:.0f}",
                ]
            )
        header = ["", "images/s", "time over ours", "time over limit", "memory, MB"]
        title = f"{setting}, N = {n}"
        tables.append(Table(title=title, header=header, lines=lines))
    return [*tables, profile_table(record)]


def profile_table(record: Record) -> Table:
    """Milliseconds of each part of a step, the longest first, a column for each setting."""
    keys = [key.split("/") for key in record.metrics if "/profile/" in key]
    profiled = {key[0] for key in keys}
    settings = [setting for setting in fastest_first(record) if setting in profiled]
    parts = sorted(
        {key[2] for key in keys},
        key=lambda part: -record.metrics[f"{settings[0]}/profile/{part}"],
    )
    lines = [
        [part, *(f"{1e3 * record.metrics[f'{each}/profile/{part}']:.1f}" for each in settings)]
        for part in parts
    ]
    return Table(title="Where a step of SiMo goes, ms", header=["", *settings], lines=lines)


def train_charts(record: Record) -> list[Chart]:
    """Bars of images per second, a chart for each setting."""
    charts = []
    for setting, n in fastest_first(record).items():
        names = contenders(record, setting)
        points = [
            (float(i), float(f"{n / record.metrics[f'{setting}/{name}/seconds']:.3g}"))
            for i, name in enumerate(names)
        ]
        charts.append(
            Chart(
                title=setting,
                x_label="",
                y_label="images/s",
                categories=names,
                from_zero=True,
                series=[Series(name="end to end", points=points, look="bars")],
            )
        )
    return charts


def train_note(record: Record) -> str:
    """Peers, threads and rounds."""
    return (
        f"{peers(record)}; {record.recipe['threads']} threads. {rounds_note(record)} "
        f"Peers of MoCo's kind are compared with our MoCo v2, of SimCLR's with our SimCLR."
    )


def rounds_note(record: Record) -> str:
    """What the rounds of a record allow to say."""
    rounds = record.recipe["rounds"]
    if "rounds" not in record.curves or rounds < LEAST_ROUNDS:
        return f"From {rounds} round(s), too few to show the noise: [ratios] claim nothing."
    return (
        f"Median of {rounds} rounds (least–most); a ratio is claimed only where the ranges do not "
        f"overlap."
    )


def scaling_tables(record: Record) -> list[Table]:
    """Images per second of one process and of two."""
    lines = []
    for setting in record.recipe["settings"]:
        speeds = [record.metrics[f"{setting}/{way}"] for way in record.recipe["ways"]]
        lines.append([setting, *(f"{s:.0f}" for s in speeds), f"{speeds[1] / speeds[0]:.2f}"])
    header = ["images/s", *record.recipe["ways"], "second over first"]
    return [Table(header=header, lines=lines)]


def evaluation_tables(record: Record) -> list[Table]:
    """Time, memory and accuracy of kNN and probe beside scikit-learn's."""
    sides = [name.removesuffix(" seconds") for name in record.metrics if name.endswith("seconds")]
    lines = [
        [
            side,
            f"{record.metrics[f'{side} seconds']:.2f}",
            f"{record.metrics[f'{side} extra_bytes'] / 1e6:.0f}",
            f"{100 * record.metrics[f'{side} accuracy']:.2f}",
        ]
        for side in sides
    ]
    return [Table(header=["", "s", "extra memory, MB", "% right"], lines=lines)]


def evaluation_note(record: Record) -> str:
    """What the features are, how each side ran, and how often."""
    recipe = record.recipe
    return (
        f"Features: {recipe['features']}; best of {recipe['rounds']} round(s); "
        f"{recipe['seconds']}, {recipe['threads']} thread."
    )


def peers(record: Record) -> str:
    """The libraries measured beside ours."""
    return ", ".join(f"{name} {version}" for name, version in record.recipe["peers"].items())


def plain_tables(record: Record) -> list[Table]:
    """Every measurement by its name, for a benchmark without a table of its own."""
    lines = [[name, f"{value:.4g}"] for name, value in record.metrics.items()]
    return [Table(header=["measured", "value"], lines=lines)]


def fault_tables(record: Record) -> list[Table]:
    """What was survived, and how often."""
    lines = [[what, f"{count:,.0f}"] for what, count in sorted(record.metrics.items())]
    return [Table(header=["", "count"], lines=lines)]


BENCHMARKS: dict[str, Benchmark] = {
    "bench-loss": Benchmark(
        title="The loss: forward + backward",
        shows="N = 256 queries, D = 128, float32. Floor is the matrix products alone.",
        tables=loss_tables,
        charts=loss_charts,
        note=loss_note,
    ),
    "bench-step": Benchmark(
        title="A step of MoCo v2 against K",
        shows="ResNet-18 (ImageNet stem), 64 pixels, N = 256.",
        tables=step_tables,
    ),
    "bench-train": Benchmark(
        title="Training end to end",
        shows=(
            "From stored images to the optimiser's step: same backbone, images, N and "
            "augmentation. Limit is the same work of the encoder alone, on a fixed batch."
        ),
        tables=train_tables,
        charts=train_charts,
        note=train_note,
    ),
    "bench-augment": Benchmark(
        title="Augmentation",
        shows="MoCo v2's pipeline with hue and blur.",
        tables=augment_tables,
        charts=augment_charts,
        note=augment_note,
    ),
    "bench-loading": Benchmark(
        title="Loading",
        shows="The share of a training step that goes to data and augmentation.",
        tables=loading_tables,
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
    ),
    "bench-evaluation": Benchmark(
        title="Evaluation",
        shows="10,000 CIFAR-10 test features against 50,000, 256 numbers each.",
        tables=evaluation_tables,
        note=evaluation_note,
    ),
    "bench-faults": Benchmark(
        title="Faults and bad input",
        shows="What the tests under tests/faults did to it, and it survived.",
        tables=fault_tables,
    ),
}
