"""Threads for the cores that other programs leave free.

Threads that compute one layer together wait for the last of them. One that shares its core with
another program is late every time, and the others spin until it comes: two threads beside one busy
process are slower than one thread alone (docs/speed.md#beside-other-work).
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["busy_cores", "core_seconds", "threads_beside"]

STAT = Path("/proc/stat")
WATCHED = 0.25  # seconds


def threads_beside(busy: float, cores: int) -> int:
    """As many threads as cores are free, and at least one.

    >>> threads_beside(0.2, 2), threads_beside(0.9, 2), threads_beside(3.4, 8), threads_beside(9, 8)
    (2, 1, 5, 1)
    """
    return max(1, cores - round(busy))


def busy_cores(seconds: float = WATCHED) -> float:
    """Cores that other programs keep busy, watched for so long; 0 where that cannot be seen.

    Programs of low priority (nice) do not count: they make way.
    """
    if not STAT.exists():
        return 0.0
    own, start = time.process_time(), time.monotonic()
    before = core_seconds(STAT.read_text(), os.sched_getaffinity(0))
    time.sleep(seconds)
    after = core_seconds(STAT.read_text(), os.sched_getaffinity(0))
    spent = sum(after[core] - before[core] for core in after.keys() & before.keys())
    spent -= time.process_time() - own
    return max(0.0, spent / (time.monotonic() - start))


def core_seconds(stat: str, cores: set[int]) -> Mapping[int, float]:
    """Seconds that each of these cores has computed since the machine started, by Linux's
    /proc/stat: programs of ordinary priority, the kernel, interrupts.

    >>> core_seconds("cpu 9 9 9 9 9 9 9\\ncpu0 100 50 20 900 7 1 2\\ncpu1 5 0 0 0 0 0 0", {0})
    {0: 1.23}
    """
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for line in stat.splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, _, system, _, _, interrupts, soft_interrupts, *_ = map(int, counts)
            found[int(name[3:])] = (user + system + interrupts + soft_interrupts) / ticks
    return found
