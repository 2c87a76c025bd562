"""`eqco` commands as processes of their own that need not import torch each time.

Run as a script it imports everything once, then forks a process for each command it is told of:
the same code, the same exit code, and as easily killed. `Warm` is the other end of its pipes.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path


class Warm:
    """Starts commands; to be closed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.count = 0
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def start(self, *arguments, limits=None) -> "Command":
        """Start `eqco ARGUMENTS`, under resource limits such as {"RLIMIT_FSIZE": 1000}."""
        self.count += 1
        log = self.folder / f"{self.count}.log"
        argv = [str(argument) for argument in arguments]
        pid = self.ask({"argv": argv, "log": str(log), "limits": limits or {}})
        return Command(self, pid, log)

    def run(self, *arguments, limits=None) -> "Command":
        """Start `eqco ARGUMENTS` and wait for its end."""
        command = self.start(*arguments, limits=limits)
        command.wait()
        return command

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=60)


class Command:
    """One command that was started."""

    def __init__(self, warm: Warm, pid: int, log: Path):
        self.warm, self.pid, self.log = warm, pid, log
        self.code: int | None = None
        self.peak_bytes = 0

    def wait(self, seconds: float = 300) -> int:
        """The exit code; minus the signal's number if one ended it."""
        self.code, self.peak_bytes = self.warm.ask({"wait": self.pid, "seconds": seconds})
        return self.code

    def kill(self) -> int:
        """SIGKILL, and see that it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def until(self, condition, seconds: float = 300, pause: float = 0.001):
        """Wait for something that the command does; it must not end before."""
        deadline = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            gone = not Path(f"/proc/{self.pid}").exists() or state_of(self.pid) == "Z"
            assert not gone, f"it ended too early:\n{self.output}"
            assert time.monotonic() < deadline, f"nothing within {seconds} s:\n{self.output}"
            time.sleep(pause)

    @property
    def output(self) -> str:
        """What it printed, on either stream."""
        return self.log.read_text()

    def refused(self, *parts: str) -> str:
        """Its message, which has these parts, in order; no traceback, an exit code to go by."""
        text = self.output
        assert "Traceback" not in text, text
        assert self.code in (1, 2), text
        last = text.strip().splitlines()[-1]
        assert last.startswith("eqco: "), text
        place = 0
        for part in parts:
            assert part in last[place:], f"{part!r} is not in {last!r}"
            place = last.index(part, place)
        return last


def state_of(pid: int) -> str:
    """R, S, Z, …; "Z" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def children_of(pid: int) -> list[int]:
    """The processes that a process started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def serve() -> None:
    """Fork a process per command, until the pipe is closed."""
    import torch

    import eqco.cli.data
    import eqco.cli.train  # noqa: F401
    from eqco.cli.main import main

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps(wait_for(request["wait"], request["seconds"])), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for number, stream in enumerate((nothing, log, log)):
                os.dup2(stream, number)
            for name, value in request["limits"].items():
                resource.setrlimit(getattr(resource, name), (value, value))
            sys.exit(main(request["argv"]))
        print(json.dumps(pid), flush=True)


def wait_for(pid: int, seconds: float) -> tuple[int, int]:
    """Exit code and largest resident memory; past the time it is killed."""
    deadline = time.monotonic() + seconds
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


if __name__ == "__main__":
    serve()
