"""Many trainings at once, as tasks of Ray: on the cores of this machine, or on a cluster.

What a training leaves (checkpoints, metrics, its record) is in folders that all machines share, and
nothing but the task and its progress goes through Ray. So a training whose worker is lost is
started again by Ray wherever there is room, and resumes from its last checkpoint.
"""

import logging
import os
import platform
import shutil
import socket
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from eqco.runtime.cores import available_cores
from eqco.runtime.errors import InputError, MissingExtraError
from eqco.runtime.records import code_version
from eqco.runtime.run_directory import RunInUseError

__all__ = ["LOCAL", "Cluster", "perform"]

LOCAL = "local"
STORE = 80 * 2**20  # bytes of Ray's object store, about the least it takes: nothing is kept there
EVERY = 0.5  # seconds between two reports of a task, and between two looks at all of them
PATIENCE = 120.0  # seconds that trainings have to save themselves when they are stopped

Advance = Callable[[int], None]
Job = TypeVar("Job", bound=Callable[[Advance], None])


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which cluster, and what each task takes of it.

    Args:
        address: of a cluster that is there, as `ray.init` takes it; `local`: one of this machine's
            cores and GPUs, started for the tasks and stopped after them.
        cores: of each task, which computes in as many threads.
        gpus: of each task.
        restarts: how often a task is started again when its worker is lost.
    """

    address: str = LOCAL
    cores: int = 1
    gpus: float = 0
    restarts: int = 3


def perform(
    jobs: Sequence[Job],
    cluster: Cluster,
    *,
    shared: Path,
    show: Callable[[int, str, int], None] = lambda number, state, done: None,
) -> Generator[tuple[Job, InputError | None], None, None]:
    """Do all jobs on the cluster, as many at a time as it has room for.

    Gives each job when it has ended, with the error that the user can mend, if there was one. When
    this generator is closed, or interrupted, running trainings save themselves and stop.

    Args:
        jobs: each is called with a function that takes units of progress; must be picklable.
        cluster: where.
        shared: a folder that all machines see under the same path.
        show: gets the number of a job, where it runs, and the units of progress it has done so far.
    """
    if not jobs:
        return
    ray = import_ray()
    with connected(cluster.address), witnessed(shared) as witness:
        refuse_too_large(ray.nodes(), cluster)
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        board = ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()
        remote = ray.remote(
            num_cpus=cluster.cores, num_gpus=cluster.gpus, max_retries=cluster.restarts
        )(work)
        code = code_version()

        def submit(number: int) -> Any:
            return remote.remote(jobs[number], number, board, cluster.cores, code, witness)

        running = {submit(number): number for number in range(len(jobs))}
        in_use: list[int] = []  # wait for another job, which trains what they need as well
        try:
            while running:
                ended, _ = ray.wait(list(running), timeout=EVERY)
                for number, (host, done) in read_board(board).items():
                    show(number, host, done)
                for task in ended:
                    number = running.pop(task)
                    error = outcome(task, cluster.restarts)
                    if isinstance(error, RunInUseError) and running:
                        in_use.append(number)
                        continue
                    running |= {submit(again): again for again in in_use}
                    in_use = []
                    yield jobs[number], error
        finally:
            stop(list(running))


def import_ray() -> Any:
    """The package, without its reports home and its warnings; a missing one is answered."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
            import ray.util.scheduling_strategies
    except ModuleNotFoundError as error:
        raise MissingExtraError("ray", "cluster") from error
    return ray


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to a cluster; a local one lives as long as this block."""
    ray = import_ray()
    how: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    folder = None
    try:
        if address == LOCAL:
            # not below TMPDIR: the names of Ray's sockets must be short
            folder = tempfile.mkdtemp(prefix="eqco-ray-", dir="/tmp")
            how |= {"address": "local", "_temp_dir": folder, "include_dashboard": False}
            how |= {"num_cpus": len(available_cores()), "object_store_memory": STORE}
            how |= {"num_gpus": torch.cuda.device_count()}
        else:
            how |= {"address": address}
        try:
            knock(address)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(**how)
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(
                f"--ray {address}: no cluster of Ray can be used there ({first_line(error)}). "
                f"Start one with: ray start --head, on each other machine ray start --address "
                f"HEAD:6379, and run this command on one of them; or give --ray local."
            ) from error
        yield
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def knock(address: str) -> None:
    """Fail at once where nothing listens at HOST:PORT: Ray itself tries for many minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def first_line(error: Exception) -> str:
    """What an error says, in short."""
    return str(error).strip().split("\n")[0].rstrip(".")


@contextmanager
def witnessed(shared: Path) -> Iterator[Path]:
    """A file in the shared folder by which a worker knows that it sees the same folder."""
    shared.mkdir(parents=True, exist_ok=True)
    witness = shared / f".shared-{uuid.uuid4().hex}"
    witness.touch()
    try:
        yield witness
    finally:
        witness.unlink(missing_ok=True)


def refuse_too_large(nodes: Sequence[Mapping[str, Any]], cluster: Cluster) -> None:
    """Refuse tasks that no machine of the cluster has room for: they would wait for ever."""
    there = [node["Resources"] for node in nodes if node["Alive"]]
    for name, wanted, flag in (("CPU", cluster.cores, "cores"), ("GPU", cluster.gpus, "gpus")):
        most = max((each.get(name, 0) for each in there), default=0)
        if wanted > most:
            raise InputError(
                f"--{flag} {wanted:g} for each training, but the largest machine of the cluster "
                f"has {most:g}. Give at most --{flag} {most:g}."
            )


class Board:
    """Where each job runs and how far it has come; lives on the machine of the command."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[str, int]] = {}

    def write(self, number: int, host: str, done: int) -> None:
        """Replace what is known of one job."""
        self.seen[number] = (host, done)

    def read(self) -> dict[int, tuple[str, int]]:
        """What changed since it was read last."""
        seen, self.seen = self.seen, {}
        return seen


def read_board(board: Any) -> dict[int, tuple[str, int]]:
    """What is new on the board; progress is only shown, so that a lost board stops nothing."""
    ray = import_ray()
    with suppress(ray.exceptions.RayError):
        return dict(ray.get(board.read.remote()))
    return {}


def work(
    job: Callable[[Advance], None], number: int, board: Any, cores: int, code: str, witness: Path
) -> InputError | None:
    """One task, in the process of a worker; what the user can mend is returned."""
    host = platform.node()
    if code_version() != code:
        return InputError(
            f"{host} has eqco {code_version()}, and this command is eqco {code}. Install the same "
            f"version on all machines: their records stand side by side."
        )
    if not witness.exists():
        return InputError(
            f"{host} does not see {witness.parent}. Trainings resume on any machine, so that their "
            f"folder must be one that all machines share, under the same path."
        )
    torch.set_num_threads(cores)
    done, told = 0, -EVERY

    def advance(count: int) -> None:
        nonlocal done, told
        done += count
        if time.monotonic() - told >= EVERY:
            told = time.monotonic()
            board.write.options(num_returns=0).remote(number, host, done)

    advance(0)
    try:
        job(advance)
    except InputError as error:
        return error
    except MissingExtraError as error:
        return InputError(f"{error} (on {host})")
    return None


def outcome(task: Any, restarts: int) -> InputError | None:
    """The error of a task that has ended, where the user can mend it."""
    ray = import_ray()
    try:
        error: InputError | None = ray.get(task)
    except ray.exceptions.RayTaskError:  # a defect, which keeps its traceback
        raise
    except ray.exceptions.RayError as lost:
        return InputError(
            f"a training was lost and started again {restarts} times, and lost again "
            f"({first_line(lost)}). Its last checkpoint is kept: find out why its worker ends "
            f"(memory is the usual reason), then run the same command to resume."
        )
    return error


def stop(tasks: Sequence[Any]) -> None:
    """Let running trainings save themselves and stop; what has not begun is dropped."""
    if not tasks:
        return
    ray = import_ray()
    for task in tasks:
        ray.cancel(task)
    ray.wait(list(tasks), num_returns=len(tasks), timeout=PATIENCE)
