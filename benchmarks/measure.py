"""Time and memory of one call, and the same in a process of its own."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from eqco.runtime.records import Record, code_version, hardware


def command_line(
    document: str, *, rounds: int | None = None, quick: bool = True
) -> argparse.ArgumentParser:
    """What the scripts have in common: `--record`, and `--quick` and `--rounds` where they do."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if quick:
        parser.add_argument("--quick", action="store_true", help="a small part, to try it")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    parser.add_argument("--record", action="store_true", help="keep it below results/")
    return parser


def read_options(
    parser: argparse.ArgumentParser, child: Callable[[dict[str, Any]], Any] | None = None
) -> argparse.Namespace:
    """The options; a process that `in_own_process` has started answers its question and ends."""
    if child is not None:
        parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if child is not None and options.child:
        print(json.dumps(child(json.loads(options.child))))
        raise SystemExit
    if getattr(options, "rounds", 1) < 1:
        parser.error(f"--rounds {options.rounds}: measure at least 1, and 3 to compare.")
    return options


def settings_named(
    parser: argparse.ArgumentParser, only: str, settings: Mapping[str, Any]
) -> list[str]:
    """The settings whose names begin as `--only` has it."""
    chosen = [title for title in settings if title.startswith(only)]
    if not chosen:
        parser.error(f"--only {only}: there are {'; '.join(settings)}.")
    return chosen


def named_folders(given: Sequence[str]) -> dict[str, tuple[str, int]]:
    """`NAME=FOLDER[:COUNT]` by name: the folder, and how many training images; 0: all.

    >>> named_folders(["signs=photos/signs:1000", "all=cifar10"])
    {'signs': ('photos/signs', 1000), 'all': ('cifar10', 0)}
    """
    found = {}
    for each in given:
        name, _, place = each.partition("=")
        folder, _, count = place.partition(":")
        if not folder or (count and not count.isdigit()):
            raise SystemExit(f"{each}: give NAME=FOLDER, or NAME=FOLDER:COUNT for a part of it.")
        found[name] = (folder, int(count or 0))
    return found


def seconds_of_calls(
    call: Callable[[], object], *, budget: float = 1.0, least: int = 3, warm: bool = True
) -> list[float]:
    """Of as many calls as fit the budget, after one to warm up that is not counted."""
    if warm:
        call()
    times: list[float] = []
    while len(times) < least or (sum(times) < budget and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def best_seconds(
    call: Callable[[], object], *, budget: float = 1.0, least: int = 3, warm: bool = True
) -> float:
    """The shortest of those calls."""
    return min(seconds_of_calls(call, budget=budget, least=least, warm=warm))


def peak_extra_bytes(call: Callable[[], object]) -> int:
    """How far one call raises the process's resident memory above what it holds before (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call()
    return max(0, resident("VmHWM") - before)


def resident(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def in_own_process(
    script: str,
    question: dict[str, Any],
    timeout: float = 600,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Ask `script --child QUESTION` for one JSON line; an `error` entry says why there is none.

    What a peer prints around it is passed over. The `environment` is added to this process's own.
    """
    command = [sys.executable, script, "--child", json.dumps(question)]
    answer = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(environment or {})},
    )
    if answer.returncode:
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        return {"error": last[0][:200]}
    lines = [line for line in answer.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"error": "it printed no answer"}


def interleave(questions: Sequence[Any], rounds: int) -> Iterator[tuple[int, Any]]:
    """Every question once a round, with its round; each round begins at another place.

    >>> [question for _, question in interleave("abc", 3)]
    ['a', 'b', 'c', 'b', 'c', 'a', 'c', 'a', 'b']
    """
    for turn in range(rounds):
        first = turn * len(questions) // rounds
        for question in [*questions[first:], *questions[:first]]:
            yield turn, question


def fastest_way(ways: Sequence[Sequence[float]], rounds: int) -> Sequence[float] | None:
    """Of several ways, the one with the least median; None where none lasted all rounds.

    >>> fastest_way([[3.0, 1.0, 5.0], [2.0, 2.5, 2.0], [1.0]], rounds=3)
    [2.0, 2.5, 2.0]
    """
    return min((way for way in ways if len(way) == rounds), key=median, default=None)


def clearly_slower(times: Sequence[float], others: Sequence[float], factor: float = 1.15) -> bool:
    """Whether the first round of one way was so much slower than another's that it need not go on.

    >>> clearly_slower([1.2], [1.0]), clearly_slower([1.1], [1.0]), clearly_slower([9.0], [])
    (True, False, False)
    """
    return bool(times and others) and times[0] > factor * others[0]


def keep_record(
    name: str,
    recipe: dict[str, Any],
    metrics: dict[str, float],
    start: float,
    curves: dict[str, Any] | None = None,
    seed: int = 0,
) -> None:
    """Write what was measured since `start` (time.time) below results/ and say where."""
    record = Record(
        experiment=name,
        profile="desk",
        recipe=recipe,
        seed=seed,
        metrics=metrics,
        curves=curves or {},
        code=code_version(),
        hardware=hardware(),
        seconds=round(time.time() - start, 1),
    )
    print(record.write(Path(__file__).parent.parent / "results"))
