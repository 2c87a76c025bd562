"""The benchmarks that build a training step by hand still build one."""

import importlib
import os
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
    for name in ("step", "loading", "small_batch", "ours", "photos", "beside_work", "measure"):
        sys.modules.pop(name, None)


def test_a_step_of_moco_takes_time():
    question = {"backbone": "light", "num_queries": 8, "size": 32, "count": 16, "budget": 0.01}
    assert importlib.import_module("step").child(question)["seconds"] > 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_without_its_data_moves_the_weights(precision):
    step = importlib.import_module("loading").training_step("light", precision)
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


def test_the_parts_of_a_profile_are_those_of_a_step_that_trains(monkeypatch):
    """Beside them stands a whole step as the trainer takes it."""
    ours, photos = importlib.import_module("ours"), importlib.import_module("photos")
    monkeypatch.setattr(photos, "IMAGES", 32)
    monkeypatch.setattr(ours, "WARM_STEPS", 1)
    monkeypatch.setattr(ours, "PROFILED_STEPS", 3)
    question = {"backbone": "light", "size": 32, "n": 32, "workers": 0, "folder": None}
    found = ours.profile(question)
    assert list(found)[-2:] == ["diagnostics", "whole step"]
    assert len(found) == 10
    assert min(found.values()) > 0


def test_the_way_of_one_thread_keeps_it_and_the_others_take_all_cores(monkeypatch):
    module = importlib.import_module("beside_work")
    counts = {}
    try:
        for way in ("1 thread", "default"):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            for name, value in module.WAYS[way].items():
                monkeypatch.setenv(name, value)
            module.take_threads()
            counts[way] = torch.get_num_threads()
    finally:
        torch.set_num_threads(1)  # as all tests have it
    assert counts == {"1 thread": 1, "default": len(os.sched_getaffinity(0))}
