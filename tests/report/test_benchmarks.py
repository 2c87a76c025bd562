"""Records of benchmarks as tables."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from eqco.report.benchmarks import (
    BENCHMARKS,
    command_of,
    newest_records,
    united,
)
from eqco.report.quality import quality_charts
from eqco.report.training_speed import training_ratios
from eqco.runtime.records import Record, hardware

SETTINGS = {"light, 32 px": {"n": 256}, "ResNet-50, 64 px": {"n": 64}}
SECONDS = {
    "limit": 0.1,
    "limit of SimCLR": 0.2,
    "eqco MoCo v2": 0.11,
    "eqco SimCLR": 0.21,
    "lightly MoCo": 0.22,
    "lightly SimCLR": 0.63,
}


@pytest.fixture
def record():
    metrics = {}
    for setting in SETTINGS:
        for name, seconds in SECONDS.items():
            metrics |= {f"{setting}/{name}/seconds": seconds, f"{setting}/{name}/bytes": 5e8}
        metrics[f"{setting}/profile/backward"] = 0.05
    recipe = {"settings": SETTINGS, "rounds": 1, "peers": {"lightly": "1"}, "threads": 2}
    return Record(
        experiment="bench-train",
        profile="desk",
        recipe=recipe,
        seed=0,
        metrics=metrics,
        code="0",
        hardware=hardware(),
        seconds=1.0,
    )


def test_training_is_compared_with_its_own_kind_and_its_own_limit(record):
    light, _, profile = BENCHMARKS["bench-train"].tables(record)
    lines = {line[0]: line[1:] for line in light.lines}
    assert lines["lightly MoCo"] == ["1164", "[2.00]", "[2.20]", "500"]
    assert lines["lightly SimCLR"] == ["406", "[3.00]", "[3.15]", "500"]
    assert lines["eqco SimCLR"] == ["1219", "", "[1.05]", "500"]
    assert lines["limit"] == ["2560", "", "", "500"]
    assert profile.header == ["", *SETTINGS]
    assert profile.lines == [["backward", "50.0", "50.0"]]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_command_of_a_benchmark_names_its_script(name):
    _, script, _ = command_of(name).split()
    assert (Path(__file__).parents[2] / script).exists()


def test_small_batches_have_a_line_for_each_way_that_ran(record):
    metrics = {"resnet18/cached/seconds": 0.5, "resnet18/cached/bytes": 3e7}
    (table,) = BENCHMARKS["bench-small-batch"].tables(replace(record, metrics=metrics))
    assert table.lines == [["resnet18/cached", "500", "30"]]


def test_every_setting_has_its_bars(record):
    charts = BENCHMARKS["bench-train"].charts(record)
    assert [chart.title for chart in charts] == list(SETTINGS)
    assert set(charts[0].categories) == set(SECONDS)
    place = charts[1].categories.index("limit")
    assert charts[1].series[0].points[place] == (place, pytest.approx(640))


def test_a_peer_that_failed_in_one_setting_keeps_its_line(record):
    failed = next(iter(SETTINGS))
    for what in ("seconds", "bytes"):
        del record.metrics[f"{failed}/lightly MoCo/{what}"]
    table = training_ratios(record)
    lines = {line[0]: line[1:] for line in table.lines}
    cells = dict(zip(table.header[1:], lines["eqco MoCo v2 over lightly MoCo"], strict=True))
    assert cells[failed] == "–"
    assert set(cells.values()) == {"–", "[2.00]"}


ROUNDS = {  # seconds of a step; the median is the metric
    "limit": [0.10, 0.11, 0.10],
    "limit of SimCLR": [0.20, 0.25, 0.20],
    "eqco MoCo v2": [0.12, 0.11, 0.13],
    "eqco SimCLR": [0.21, 0.19, 0.22],
    "lightly MoCo": [0.24, 0.26, 0.25],
    "lightly SimCLR": [0.22, 0.23, 0.25],
}


@pytest.fixture
def three_rounds(record):
    metrics = dict(record.metrics)
    for setting in SETTINGS:
        metrics |= {f"{setting}/{n}/seconds": median(times) for n, times in ROUNDS.items()}
    rounds = {f"{setting}/{n}": times for setting in SETTINGS for n, times in ROUNDS.items()}
    recipe = {**record.recipe, "rounds": 3}
    return replace(record, recipe=recipe, metrics=metrics, curves={"rounds": rounds})


def test_a_ratio_is_claimed_only_where_the_rounds_do_not_overlap(three_rounds):
    light = BENCHMARKS["bench-train"].tables(three_rounds)[0]
    lines = {line[0]: line[1:] for line in light.lines}
    # 0.25/0.12, the least 0.24/0.13, the most 0.26/0.11
    assert lines["lightly MoCo"][1] == "2.08 (1.85–2.36)"
    # its fastest round, 0.22, is not slower than our slowest
    assert lines["lightly SimCLR"][1] == "within noise (1.00–1.32)"
    # our SimCLR is not "faster than its limit": 0.19/0.25 to 0.22/0.20
    assert lines["eqco SimCLR"][2] == "within noise (0.76–1.10)"
    assert lines["eqco MoCo v2"][0] == "2133 (1969–2327)"


def test_what_is_slower_in_every_round_is_said_to_be_slower(three_rounds):
    setting = next(iter(SETTINGS))
    three_rounds.curves["rounds"][f"{setting}/lightly SimCLR"] = [0.10, 0.11, 0.10]
    table = training_ratios(three_rounds)
    lines = {line[0]: dict(zip(table.header, line, strict=True)) for line in table.lines}
    # 0.10/0.21, the least 0.10/0.22, the most 0.11/0.19
    assert lines["eqco SimCLR over lightly SimCLR"][setting] == "0.48 (0.45–0.58)"


def test_the_note_says_what_the_rounds_allow(record, three_rounds):
    note = BENCHMARKS["bench-train"].note
    assert "From 1 round(s), too few to show the noise: [ratios] claim nothing." in note(record)
    assert "Median of 3 rounds" in note(three_rounds)


def test_rounds_take_turns_and_the_fastest_way_counts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import measure

    order = list(measure.interleave("abcdef", 3))
    for turn in range(3):
        assert sorted(question for at, question in order if at == turn) == list("abcdef")
    assert [order[6 * turn][1] for turn in range(3)] == ["a", "c", "e"]
    # by its median, not by its best round; a way that failed once does not count
    steady, lucky, failed = [2.0, 2.1, 2.2], [1.0, 3.0, 3.0], [0.5, 0.5]
    assert measure.fastest_way([lucky, steady, failed], rounds=3) == steady
    assert measure.fastest_way([failed], rounds=3) is None


def test_a_part_is_shown_from_its_newest_record_and_the_others_stay(record, tmp_path):
    light, deep = SETTINGS
    again = {key: 2 * value for key, value in record.metrics.items() if key.startswith(light)}
    newer = replace(
        record,
        recipe={**record.recipe, "settings": {light: SETTINGS[light]}},
        metrics=again,
        finished="2100-01-01T00:00:00+00:00",
    )
    for each in (record, newer):
        each.write(tmp_path)
    shown = [each for each, *_ in newest_records(tmp_path, "bench-train")]
    assert [list(each.recipe["settings"]) for each in shown] == [[light], [deep]]
    first, _, second, _ = [
        table for each in shown for table in BENCHMARKS["bench-train"].tables(each)
    ]
    assert (first.lines[0][1], second.lines[0][1]) == ("1164", "582")  # 256/0.22 and 64/0.11


@pytest.fixture
def loss_record(record):
    """At K = 16 by one round, as the first records are; ours took 1 ms."""
    recipe = {"cases": {"queue": [16]}, "rounds": 1, "rounds_at_65536": 3}
    recipe["peers"] = {"lightly": "1"}
    metrics = {"queue/16/ours/seconds": 1e-3, "queue/16/ours/bytes": 2e6}
    return replace(record, experiment="bench-loss", recipe=recipe, metrics=metrics, finished="2000")


@pytest.fixture
def decisive_record(loss_record):
    """By hand, of medians: ours over floor 0.2/0.1, compiled over ours 0.5/0.2."""
    rounds = {"ours": [0.2, 0.22, 0.2], "compiled": [0.5, 0.4, 0.5], "floor": [0.1, 0.1, 0.11]}
    rounds = {f"decisive/queue/{name}": times for name, times in rounds.items()}
    metrics = {f"{place}/seconds": median(times) for place, times in rounds.items()}
    metrics |= {f"{place}/bytes": 3e6 for place in rounds}
    return replace(
        loss_record,
        recipe={"cases": {"decisive": [65536]}, "rounds": 1, "decisive_rounds": 3},
        metrics=metrics,
        curves={"rounds": rounds},
        finished="2001",
    )


def test_the_loss_at_the_decisive_k_is_compared_over_rounds(decisive_record):
    (table,) = BENCHMARKS["bench-loss"].tables(decisive_record)
    (cells,) = (dict(zip(table.header, line, strict=True)) for line in table.lines)
    assert cells["K = 65536"] == "Gradient to queries (MoCo)"
    assert cells["ours"] == "200.0 (200.0–220.0) ms, 3.0 MB"
    # least and most of single rounds: 0.2/0.11 and 0.22/0.1; 0.4/0.22 and 0.5/0.2
    assert cells["ours over floor"] == "2.00 (1.82–2.20)"
    assert cells["compiled over ours"] == "2.50 (1.82–2.50)"
    assert BENCHMARKS["bench-loss"].charts(decisive_record) == []
    note = BENCHMARKS["bench-loss"].note(decisive_record)
    assert note == "Of K = 65536 the median of 3 rounds (least–most)."


def test_the_decisive_k_is_a_part_beside_the_older_tables(loss_record, decisive_record, tmp_path):
    for each in (loss_record, decisive_record):
        each.write(tmp_path)
    newer, older = [each for each, *_ in newest_records(tmp_path, "bench-loss")]
    assert newer.recipe["cases"] == {"decisive": [65536]}
    (table,) = BENCHMARKS["bench-loss"].tables(older)
    assert table.lines == [["16", "1.00 ms, 2.0 MB"]]
    assert "Best of 1 round(s), of 3 at K = 65536;" in BENCHMARKS["bench-loss"].note(older)


def test_one_record_may_hold_the_decisive_k_and_the_others(loss_record, decisive_record):
    cases = {**loss_record.recipe["cases"], **decisive_record.recipe["cases"]}
    both = replace(
        decisive_record,
        recipe={**decisive_record.recipe, "cases": cases, "peers": {"lightly": "1"}},
        metrics={**loss_record.metrics, **decisive_record.metrics},
    )
    decisive, by_k = BENCHMARKS["bench-loss"].tables(both)
    assert (decisive.header[0], by_k.header) == ("K = 65536", ["K", "ours"])
    note = BENCHMARKS["bench-loss"].note(both)
    assert note.startswith("lightly 1. Best of 1 round(s); single rounds")
    assert note.endswith("10 GiB. Of K = 65536 the median of 3 rounds (least–most).")


WAYS = ["1 process", "2 processes"]


def test_several_processes_are_compared_by_their_medians(record):
    recipe = {"settings": ["light"], "ways": WAYS, "rounds": 3}
    metrics = {"light/1 process": 100.0, "light/2 processes": 95.0}
    scaling, best = BENCHMARKS["bench-scaling"], replace(record, recipe=recipe, metrics=metrics)
    (table,) = scaling.tables(best)
    assert table.lines == [["light", "100", "95", "0.95"]]
    assert scaling.note(best) == "The shortest step of 3 rounds."
    rounds = {"light/1 process": [100.0, 80.0, 110.0], "light/2 processes": [95.0, 120.0, 88.0]}
    (table,) = scaling.tables(replace(best, curves={"rounds": rounds}))
    # 95/100; single rounds from 88/110 to 120/80
    assert table.lines == [["light", "100 (80–110)", "95 (88–120)", "0.95 (0.80–1.50)"]]


def test_the_share_of_loading_says_its_precision_where_the_record_does(record):
    loading, old = BENCHMARKS["bench-loading"], replace(record, recipe={"steps": 20})
    assert loading.note(old) == ""
    newer = replace(old, recipe={"steps": 20, "precision": "bfloat16"})
    assert loading.note(newer) == "In bfloat16; medians of 20 steps."


def test_beside_other_work_the_rounds_are_shown(record):
    rounds = {"default/alone": [0.5, 0.4, 0.64], "default/beside other work": [1.0, 1.28, 1.0]}
    metrics = {f"{name}/seconds": median(times) for name, times in rounds.items()}
    single = replace(record, recipe={"n": 256, "ways": {"default": {}}}, metrics=metrics)
    tables = BENCHMARKS["bench-beside-work"].tables
    assert tables(single)[0].lines == [["default", "512", "256"]]
    several = replace(single, curves={"rounds": rounds})
    assert tables(several)[0].lines == [["default", "512 (400–640)", "256 (200–256)"]]


def test_each_network_is_a_part_of_the_work_beside_other_work(record, tmp_path):
    for backbone, size in (("light", 32), ("resnet18", 64), ("light", 64)):
        recipe = {"backbone": backbone, "size": size}
        finished = f"2000-01-0{size // 32}{backbone}"
        replace(record, experiment="bench-beside-work", recipe=recipe, finished=finished).write(
            tmp_path
        )
    shown = [each for each, *_ in newest_records(tmp_path, "bench-beside-work")]
    assert [(each.recipe["backbone"], each.recipe["size"]) for each in shown] == [
        ("resnet18", 64),
        ("light", 64),
    ]


def test_of_a_benchmark_without_parts_the_newest_record_is_shown(record, tmp_path):
    older = replace(record, experiment="bench-step", recipe={"n": 1}, finished="2000")
    newer = replace(older, recipe={"n": 2}, finished="2001")
    for each in (newer, older):
        each.write(tmp_path)
    assert [
        each.recipe for records in newest_records(tmp_path, "bench-step") for each in records
    ] == [{"n": 2}]


def test_seeds_and_contenders_measured_in_the_same_way_share_a_table(record, tmp_path):
    """Each cell as it was measured last; what took other minutes stands by itself, or not at all.

    By hand: eqco (50 + 60)/2 = 55; lightly's second measurement, 30, in place of its first, 20.
    """

    def measured(day, seed, minutes, peers, metrics):
        recipe = {"data": {"signs": 0}, "minutes": minutes, "threads": 1, "peers": peers}
        recipe |= {"rows": sorted({key.split("/")[0] for key in metrics})}
        replace(
            record,
            experiment="bench-quality",
            recipe=recipe,
            seed=seed,
            metrics={f"signs/{key}": value for key, value in metrics.items()},
            finished=f"2000-01-0{day}",
        ).write(tmp_path)

    measured(1, 0, 3.0, {}, {"eqco/0/knn": 0.1, "eqco/0/probe": 0.1})
    first = {"eqco/0/knn": 0.5, "eqco/0/probe": 0.5, "eqco/0/minutes": 9.0}
    first |= {"lightly/0/knn": 0.2, "lightly/0/probe": 0.2}
    measured(2, 0, 10.0, {"lightly": "1.5"}, first)
    second = {"eqco/1/knn": 0.6, "eqco/1/probe": 0.6, "eqco/1/minutes": 10.5}
    measured(3, 1, 10.0, {}, second)
    again = {"lightly/0/knn": 0.3, "lightly/0/probe": 0.3}
    measured(4, 0, 10.0, {"lightly": "1.6"}, again)
    ((*records,),) = newest_records(tmp_path, "bench-quality")
    assert [each.seed for each in records] == [0, 1, 0]
    assert records[0].finished == "2000-01-04"
    (table,) = BENCHMARKS["bench-quality"].tables(united(records))
    assert table.lines == [
        ["eqco", "55.0 (50.0–60.0)", "55.0 (50.0–60.0)", "9.8 (9.0–10.5)"],
        ["lightly", "30.0", "30.0", ""],
    ]
    assert "lightly 1.6; 10 minutes" in BENCHMARKS["bench-quality"].note(united(records))


def test_curves_of_quality_have_a_line_for_each_contender_and_one_for_pixels():
    record = Record(
        experiment="bench-quality",
        profile="desk",
        recipe={"data": {"signs": 0}},
        seed=1,  # of which nobody measured pixels again
        metrics={"signs/raw pixels/0/knn": 0.4, "signs/raw pixels/3/knn": 0.6},
        curves={"signs": {"eqco": [[1.0, 0.4], [2.004, 0.81]], "lightly MoCo": [[1.5, 0.3]]}},
        code="1",
        hardware={},
        seconds=1.0,
    )
    (chart,) = quality_charts(record)
    lines = {series.name: list(series.points) for series in chart.series}
    assert lines == {
        "eqco": [(1.0, 40.0), (2.0, 81.0)],
        "lightly MoCo": [(1.5, 30.0)],
        "raw pixels": [(0.0, 50.0), (2.0, 50.0)],
    }


def test_records_of_several_seeds_share_their_curves():
    common = {"experiment": "bench-quality", "profile": "desk", "recipe": {}, "code": "1"}
    common |= {"hardware": {}, "seconds": 1.0}
    newest = Record(**common, seed=1, metrics={"a": 1.0}, curves={"signs": {"eqco": []}})
    both = {"signs": {"eqco": [[1.0, 0.5]], "lightly MoCo": []}}
    older = Record(**common, seed=0, metrics={"b": 2.0}, curves=both)
    whole = united([newest, older])
    assert whole.metrics == {"a": 1.0, "b": 2.0}
    assert whole.curves == {"signs": {"eqco": [], "lightly MoCo": []}}
