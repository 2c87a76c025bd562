"""A training that takes a second or two, and what it has come to."""

import torch

from eqco.runtime.checkpoints import read_checkpoint

SMALL = ["--unlabelled", "--profile", "demo", "--data.image-size", 12]
SMALL += ["--training.num-queries", 16, "--method.count", 4, "--optimiser.warmup-epochs", 0]
SMALL += ["--training.save-every", 1, "--training.log-every", 1]  # 48 images: three steps an epoch


def saved_step(run):
    """The step of the last checkpoint, which must be whole if there is one."""
    return read_checkpoint(run.last)["step"] if run.last.exists() else 0


def logged_step(run):
    """The last step that metrics tell of."""
    try:
        return run.metrics.read_text().count("\n")
    except FileNotFoundError:
        return 0


def assert_same_end(run, other):
    ends = [read_checkpoint(each.last) for each in (run, other)]
    assert_same(ends[0], ends[1], "checkpoint")
    assert run.read_metrics() == other.read_metrics()


def assert_same(one, other, name):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), name
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_same(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), name
        for place, (first, second) in enumerate(zip(one, other, strict=True)):
            assert_same(first, second, f"{name}.{place}")
    else:
        assert one == other, name
