"""Records of benchmarks as tables."""

import pytest

from eqco.report.benchmarks import BENCHMARKS, training_ratios
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
    assert lines["lightly MoCo"] == ["1164", "2.00", "2.20", "500"]
    assert lines["lightly SimCLR"] == ["406", "3.00", "3.15", "500"]
    assert lines["eqco SimCLR"] == ["1219", "", "1.05", "500"]
    assert profile.header == ["", *SETTINGS]
    assert profile.lines == [["backward", "50.0", "50.0"]]


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
    assert set(cells.values()) == {"–", "2.00×"}
