"""Exchange between processes of one machine; each process is a thread here."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from eqco.runtime.neighbours import LARGEST, MESSAGE, Neighbours


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
    with pytest.raises(RuntimeError, match="Timed out waiting for rank 1"):
        first.gather(torch.zeros(size))
    second.close()
    with pytest.raises(RuntimeError, match=r"Connection .*rank 1"):
        first.gather(torch.zeros(size))
    first.close()


def test_what_is_larger_or_elsewhere_is_left_to_torch():
    first, second = connected(2)
    assert first.takes(torch.empty(LARGEST, dtype=torch.uint8))
    assert not first.takes(torch.empty(LARGEST + 1, dtype=torch.uint8))
    assert not first.takes(torch.empty(3, device="meta"))
    first.close()
    second.close()
