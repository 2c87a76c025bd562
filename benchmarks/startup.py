"""Seconds from a command to its first step, and of commands that compute nothing.

    python benchmarks/startup.py --record      keep it under results/bench-startup/

`eqco train` on the embedded photos, uncompiled, until it prints its first line of metrics: Python,
torch, the data, and the first step. `by the rules` also times networks to choose a recipe.
Commands take turns, each in a process of its own.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from measure import command_line, interleave, keep_record, read_options

EQCO = [sys.executable, "-m", "eqco"]
FIRST_LINE = " loss "  # of metrics
FIRST = ["--training.log-every", "1", "--training.compile", "False"]
COMMANDS = {
    "eqco --help": (["--help"], None),
    "eqco recipes": (["recipes"], None),
    "eqco train, a recipe": (
        ["train", "groceries", "--recipe", "simo", "--profile", "embedded", *FIRST],
        FIRST_LINE,
    ),
    "eqco train, by the rules": (["train", "groceries", "--minutes", "5", *FIRST], FIRST_LINE),
}


def seconds_of(arguments: list[str], until: str | None, place: Path) -> float:
    """Until a line holds those words, or until the end."""
    out = ["--out", str(place / "run")] if until else []
    start = time.perf_counter()
    with subprocess.Popen(
        [*EQCO, *arguments, *out],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=place,
    ) as command:
        lines = []
        for line in command.stdout:
            lines.append(line)
            if until is not None and until in line:
                took = time.perf_counter() - start
                command.kill()
                return took
        command.wait()
        if until is not None or command.returncode:
            raise SystemExit(f"{' '.join(arguments)} never came to {until!r}: {''.join(lines)}")
    return time.perf_counter() - start


def main() -> None:
    options = read_options(command_line(__doc__, rounds=3, quick=False))
    begun, seconds = time.time(), {}
    for turn, name in interleave(list(COMMANDS), options.rounds):
        arguments, until = COMMANDS[name]
        with tempfile.TemporaryDirectory() as place:
            seconds.setdefault(name, []).append(seconds_of(arguments, until, Path(place)))
        print(f"round {turn + 1}: {name}: {seconds[name][-1]:.2f} s", flush=True)
    if options.record:
        metrics = {f"{name}/seconds": round(median(all_), 3) for name, all_ in seconds.items()}
        recipe = {"commands": list(COMMANDS), "rounds": options.rounds}
        keep_record("bench-startup", recipe, metrics, begun, curves={"rounds": seconds})


if __name__ == "__main__":
    main()
