"""Threads for the cores that other programs leave free.

Threads that compute one layer together wait for the last of them. One that shares its core with
another program is late every time, and the others spin until it comes: two threads beside one busy
process are slower than one thread alone (docs/speed.md#beside-other-work).

Cores are physical ones. Linux counts their hardware threads, often two for each; torch by itself
computes in one thread for each core.
"""

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

__all__ = ["available_cores", "busy_cores", "thread_seconds", "threads_beside", "usable_threads"]

STAT = Path("/proc/stat")
TOPOLOGY = Path("/sys/devices/system/cpu")
WATCHED = 0.25  # seconds


def threads_beside(busy: float, cores: int) -> int:
    """As many threads as cores are free, and at least one.

    >>> threads_beside(0.2, 2), threads_beside(0.9, 2), threads_beside(3.4, 8), threads_beside(9, 8)
    (2, 1, 5, 1)
    """
    return max(1, cores - round(busy))


def usable_threads() -> set[int]:
    """The hardware threads that this process may use: so many can decode images side by side."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def available_cores() -> list[set[int]]:
    """The cores that this process may use, each as those of its hardware threads that it may use.

    Where the system does not tell which share a core, each counts as one.
    """
    cores = defaultdict(set)
    for thread in usable_threads():
        try:
            core = (TOPOLOGY / f"cpu{thread}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            core = str(thread)
        cores[core].add(thread)
    return list(cores.values())


def busy_cores(seconds: float = WATCHED) -> float:
    """Cores that other programs keep busy, watched for so long; 0 where that cannot be seen.

    A core is as busy as the busiest of its hardware threads. Programs of low priority (nice) do not
    count: they make way.
    """
    if not STAT.exists():
        return 0.0
    cores = available_cores()
    own, start = time.process_time(), time.monotonic()
    before = thread_seconds(STAT.read_text())
    time.sleep(seconds)
    after = thread_seconds(STAT.read_text())
    spent = [
        max((after[each] - before[each] for each in core & after.keys() & before.keys()), default=0)
        for core in cores
    ]
    others = sum(spent) - (time.process_time() - own)
    return max(0.0, others / (time.monotonic() - start))


def thread_seconds(stat: str) -> Mapping[int, float]:
    """Seconds that each hardware thread has computed since the machine started, by Linux's
    /proc/stat: programs of ordinary priority, the kernel, interrupts.

    >>> thread_seconds("cpu 9 9 9 9 9 9 9\\ncpu0 100 50 20 900 7 1 2\\ncpu1 5 0 0 0 0 0 0")
    {0: 1.23, 1: 0.05}
    """
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for line in stat.splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit():
            user, _, system, _, _, interrupts, soft_interrupts, *_ = map(int, counts)
            found[int(name[3:])] = (user + system + interrupts + soft_interrupts) / ticks
    return found
