"""Threads beside other programs: as many as cores are free."""

import os
import sys
import time
from types import SimpleNamespace

import pytest

from eqco.cli import main as command
from eqco.cli.launch import threads_of_each
from eqco.runtime import cores


def make_topology(folder, siblings):
    """A folder as /sys/devices/system/cpu: of each hardware thread those of its core."""
    for thread, names in siblings.items():
        place = folder / f"cpu{thread}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{names}\n")


@pytest.mark.parametrize(
    ("siblings", "busy"), [({}, 1.5), ({0: "0", 1: "1", 2: "2"}, 1.5), ({0: "0-1", 1: "0-1"}, 1.0)]
)
def test_cores_are_busy_as_long_as_a_counter_of_theirs_grows(siblings, busy, tmp_path, monkeypatch):
    """Thread 0 computes for half of the time, thread 1 for all of it, thread 2 is not ours."""
    ticks, stat = os.sysconf("SC_CLK_TCK"), tmp_path / "stat"
    stat.write_text("cpu0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0")
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds
        half, whole = int(seconds * ticks / 2), int(seconds * ticks)
        stat.write_text(
            f"cpu0 {half} 0 0 0 0 0 0\ncpu1 0 0 {whole} 0 0 0 0\ncpu2 {whole} 0 0 0 0 0 0"
        )

    monkeypatch.setattr(cores, "STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    make_topology(tmp_path, siblings)
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    assert cores.busy_cores(2.0) == pytest.approx(busy, abs=0.05)


def test_hardware_threads_of_one_core_count_once(tmp_path, monkeypatch):
    """Four cores of two threads each; of two of them one thread is not ours."""
    make_topology(tmp_path, {each: f"{each % 4},{each % 4 + 4}" for each in range(8)})
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 4, 5, 7})
    assert sorted(map(sorted, cores.available_cores())) == [[0, 4], [1, 5], [2], [7]]


def test_hardware_threads_are_cores_where_linux_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path / "missing")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3})
    assert sorted(map(sorted, cores.available_cores())) == [[0], [3]]


def test_nothing_is_known_of_cores_where_there_are_no_counters(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "STAT", tmp_path / "missing")
    assert cores.busy_cores() == 0


def test_programs_of_low_priority_and_waiting_for_disks_do_not_count():
    ticks = os.sysconf("SC_CLK_TCK")
    #        user nice system idle iowait irq softirq
    line = f"cpu0 0 {5 * ticks} 0 {7 * ticks} {9 * ticks} 0 0"
    assert cores.thread_seconds(line) == {0: 0.0}


def test_a_command_leaves_busy_cores_to_others_and_says_so(monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.setattr(command, "busy_cores", lambda: 1.1)
    command.leave_busy_cores()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "1.1 of 4 cores busy, so this computes in 3 threads" in capsys.readouterr().err
    monkeypatch.delenv("OMP_NUM_THREADS")


@pytest.mark.parametrize(("busy", "threads"), [(0.0, None), (1.0, "3"), (2.0, "2"), (9.0, "1")])
def test_no_more_threads_than_cores_where_each_has_two(busy, threads, tmp_path, monkeypatch):
    """torch would take four of the eight hardware threads."""
    make_topology(tmp_path, {each: f"{each % 4},{each % 4 + 4}" for each in range(8)})
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(command, "busy_cores", lambda: busy)
    monkeypatch.delenv("OMP_NUM_THREADS")
    command.leave_busy_cores()
    assert os.environ.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(("count", "threads"), [(1, 4), (2, 2), (3, 1), (4, 1), (8, 1)])
def test_processes_share_cores_and_not_hardware_threads(count, threads, tmp_path, monkeypatch):
    make_topology(tmp_path, {each: f"{each % 4},{each % 4 + 4}" for each in range(8)})
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert threads_of_each(count) == threads
    assert cores.usable_threads() == set(range(8))


@pytest.mark.parametrize(
    ("arguments", "looks"),
    [
        ([], True),
        (["--processes", "1"], True),
        (["--processes=1"], True),
        (["--processes", "2"], False),
        (["--processes=2"], False),
        (["--list"], False),
    ],
)
def test_one_process_looks_at_busy_cores_and_several_share_them_all(arguments, looks, monkeypatch):
    looked = []
    monkeypatch.setattr(command, "leave_busy_cores", lambda: looked.append(arguments))
    idle = SimpleNamespace(parse=list, run=lambda options: None)
    monkeypatch.setitem(sys.modules, "eqco.cli.train", idle)
    command.dispatch("train", arguments)
    assert bool(looked) is looks


@pytest.mark.parametrize(("given", "busy"), [("2", 1.0), (None, 0.3)])
def test_threads_that_were_given_and_idle_cores_are_left_alone(given, busy, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(command, "busy_cores", lambda: busy)
    command.leave_busy_cores()
    assert os.environ.get("OMP_NUM_THREADS") == given
    assert capsys.readouterr().err == ""
