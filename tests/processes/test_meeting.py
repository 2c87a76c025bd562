"""How processes meet: after a restart they must not meet those that are gone."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import sleep

import pytest
import torch.distributed as dist

from eqco.runtime.processes import store_of_this_start

LIMIT = timedelta(seconds=20)


@pytest.fixture
def store():
    """One that outlives the processes, as torchrun's does."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=LIMIT, wait_for_workers=False)


def start(store, order, limit=LIMIT):
    """What the processes of one start share, by rank; they come one after the other."""
    count = len(order)
    with ThreadPoolExecutor(count) as pool:
        coming = {}
        for number in order:
            own = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=limit)
            coming[number] = pool.submit(store_of_this_start, own, number, count, limit)
            sleep(0.1)
        return [coming[number].result() for number in range(count)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (1, 2, 3, 0)])
def test_each_start_shares_what_no_earlier_start_knows(store, order):
    for attempt in range(3):
        shared = start(store, order)
        assert not any(each.check(["address"]) for each in shared)
        shared[0].set("address", str(attempt))
        assert [each.get("address").decode() for each in shared] == [str(attempt)] * len(order)


def test_ranks_that_do_not_come_are_named(store):
    with pytest.raises(dist.DistStoreError, match="ranks 1, 2 did not come"):
        store_of_this_start(store, 0, 3, timedelta(seconds=0.2))


def test_a_rank_whose_first_does_not_come_gives_up(store):
    own = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=0.5))
    with pytest.raises(dist.DistStoreError):
        store_of_this_start(own, 1, 2, timedelta(seconds=0.5))
