"""Every method of the catalog: a training that was stopped ends as one that never was."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from together import Pictures, TinyBackbone, small, tiny
from torch.testing import assert_close

from eqco.assembly import resume, train
from eqco.methods import METHODS
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.run_directory import RunDirectory

STOP = 7


def backbone():
    torch.manual_seed(0)
    return TinyBackbone()


@pytest.mark.parametrize("kind", METHODS.values(), ids=list(METHODS))
def test_stopped_and_resumed_equals_never_stopped(kind, tmp_path):
    recipe = tiny(small(kind))
    settings = replace(recipe.training, epochs=2, log_every=1, diagnose_every=3)
    recipe = replace(recipe, training=settings)

    def stop(report):
        if report.step == STOP:
            os.kill(os.getpid(), signal.SIGTERM)

    train(Pictures(), recipe, out=tmp_path / "whole", encoder=backbone())
    train(Pictures(), recipe, out=tmp_path / "cut", encoder=backbone(), show=stop)
    assert read_checkpoint(RunDirectory(tmp_path / "cut").last)["step"] == STOP
    resume(tmp_path / "cut", Pictures(), encoder=backbone())
    whole, cut = (RunDirectory(tmp_path / name) for name in ("whole", "cut"))
    states = [read_checkpoint(each.last) for each in (whole, cut)]
    for part in ("method", "optimiser", "alarms"):
        assert_close(states[1][part], states[0][part], rtol=0, atol=0)
    assert cut.read_metrics() == whole.read_metrics()
