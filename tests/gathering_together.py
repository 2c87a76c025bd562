"""Steps of a loop of one's own, in as many processes as there are, with negatives of all of them.

    python tests/gathering_together.py OUT      with RANK, WORLD_SIZE, … in the environment

Each process leaves the mean loss, the gradients and the weights after a step of SGD in OUT.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import eqco
from eqco.contrast.normaliser import NEVER
from eqco.runtime import processes

N, DIM = 16, 5
IDS = torch.tensor([0, 1, 2, 3, 0, 5, 6, 7, 8, 9, 1, 11, 12, 13, 14, 15])


def pair(loss_fn, model, first, second, ids):
    both = model(torch.cat([first, second]))
    return loss_fn(both[: len(first)], both[len(first) :], ids=ids)


def with_keys(model, first, second, ids):
    """Negatives are a tensor of one's own, with ids and weights."""
    embedded = model(torch.cat([first, second]))
    queries, keys = embedded[: len(first)], embedded[len(first) :]
    return eqco.contrastive_loss(
        queries, keys, keys * 2, alpha=64, ids=ids, key_ids=ids, log_weights=ids.double() / 8,
        gather=True,
    )  # fmt: skip


def beside_a_queue(model, first, second, ids):
    embedded = model(torch.cat([first, second]))
    queries, keys = embedded[: len(first)], embedded[len(first) :]
    queue = eqco.Negatives(torch.eye(4, dtype=torch.float64))
    negatives = eqco.combine_negatives(eqco.in_batch_negatives(keys, gather=True), queue)
    return eqco.contrastive_loss(queries, keys, negatives, alpha=64)


def beside_a_queue_of_ids(model, first, second, ids):
    embedded = model(torch.cat([first, second]))
    queries, keys = embedded[: len(first)], embedded[len(first) :]
    queue = eqco.KeyQueue(24, 4, dtype=torch.float64, with_ids=True)
    queue.enqueue(first[:, :4], ids=ids, gather=True)
    batch = eqco.in_batch_negatives(keys, gather=True, ids=ids)
    negatives = eqco.combine_negatives(batch, queue.negatives())
    return eqco.contrastive_loss(queries, keys, negatives, alpha=64, ids=ids)


def skipping(model, first, second, ids):
    """Some ids have no negatives but in some processes: the mean is over all that have."""
    embedded = model(torch.cat([first, second]))
    queries, keys = embedded[: len(first)], embedded[len(first) :]
    return eqco.contrastive_loss(
        queries, keys, keys, alpha=64, gather=True, ids=(ids < 9).long(),
        key_ids=torch.ones_like(ids), on_empty="skip",
    )  # fmt: skip


def remembering(model, first, second, ids):
    """A second visit, whose history is that of the first."""
    loss_fn = eqco.RunningNormaliser(20, alpha=64, decay=0.7, gather=True).double()
    rank, n = processes.rank(), len(first)
    index = (torch.arange(16) * 3 % 20)[rank * n : (rank + 1) * n]
    loss_fn(first, second, index=index)
    both = model(torch.cat([first, second]))
    loss = loss_fn(both[:n], both[n:], index=index, ids=ids)
    held = loss_fn.log_mean[loss_fn.log_mean > NEVER]
    assert len(held) == N  # those of all processes
    return loss + held.mean()  # which has no gradient, and must agree


def cases():
    settings = {"alpha": 64, "temperature": 0.2, "gather": True}
    batch, views = eqco.EqCoLoss(**settings), eqco.NTXentLoss(**settings)
    towers = eqco.TwoTowerLoss(**settings)
    return {
        "batch": lambda *given: pair(batch, *given[:3], None),
        "batch, ids": lambda *given: pair(batch, *given),
        "views": lambda *given: pair(views, *given[:3], None),
        "views, ids": lambda *given: pair(views, *given),
        "keys": with_keys,
        "queue": beside_a_queue,
        "queue, ids": beside_a_queue_of_ids,
        "skip": skipping,
        "towers": lambda *given: pair(towers, *given[:3], None),
        "towers, ids": lambda *given: pair(towers, *given),
        "remembered": lambda *given: remembering(*given[:3], None),
        "remembered, ids": remembering,
        "cached": lambda model, first, second, ids: eqco.cached_backward(
            model, (first, second), lambda *both: towers(*both, ids=ids), micro_batch=2
        ),
    }


def one_step(case):
    """Loss, gradient and weights after a step of SGD, of the batch of all processes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, DIM), torch.nn.Tanh(), torch.nn.Linear(DIM, 4))
    model = model.double()
    first, second = torch.randn(2, N, 6, dtype=torch.float64)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    own = processes.own_rows(N)
    loss = cases()[case](wrapped, first[own], second[own], IDS[own])
    if loss.requires_grad:
        loss.backward()
    gradient = {name: each.grad.clone() for name, each in model.named_parameters()}
    optimiser.step()
    return processes.mean_over_processes(loss), gradient, model.state_dict()


def exchanges():
    """How often DDP exchanges gradients in a step of cached_backward with eight micro-batches."""
    wrapped, calls = DistributedDataParallel(torch.nn.Linear(6, 4)), []

    def count(group, bucket):
        calls.append(bucket.index())
        return allreduce_hook(group, bucket)

    wrapped.register_comm_hook(None, count)
    eqco.cached_backward(wrapped, torch.randn(2, 8, 6).unbind(), eqco.EqCoLoss(), micro_batch=2)
    return len(calls)


def main(place):
    dist.init_process_group("gloo")
    held = {case: one_step(case) for case in cases()}
    held["exchanges"] = exchanges()
    torch.save(held, Path(place) / f"{dist.get_world_size()}-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert "RANK" in os.environ
    main(sys.argv[1])
