"""Inside DDP the loss behaves like any other: gradients are the mean over processes."""

import json
import os
import subprocess
import sys

import pytest

WORKER = """
import json, os, torch, eqco
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(6, 4).double()
views = torch.randn(2, 2, 8, 6, dtype=torch.float64)
wrapped = DistributedDataParallel(model)
loss_fn = eqco.EqCoLoss(alpha=64)
keys = torch.randn(40, 4, dtype=torch.float64)
both = wrapped(torch.cat([views[rank, 0], views[rank, 1]]))
loss_fn(both[:8], both[8:], keys).backward()
shared = model.weight.grad.clone()
expected = torch.zeros_like(shared)
for other in range(2):
    model.zero_grad()
    both = model(torch.cat([views[other, 0], views[other, 1]]))
    loss_fn(both[:8], both[8:], keys).backward()
    expected += model.weight.grad / 2
print(json.dumps(float((shared - expected).abs().max())))
dist.destroy_process_group()
"""


@pytest.mark.end_to_end
def test_two_processes_average_the_gradients_of_the_loss(tmp_path):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for worker in workers:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        assert json.loads(output.strip().splitlines()[-1]) < 1e-12
