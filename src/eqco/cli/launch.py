"""What the commands that train share: options, restarts, and several processes."""

import logging
import os
import shlex
import signal
import sys
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from eqco.runtime import processes
from eqco.runtime.cores import available_cores
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory

__all__ = [
    "LaunchOptions",
    "exit_stopped",
    "is_restarted",
    "launch",
    "refused_flag",
    "speaks",
]

BESIDE_RESUME = ("--resume", "--device", "--help", "--processes", "--restarts", "--timeout")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Where to train, and in how many processes."""

    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """Where to train: cpu, cuda, mps."""
    processes: int = 1
    """How many processes of this machine train together; under torchrun leave it out."""
    restarts: int = 0
    """With --processes: how often they are started again, from the last checkpoint, when one is
    lost."""
    timeout: float = 600.0
    """Seconds that a process waits for the others before it names the missing ones."""

    def check(self) -> None:
        """Refuse numbers of processes and restarts that no training can have."""
        if self.processes < 1:
            raise InputError(f"--processes {self.processes}; it must be at least 1.")
        if self.restarts and self.processes == 1:
            raise InputError(
                f"--restarts {self.restarts} without --processes; it belongs to several processes."
            )

    def launch(self, command: str, arguments: Sequence[str]) -> None:
        """Run the command as it was given in so many processes."""
        processes.check_timeout(self.timeout)
        given = drop_flags(arguments, ("--processes", "--restarts"))
        launch([command, *given], count=self.processes, restarts=self.restarts)


def speaks() -> bool:
    """Whether this process prints: it is the first of those that train together."""
    return not (processes.under_torchrun() and processes.environment_rank() > 0)


def is_restarted(place: Path) -> bool:
    """Whether this job has trained here before one of its processes was lost; says so."""
    restarted = RunDirectory(place).belongs_to(processes.job())
    if restarted and speaks():
        print(f"started again after a process was lost: resuming {place}")
    return restarted


def exit_stopped(signal_name: str, place: Path, resume: str, *, after: str = "") -> NoReturn:
    """Say what is saved and how to resume it; end with the exit code of the signal."""
    if speaks():
        print(f"stopped by {signal_name}{after}; saved {RunDirectory(place).last}")
        print(f"resume with: {resume} --resume {shlex.quote(str(place))}")
    raise SystemExit(130 if signal_name == "SIGINT" else 143)


def refused_flag(arguments: Sequence[str], allowed: Collection[str] = ()) -> str | None:
    """The first flag beside --resume that a resumed run, which keeps its settings, cannot take."""
    flags = [argument.split("=")[0] for argument in arguments if argument.startswith("--")]
    if "--resume" not in flags:
        return None
    return next((flag for flag in flags if flag not in (*BESIDE_RESUME, *allowed)), None)


def drop_flags(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The arguments less some flags and their values.

    >>> drop_flags(["photos", "--processes", "2", "--restarts=1"], ("--processes", "--restarts"))
    ['photos']
    """
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in flags:
            skip = True
        elif argument.split("=")[0] not in flags:
            kept.append(argument)
    return kept


def threads_of_each(count: int) -> int:
    """In how many threads each of so many processes computes: together in one for each core, as one
    process by itself does.
    """
    return max(1, len(available_cores()) // count)


def launch(arguments: Sequence[str], *, count: int, restarts: int = 0) -> None:
    """Run `eqco ARGUMENTS` in `count` processes that know each other, as torchrun does.

    Ends this process with the exit code of the process that failed, if one did: what it has to say
    it has said itself. After one is lost, all are started again up to `restarts` times.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if processes.under_torchrun():
        raise InputError(
            f"--processes {count} under torchrun, which has started the processes already. "
            f"Leave it out."
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_each(count)))
    # the launcher's own tables of errors: the processes print their own
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=restarts,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "eqco", *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        # the process that has given its reason (2) goes before those that were lost with it
        number, code = min(codes.items(), key=lambda item: (item[1] < 0, item[1] != 2))
        if code < 0:
            name = signal.Signals(-code).name
            print(f"eqco: process {number} of {count} was ended by {name}.", file=sys.stderr)
        raise SystemExit(128 - code if code < 0 else code) from error
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from error
