"""Several processes that train as one: ranks, devices and the few collectives they need.

torchrun starts them and puts their ranks into the environment. Without it there is one process, and
every function here answers for that one at no cost. All processes must call these functions in the
same order.
"""

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eqco.runtime.errors import InputError
from eqco.runtime.neighbours import ExchangeError, Neighbours, all_on_one_machine

# Seconds that the others have to say that they, too, are waiting, before one is called lost.
GRACE = 5.0

# How gloo begins what it says, which torch raises as a plain RuntimeError: its own file and line.
GLOO = re.compile(r"\[\S*gloo/\S+:\d+\] ")

# The others, where all are on this machine and exchange tensors of the CPU by themselves.
_neighbours: Neighbours | None = None


class LostProcessError(InputError):
    """A process ended or does not answer; says which."""


def rank() -> int:
    """The number of this process among all, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_writer() -> bool:
    """Whether this process is the one that writes files."""
    return rank() == 0


def under_torchrun() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def environment_rank() -> int:
    """The number that torchrun gave this process, before it has joined the others."""
    return int(os.environ.get("RANK", "0"))


def job() -> str | None:
    """A name for this job of torchrun, the same after its processes were started again.

    Without a name of its own (`--standalone` or `--rdzv-id` give one) it is known by its launcher.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"launcher {os.getppid()}" if name == "none" else name


@contextmanager
def process_group(device: torch.device | str, *, timeout: float = 600.0) -> Iterator[torch.device]:
    """Join the processes that torchrun started, for the length of this block.

    A group that the caller has made is used as it is. NCCL carries what is on GPUs, gloo the rest.
    After `timeout` seconds the missing processes are named. Gives the device of this process: plain
    `cuda` becomes its own GPU.
    """
    device = own_device(device)
    if dist.is_initialized() or not under_torchrun():
        yield device
        return
    check_timeout(timeout)
    store, number, count = join_group(device, timedelta(seconds=timeout))
    begun = time.monotonic()
    global _neighbours
    try:
        if all_on_one_machine():
            _neighbours = Neighbours(store, number, count, timeout)
        yield device
    except (RuntimeError, dist.DistError) as error:
        if not is_connection_error(error):
            raise
        # the others may wait for this one in turn: it leaves, so that they can say that they do
        leave_group()
        lost = lost_ranks(store, number, count)
        raise LostProcessError(
            f"rank {number} of {count} waited for {rank_names(lost)}, which ended or did not "
            f"answer for {timeout:g} s ({time.monotonic() - begun:.0f} s after the start). Its own "
            f"output says why, if it ended; continue with --resume, or raise --timeout if it was "
            f"only slow."
        ) from error
    finally:
        leave_group()


def leave_group() -> None:
    """End all exchange with the others."""
    global _neighbours
    if _neighbours is not None:
        _neighbours.close()
        _neighbours = None
    if dist.is_initialized():
        dist.destroy_process_group()


def check_timeout(timeout: float) -> None:
    """Refuse to wait for no time at all."""
    if not timeout > 0:
        raise InputError(f"--timeout {timeout}; it must be greater than 0 seconds.")


def parse_device(device: torch.device | str) -> torch.device:
    """The device of that name; a name that is none is refused."""
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise InputError(f"--device {device} is no device; choose cpu, cuda or mps.") from error


def own_device(device: torch.device | str) -> torch.device:
    """The device of this process: of several GPUs its own."""
    device = parse_device(device)
    if device.type != "cuda" or not under_torchrun():
        return device
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise InputError(
            f"process {number} of this machine has no GPU of its own: there are {there}. Start at "
            f"most {there} processes, or choose --device cpu."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def join_group(device: torch.device, timeout: timedelta) -> tuple[Any, int, int]:
    """Join the group; gives the store beside it, and the rank and number of processes."""
    try:
        store, number, count = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        store = store_of_this_start(store, number, count, timeout)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=dist.PrefixStore("collectives", store),
            rank=number,
            world_size=count,
            timeout=timeout,
        )
    except dist.DistError as error:
        raise LostProcessError(
            f"rank {environment_rank()} of {os.environ['WORLD_SIZE']} could not connect to the "
            f"others within {timeout.total_seconds():g} s ({str(error).splitlines()[0]}). Each "
            f"prints what keeps it, such as images that take long to list; raise --timeout then."
        ) from error
    return store, number, count


def store_of_this_start(store: Any, number: int, count: int, timeout: timedelta) -> Any:
    """The part of the store that only the processes of this start know.

    torchrun keeps its store when it starts the processes again, with the addresses of those that
    were lost. So rank 0 makes up a name and answers a key that no earlier start has used; it keeps
    answering until each of the others has read it.
    """
    own = uuid.uuid4().hex
    if number > 0:
        store.set(f"question/{number}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"heard/{name}/{number}", "")
        return dist.PrefixStore(name, store)
    end = time.monotonic() + timeout.total_seconds()
    missing = list(range(1, count))
    while missing:
        if time.monotonic() > end:
            raise dist.DistStoreError(f"{rank_names(missing)} did not come")
        for other in missing:
            if store.check([f"question/{other}"]):
                store.set(f"answer/{store.get(f'question/{other}').decode()}", own)
        missing = [other for other in missing if not store.check([f"heard/{own}/{other}"])]
        time.sleep(0.01)
    return dist.PrefixStore(own, store)


def is_connection_error(error: Exception) -> bool:
    """Whether an exchange with the others failed, not the computation or a worker of this one."""
    if isinstance(error, ExchangeError | dist.DistError):
        return True
    return GLOO.search(str(error)) is not None


def lost_ranks(store: Any, number: int, count: int) -> list[int]:
    """The ranks that do not say within a few seconds that they, too, wait in vain."""
    end = time.monotonic() + GRACE
    missing = [other for other in range(count) if other != number]
    try:
        store.set(f"waits/{number}", "")
        while missing and time.monotonic() < end:
            missing = [other for other in missing if not store.check([f"waits/{other}"])]
            time.sleep(0.05)
        if number == 0:  # it may keep the store: the others read it until now
            time.sleep(GRACE)
    except dist.DistError:  # the store is gone with the process that kept it
        return [0]
    return missing


def rank_names(ranks: list[int]) -> str:
    """
    >>> rank_names([1]), rank_names([0, 2]), rank_names([])
    ('rank 1', 'ranks 0, 2', 'another rank')
    """
    if not ranks:
        return "another rank"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def own_rows(count: int) -> slice:
    """The rows of this process among `count` rows of all processes, in the order of ranks.

    >>> own_rows(8)
    slice(0, 8, None)
    """
    own = count // world_size()
    return slice(rank() * own, (rank() + 1) * own)


@torch.no_grad()
def gather(rows: Tensor) -> Tensor:
    """The rows of all processes, as many from each, in the order of ranks; without gradient."""
    if world_size() == 1:
        return rows.detach()
    if _neighbours is not None and _neighbours.takes(rows):
        return torch.cat(_neighbours.gather(rows))
    parts = [rows.new_empty(rows.shape) for _ in range(world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    return torch.cat(parts)


def gather_with_gradient(rows: Tensor) -> Tensor:
    """The rows of all processes; gradient flows back to the process that each row came from.

    What arrives is the sum of all processes' gradients: with the mean that DDP takes over
    processes, the gradient of the mean of their losses.
    """
    if world_size() == 1:
        return rows
    gathered: Tensor = _GatherWithGradient.apply(rows)
    return gathered


class _GatherWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return gather(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = sum_over_processes(gradients[0].contiguous())
        return total[own_rows(len(total))]


def gather_uneven(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of ranks, where each may have another number."""
    if world_size() == 1:
        return rows
    counts = gather(torch.tensor([len(rows)], device=rows.device)).tolist()
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: len(rows)] = rows
    parts = gather(padded).chunk(world_size())
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


@torch.no_grad()
def sum_over_processes(value: Tensor) -> Tensor:
    """The sum of a tensor over processes, without gradient."""
    if world_size() == 1:
        return value.detach()
    return sum_in_place(value.detach().clone())


def sum_in_place(value: Tensor) -> Tensor:
    """Make a tensor its sum over processes, in the order of ranks where all are neighbours."""
    if _neighbours is None or not _neighbours.takes(value):
        dist.all_reduce(value)
        return value
    first, second, *others = _neighbours.gather(value)
    torch.add(first, second, out=value)
    for each in others:
        value += each
    return value


def average_in_place(value: Tensor) -> Tensor:
    """Make a tensor its mean over processes, of which there are several."""
    return sum_in_place(value).div_(world_size())


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of a tensor over processes, without gradient."""
    return sum_over_processes(value) / world_size()


def exchanges_directly() -> bool:
    """Whether `sum_over_processes` of a tensor of the CPU needs no thread of a backend."""
    return _neighbours is not None


def any_of(condition: bool) -> bool:
    """Whether it holds in any process."""
    if world_size() == 1:
        return condition
    return bool(sum_over_processes(torch.tensor(int(condition), device="cpu")) > 0)
