"""Exchange between the processes of one machine, without gloo's threads.

gloo hands every exchange to a thread of its own, and that one to another: batch norm over processes
exchanges some hundred numbers thirty times a step, and most of the time is spent on waking threads.
Here each process writes to the others' sockets itself; what is larger goes through shared memory.
"""

import mmap
import os
import socket
import struct
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

__all__ = ["ExchangeError", "Neighbours", "all_on_one_machine"]

# Bytes that fit a socket's buffer twice over, so that all can write before any reads.
MESSAGE = 32 * 1024
# Bytes of one exchange through shared memory; more is left to gloo.
LARGEST = 32 * 1024 * 1024


class ExchangeError(RuntimeError):
    """Another process ended, or does not answer; says which."""


def all_on_one_machine() -> bool:
    """Whether torchrun's environment says so, on a system with sockets and memory by handle."""
    count = os.environ.get("WORLD_SIZE", "1")
    return sys.platform == "linux" and os.environ.get("LOCAL_WORLD_SIZE") == count


@contextmanager
def named(rank: int) -> Iterator[None]:
    """What a socket says that fails, with the rank at its other end."""
    try:
        yield
    except (BlockingIOError, TimeoutError) as error:
        raise ExchangeError(f"Timed out waiting for rank {rank}") from error
    except OSError as error:
        raise ExchangeError(f"Connection to rank {rank} failed: {error}") from error


class Neighbours:
    """A socket to each other process of this machine.

    All must call `gather` in the same order with tensors of the same size. What ends or does not
    answer for `timeout` seconds raises ExchangeError.
    """

    def __init__(self, store: Any, rank: int, count: int, timeout: float):
        self.rank, self.count = rank, count
        self.sockets: dict[int, socket.socket] = {}
        # two slots for each process, used in turn: one is written while others may still read
        self.slots: dict[int, mmap.mmap] = {}
        self.slot_size, self.turn = 0, 0
        limit = struct.pack("ll", int(timeout), int(timeout % 1 * 1e6))
        with socket.socket(socket.AF_UNIX) as listener:
            name = uuid.uuid4().hex
            listener.bind(f"\0{name}")  # a name without a file: nothing is left behind
            listener.listen(count)
            listener.settimeout(timeout)
            store.set(f"listener/{rank}", name)
            for other in range(rank):
                link = socket.socket(socket.AF_UNIX)
                with named(other):
                    link.connect(f"\0{store.get(f'listener/{other}').decode()}")
                    link.sendall(rank.to_bytes(4, "little"))
                self.sockets[other] = link
            for later in range(rank + 1, count):
                with named(later):  # or another of the later ones
                    link, _ = listener.accept()
                    number = link.recv(4, socket.MSG_WAITALL)
                self.sockets[int.from_bytes(number, "little")] = link
        for link in self.sockets.values():
            link.setblocking(True)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE)
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                link.setsockopt(socket.SOL_SOCKET, direction, limit)

    def takes(self, value: Tensor) -> bool:
        """Whether a tensor can be exchanged this way."""
        return value.device.type == "cpu" and value.nbytes <= LARGEST

    def gather(self, value: Tensor) -> list[Tensor]:
        """The tensor of every process, in the order of ranks; to be read before the next call."""
        value = value.detach().contiguous()
        own = value.view(-1).view(torch.uint8)
        if len(own) > MESSAGE:
            return [each.view(value.dtype).view(value.shape) for each in self.share(own)]
        self.send(own.numpy())
        # a copy of its own, too: the caller may write the sum of all over what it gave
        parts = [value.clone() for _ in range(self.count)]
        for rank in self.sockets:
            self.receive(rank, parts[rank].view(-1).view(torch.uint8).numpy().data)
        return parts

    def share(self, own: Tensor) -> list[Tensor]:
        """The bytes of every process, through shared memory."""
        size = len(own)
        if size > self.slot_size:
            self.make_slots(size)
        start = self.turn * self.slot_size
        self.turn = 1 - self.turn
        parts = [
            torch.frombuffer(self.slots[rank], dtype=torch.uint8, count=size, offset=start)
            for rank in range(self.count)
        ]
        parts[self.rank].copy_(own)
        # whoever says that it has written has read what was exchanged before
        self.send(b"w")
        for rank in self.sockets:
            self.receive(rank, memoryview(bytearray(1)))
        return parts

    def make_slots(self, size: int) -> None:
        """Memory of each process that all of them see; it vanishes with the last of them."""
        slot_size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        own = os.memfd_create("eqco")
        os.ftruncate(own, 2 * slot_size)
        for rank, link in self.sockets.items():
            with named(rank):
                socket.send_fds(link, [b"m"], [own])
        handles = {self.rank: own}
        for rank, link in self.sockets.items():
            with named(rank):
                said, found, _, _ = socket.recv_fds(link, 1, 1)
            if not said:
                raise ExchangeError(f"Connection closed by peer, rank {rank}")
            handles[rank] = found[0]
        self.slots = {r: mmap.mmap(each, 2 * slot_size) for r, each in handles.items()}
        self.slot_size = slot_size
        for each in handles.values():
            os.close(each)

    def send(self, message: Any) -> None:
        """The same bytes to every other process."""
        for rank, link in self.sockets.items():
            with named(rank):
                link.sendall(message)

    def receive(self, rank: int, view: memoryview) -> None:
        """Fill a buffer with what one process sent."""
        while len(view):
            with named(rank):
                count = self.sockets[rank].recv_into(view, 0, socket.MSG_WAITALL)
            if count == 0:
                raise ExchangeError(f"Connection closed by peer, rank {rank}")
            view = view[count:]

    def close(self) -> None:
        """Leave the others; they notice at once."""
        for link in self.sockets.values():
            # processes that this one has started hold the socket too, and closing it here is not
            # enough; the other end may have gone already
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
