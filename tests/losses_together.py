"""Losses with other libraries' calls, in as many processes as there are, each with its rows.

    python tests/losses_together.py OUT      with RANK, WORLD_SIZE, … in the environment

Each process leaves loss and weights of two steps of each case in OUT.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from sentences import ANCHORS, HARD, POSITIVES, Words, tokens
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from eqco.runtime import processes


def sentences_case(**settings):
    from eqco.integrations.sentence_transformers import EqCoRankingLoss

    def make(model):
        return EqCoRankingLoss(model, alpha=64, gather_across_devices=True, **settings)

    def given(own, step):
        rolled = [texts[step:4] + texts[:step] for texts in (ANCHORS, POSITIVES, HARD)]
        return [[tokens(texts[own], spare=3) for texts in rolled]]

    return Words, make, given


class Views(nn.Module):
    """Two views through one layer, and the loss of both."""

    def __init__(self, model, loss_fn, *more):
        super().__init__()
        self.model, self.loss_fn, self.more = model, loss_fn, more

    def forward(self, first, second):
        both = self.model(torch.cat([first, second]))
        return self.loss_fn(both[: len(first)], both[len(first) :], *self.more)


def layer():
    torch.manual_seed(0)
    return nn.Linear(6, 4).double()


def views_case(make_loss, *more):
    def make(model):
        torch.manual_seed(1)  # of a memory's first keys
        return Views(model, make_loss(), *more).double()

    def given(own, step):
        generator = torch.Generator().manual_seed(step)
        views = torch.randn(2, 4, 6, dtype=torch.float64, generator=generator)
        return views[:, own].unbind()

    return layer, make, given


def clip_loss():
    from eqco.integrations.open_clip import ClipLoss

    return ClipLoss(True, True, world_size=processes.world_size(), alpha=64)


def lightly_loss(memory):
    from eqco.integrations.lightly import NTXentLoss

    return NTXentLoss(0.2, memory, gather_distributed=True, alpha=64)


def cases():
    return {
        "sentence-transformers": sentences_case(
            directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
        ),
        "sentence-transformers, queue": sentences_case(queue_size=6, queue_decay=0.9),
        "sentence-transformers, cached": sentences_case(mini_batch_size=1),
        "open_clip": views_case(clip_loss, torch.tensor(5.0)),
        "lightly": views_case(lambda: lightly_loss(0)),
        "lightly, memory": views_case(lambda: lightly_loss((6, 4))),
    }


def two_steps(case):
    """Mean loss of each of two steps of SGD, and the weights after them."""
    make_model, make_loss, given = cases()[case]
    model = make_model()
    loss_fn = make_loss(DistributedDataParallel(model) if dist.is_initialized() else model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(2):
        optimiser.zero_grad()
        loss = loss_fn(*given(processes.own_rows(4), step))
        loss.backward()
        optimiser.step()
        losses.append(float(processes.mean_over_processes(loss.detach())))
    return losses, model.state_dict()


def main(place):
    dist.init_process_group("gloo")
    held = {case: two_steps(case) for case in cases()}
    torch.save(held, Path(place) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1])
