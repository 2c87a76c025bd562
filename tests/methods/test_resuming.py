"""Every method of the catalog: a training that was stopped ends as one that never was, and one that
extends another begins with all that it has trained.
"""

import copy
import os
import signal
from dataclasses import replace

import pytest
import torch
from together import Pictures, light, small
from torch.testing import assert_close

from eqco.assembly import resume, runs, train
from eqco.methods import METHODS, SwAVSettings
from eqco.recipes import with_settings
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.loop import run_training

STOP = 7


def stop_at(step):
    """What shows the reports, and stops the training there."""

    def show(report):
        if report.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return show


@pytest.fixture
def begun(monkeypatch):
    """The methods of runs as they were before their first step."""
    methods = []

    def keep(components, *given, **how):
        methods.append(copy.deepcopy(components.method))
        return run_training(components, *given, **how)

    monkeypatch.setattr(runs, "run_training", keep)
    return methods


@pytest.mark.parametrize("kind", METHODS.values(), ids=list(METHODS))
def test_an_extended_run_begins_with_every_trained_parameter(kind, begun, tmp_path):
    recipe = with_settings(light(small(kind)), log_every=1)
    train(Pictures(), recipe, out=tmp_path / "run", show=stop_at(STOP))
    other = with_settings(recipe, seed=5)
    train(Pictures(), other, out=tmp_path / "more", extend=tmp_path / "run", show=stop_at(1))
    state = read_checkpoint(RunDirectory(tmp_path / "run").last)["method"]
    pairs = zip(*(method.named_parameters() for method in begun), strict=True)
    for (name, first), (_, extended) in pairs:
        if extended.requires_grad:
            assert torch.equal(extended, state[name]), name
            assert not torch.equal(extended, first), f"{name} did not move"


@pytest.mark.parametrize("kind", METHODS.values(), ids=list(METHODS))
def test_stopped_and_resumed_equals_never_stopped(kind, tmp_path):
    recipe = light(small(kind))
    settings = replace(recipe.training, epochs=2, log_every=1, diagnose_every=3)
    recipe = replace(recipe, training=settings)

    train(Pictures(), recipe, out=tmp_path / "whole")
    train(Pictures(), recipe, out=tmp_path / "cut", show=stop_at(STOP))
    assert read_checkpoint(RunDirectory(tmp_path / "cut").last)["step"] == STOP
    resume(tmp_path / "cut", Pictures())
    whole, cut = (RunDirectory(tmp_path / name) for name in ("whole", "cut"))
    states = [read_checkpoint(each.last) for each in (whole, cut)]
    for part in ("method", "optimiser", "alarms"):
        assert_close(states[1][part], states[0][part], rtol=0, atol=0)
    assert cut.read_metrics() == whole.read_metrics()


def test_what_does_not_fit_the_run_that_is_extended_is_refused(tmp_path):
    recipe, run = with_settings(light(small(SwAVSettings)), log_every=1), tmp_path / "run"
    train(Pictures(), recipe, out=run, show=stop_at(1))
    count = recipe.method.num_prototypes - 1
    fewer, narrow = (
        with_settings(recipe, **{name: each})
        for name, each in (("num_prototypes", count), ("embedding_dim", 3))
    )
    for given, said in (
        ({"recipe": fewer}, rf"prototypes\.weight of shape .* of \({count}, 4\)\. .* --init RUN\."),
        ({"recipe": narrow}, r"--extend: the run has encoder\.head.* Leave out what changes it\.$"),
        ({"recipe": recipe, "init": run}, "--init .* beside --extend .*: choose one"),
        ({}, r"without the recipe of that run\. Give recipe=eqco\.read_recipe\("),
    ):
        with pytest.raises(InputError, match=said):
            train(Pictures(), out=tmp_path / "more", extend=run, **given)
    assert not (tmp_path / "more").exists()
