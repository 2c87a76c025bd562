"""Inside DDP the loss behaves like any other: gradients are the mean over processes."""

import json

import pytest
from together import ended, start

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
def test_two_processes_average_the_gradients_of_the_loss(warm):
    for code, said, errors in ended(start(warm, ["-c", WORKER], 2)):
        assert code == 0, errors
        assert json.loads(said.strip().splitlines()[-1]) < 1e-12
