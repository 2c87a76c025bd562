"""The benchmarks that build a training step by hand still build one."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from eqco.data import Batch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in ("step", "loading", "small_batch", "measure"):
        sys.modules.pop(name, None)


def test_a_step_of_moco_takes_time():
    question = {"backbone": "light", "num_queries": 8, "size": 32, "count": 16, "budget": 0.01}
    assert importlib.import_module("step").child(question)["seconds"] > 0


def test_a_step_without_its_data_moves_the_weights():
    step = importlib.import_module("loading").training_step("light")
    # the encoder that the step trains is the only one it holds
    (optimiser,) = [c.cell_contents for c in step.__closure__ if hasattr(c.cell_contents, "step")]
    weights = optimiser.param_groups[0]["params"]
    before = [weight.detach().clone() for weight in weights]
    step(Batch(tuple(torch.randn(2, 20, 3, 32, 32)), torch.arange(20)), 0)
    assert any(not torch.equal(old, new) for old, new in zip(before, weights, strict=True))


@pytest.mark.parametrize("way", ["cached", "gradcache"])
def test_both_ways_of_caching_give_the_gradient_of_the_whole_batch(way, monkeypatch):
    module = importlib.import_module("small_batch")
    encoder = torch.nn.Linear(6, 4)
    views = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(0)).unbind()
    monkeypatch.setattr(module, "encoder_and_views", lambda name, count: (encoder, views))
    found = []
    for each in (way, "whole"):
        module.stepping(each, "any", 12, 5)()
        found.append(encoder.weight.grad)
    torch.testing.assert_close(*found)
