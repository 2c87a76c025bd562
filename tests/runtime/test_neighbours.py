"""Exchange between processes of one machine; each process is a thread here."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from eqco.runtime.neighbours import LARGEST, MESSAGE, ExchangeError, Neighbours
from eqco.runtime.processes import is_connection_error


class Store(dict):
    """What the processes use of torch's store."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key):
        while key not in self:
            pass
        return self[key]


def connected(count, timeout=20.0):
    store = Store()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: Neighbours(store, rank, count, timeout), range(count)))


def drawn(size, rank, turn, dtype):
    generator = torch.Generator().manual_seed(100 * turn + rank)
    return (100 * torch.randn(size, generator=generator)).to(dtype)


@pytest.mark.parametrize("count", [2, 3])
def test_each_gets_what_all_gave_in_the_order_of_ranks(count):
    """In messages and in shared memory that grows, in any order of sizes and dtypes."""
    sizes = [(), (5,), (3, 7), (MESSAGE // 8 + 1,), (400_000,), (2, 50_000), (0,), (900_000,)]
    turns = [(size, dtype) for size in sizes for dtype in (torch.float64, torch.float32)] * 2
    turns.append(((10,), torch.uint8))

    def check(own):
        for turn, (size, dtype) in enumerate(turns):
            found = own.gather(drawn(size, own.rank, turn, dtype))
            for rank, part in enumerate(found):
                assert torch.equal(part, drawn(size, rank, turn, dtype))

    everyone = connected(count)
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(check, everyone))
    for own in everyone:
        own.close()


@pytest.mark.parametrize("size", [3, MESSAGE])
def test_one_that_left_is_named_and_one_that_is_silent_too(size):
    """In a message, and where shared memory is to be made."""
    first, second = connected(2, timeout=0.2)
    with pytest.raises(ExchangeError, match="Timed out waiting for rank 1"):
        first.gather(torch.zeros(size))
    second.close()
    with pytest.raises(ExchangeError, match=r"Connection .*rank 1"):
        first.gather(torch.zeros(size))
    first.close()


def test_one_that_left_is_noticed_at_once_while_its_workers_hold_the_sockets():
    first, second = connected(2, timeout=20.0)
    held = [link.fileno() for link in second.sockets.values()]
    worker = subprocess.Popen(["sleep", "60"], pass_fds=held)
    try:
        second.close()
        start = time.monotonic()
        with pytest.raises(ExchangeError, match=r"Connection .*rank 1"):
            first.gather(torch.zeros(3))
        assert time.monotonic() - start < 2
    finally:
        worker.kill()
        worker.wait()
        first.close()


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
WORKER = "a worker process ended while reading for step 3, which needs a.jpg … b.jpg: "


@pytest.mark.parametrize(
    ("error", "of_another_rank"),
    [
        (ExchangeError("Timed out waiting for rank 1"), True),
        (RuntimeError(f"{GLOO}pair.cc:561] Connection closed by peer [127.0.0.1]:11670."), True),
        (RuntimeError(f"{GLOO}unbound_buffer.cc:78] Timed out waiting 3000ms for recv"), True),
        (dist.DistBackendError("NCCL error"), True),
        (RuntimeError(WORKER + repr(ConnectionResetError(104, "Connection reset by peer"))), False),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Broken pipe."), False),
        (RuntimeError("the dataset gloomy: Timed out waiting for its server"), False),
    ],
)
def test_what_a_worker_of_its_own_says_is_not_taken_for_a_lost_rank(error, of_another_rank):
    assert is_connection_error(error) is of_another_rank


def test_what_is_larger_or_elsewhere_is_left_to_torch():
    first, second = connected(2)
    assert first.takes(torch.empty(LARGEST, dtype=torch.uint8))
    assert not first.takes(torch.empty(LARGEST + 1, dtype=torch.uint8))
    assert not first.takes(torch.empty(3, device="meta"))
    first.close()
    second.close()
