"""Python's processes that need not import torch each time: `eqco` commands, modules and scripts.

Run as a script it imports everything once, then forks a process for each command it is told of:
the same code, the same exit code, and as easily killed. `Warm` is the other end of its pipes.
"""

import atexit
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

# what most commands need, also what a training imports on its way
LOADED = ("eqco.cli.data", "eqco.cli.train", "torch._dynamo", "torch.utils.tensorboard")
LOADED += ("matplotlib.backends.backend_agg",)


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
        return self.python("-m", "eqco", *arguments, limits=limits)

    def python(self, *command, cwd=None, limits=None, **environment) -> "Command":
        """Start `python COMMAND`, which is `-m MODULE …`, `-c CODE` or `SCRIPT …`."""
        self.count += 1
        logs = [self.folder / f"{self.count}.{stream}" for stream in ("said", "errors")]
        given = [str(each) for each in command]
        request = {"command": given, "logs": logs, "cwd": cwd or os.getcwd()}
        pid = self.ask({**request, "limits": limits or {}, "environment": environment})
        return Command(self, pid, *logs)

    def run(self, *arguments, limits=None) -> "Command":
        """Start `eqco ARGUMENTS` and wait for its end."""
        command = self.start(*arguments, limits=limits)
        command.wait()
        return command

    def load(self, module):
        """Import a module that several commands to come need."""
        self.ask({"module": module})

    def ask(self, request):
        self.process.stdin.write(json.dumps(request, default=str) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=60)


class Command:
    """One command that was started."""

    def __init__(self, warm: Warm, pid: int, *logs: Path):
        self.warm, self.pid, self.logs = warm, pid, logs
        self.code: int | None = None
        self.peak_bytes = 0

    def wait(self, seconds: float = 300) -> int:
        """The exit code; minus the signal's number if one ended it."""
        if self.code is None:
            self.code, self.peak_bytes = self.warm.ask({"wait": self.pid, "seconds": seconds})
        return self.code

    def kill(self) -> int:
        """SIGKILL unless it has ended, and see that it is gone."""
        if self.code is None:
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
    def said(self) -> str:
        """What it printed on standard output."""
        return self.logs[0].read_text()

    @property
    def errors(self) -> str:
        """What it printed on standard error."""
        return self.logs[1].read_text()

    @property
    def output(self) -> str:
        """What it printed, errors last."""
        return self.said + self.errors

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
    for module in LOADED:
        importlib.import_module(module)
    import torch

    import eqco.cli.train

    torch.set_num_threads(1)
    eqco.cli.train.parse([])  # what the parser imports and keeps
    gc.freeze()  # what is here stays shared with the processes to come
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps(wait_for(request["wait"], request["seconds"])), flush=True)
            continue
        if "module" in request:
            importlib.import_module(request["module"])
            print("null", flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            end(exit_code(**request))
        print(json.dumps(pid), flush=True)
    end(0)


def end(code: int) -> NoReturn:
    """End as Python does, but leave what was imported to the system: to free it takes seconds."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(**request) -> int:
    """Run `python COMMAND` in this process, to its end."""
    try:
        become(**request)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def become(command, logs, cwd, limits, environment) -> None:
    """Be `python COMMAND`."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, log in enumerate(logs, start=1):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(cwd)
    os.environ.update(environment)
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    kind, *rest = command
    sys.argv = rest if kind in ("-m", "-c") else command
    if kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(rest[0], {"__name__": "__main__"})
    else:
        runpy.run_path(kind, run_name="__main__")


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
