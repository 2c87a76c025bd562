"""Training end to end beside others: what the rounds of a record allow to say."""

from collections.abc import Sequence
from itertools import chain
from statistics import median

from eqco.experiments.coordinates import distinct
from eqco.report.benchmark_tables import Table, metrics_of
from eqco.report.charts import Chart, bar_chart
from eqco.runtime.records import Record

__all__ = ["lightest_setting", "rounds_note", "train_charts", "train_tables", "training_ratios"]

LEAST_ROUNDS = 3  # fewer say nothing about the noise


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


def lightest_setting(record: Record) -> float:
    """Seconds that an image takes the lightest network of a record."""
    setting, n = next(iter(fastest_first(record).items()))
    return record.metrics[f"{setting}/limit/seconds"] / n


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
    measured = {setting: contenders(record, setting) for setting in settings}
    lines = []
    for name in filter(is_rival, distinct(chain(*measured.values()))):
        ours = ours_beside(name)
        cells = [
            ratio_words(rounds_of(record, setting, name), rounds_of(record, setting, ours))
            if name in measured[setting]
            else "–"
            for setting in settings
        ]
        lines.append([f"{ours} over {name}", *cells])
    return Table(header=["ratio of images/s", *settings], lines=lines)


def train_tables(record: Record) -> list[Table]:
    """Images per second and memory in each setting, then where a step goes."""
    tables = []
    for setting, n in fastest_first(record).items():
        times = {name: rounds_of(record, setting, name) for name in contenders(record, setting)}
        lines = [
            [
                name,
                speed_words(n, rounds),
                ratio_words(rounds, times[ours_beside(name)]) if is_rival(name) else "",
                ratio_words(rounds, times[limit_of(name)]) if name != limit_of(name) else "",
                f"{record.metrics[f'{setting}/{name}/bytes'] / 1e6:.0f}",
            ]
            for name, rounds in times.items()
        ]
        header = ["", "images/s", "time over ours", "time over limit", "memory, MB"]
        tables.append(Table(title=f"{setting}, N = {n}", header=header, lines=lines))
    return [*tables, *profile_tables(record)]


def profile_tables(record: Record) -> list[Table]:
    """Milliseconds of each part of a step, the longest first, a column for each setting."""
    keys = [key.split("/") for key in record.metrics if "/profile/" in key]
    settings = [each for each in fastest_first(record) if each in {key[0] for key in keys}]
    if not settings:
        return []
    seconds = metrics_of(record, f"{settings[0]}/profile/")
    parts = sorted({key[2] for key in keys}, key=seconds, reverse=True)
    lines = [
        [part, *(f"{1e3 * record.metrics[f'{each}/profile/{part}']:.1f}" for each in settings)]
        for part in parts
    ]
    return [Table(title="Where a step of SiMo goes, ms", header=["", *settings], lines=lines)]


def train_charts(record: Record) -> list[Chart]:
    """Bars of images per second, a chart for each setting."""
    charts = []
    for setting, n in fastest_first(record).items():
        speeds = {
            name: float(f"{n / record.metrics[f'{setting}/{name}/seconds']:.3g}")
            for name in contenders(record, setting)
        }
        charts.append(bar_chart(setting, "images/s", "end to end", speeds))
    return charts


def rounds_note(record: Record) -> str:
    """What the rounds of a record allow to say."""
    rounds = record.recipe["rounds"]
    if "rounds" not in record.curves or rounds < LEAST_ROUNDS:
        return f"From {rounds} round(s), too few to show the noise: [ratios] claim nothing."
    return (
        f"Median of {rounds} rounds (least–most); a ratio is claimed only where the ranges do not "
        f"overlap."
    )
