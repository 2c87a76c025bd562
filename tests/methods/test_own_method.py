"""A method of one's own, in one file and one line of the catalog, does what the others do.

tests/together.py has it among its cases: two and four processes equal one.
"""

import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from guide_method import guide_settings
from together import Pictures, TinyBackbone, tiny
from torch.testing import assert_close
from toy_method import Toy, ToySettings

from eqco.assembly import build_components, load, open_weights, resume, train
from eqco.assembly.export import export_weights
from eqco.cli.recipes import source_of_negatives
from eqco.cli.train import parse
from eqco.data import source_from_dataset
from eqco.encoders import in_channels_of
from eqco.methods import METHODS, StepOutput
from eqco.planning import plan
from eqco.recipes import RECIPES, read_recipe
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", ToySettings)


def backbone():
    torch.manual_seed(0)
    return TinyBackbone()


RECIPE = tiny(ToySettings(small_weight=0.25))
RECIPE = replace(RECIPE, training=replace(RECIPE.training, log_every=1, diagnose_every=3))


def states(*places):
    return [read_checkpoint(RunDirectory(place).last) for place in places]


def test_it_trains_all_its_parts_and_has_no_information_to_show(tmp_path):
    outcome = train(Pictures(), RECIPE, out=tmp_path / "run", encoder=backbone())
    assert outcome.step == 24
    lines = RunDirectory(tmp_path / "run").read_metrics()
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    assert not any("information" in line for line in lines)
    built = build_components(RECIPE, source_from_dataset(Pictures()), backbone=backbone())
    (state,) = states(tmp_path / "run")
    assert isinstance(built.method, Toy)
    for name, before in built.method.named_parameters():
        assert not torch.equal(state["method"][name], before), f"{name} did not move"


def test_its_two_encoders_begin_differently():
    recipe = replace(RECIPE, encoder=replace(RECIPE.encoder, backbone="light"))
    method = build_components(recipe, source_from_dataset(Pictures())).method
    pairs = zip(method.encoder.parameters(), method.other.parameters(), strict=True)
    assert any(not torch.equal(*pair) for pair in pairs)


@dataclass(frozen=True, kw_only=True)
class OneBandSettings(ToySettings):
    """The other encoder sees the first band alone."""

    def build(self, parts):
        return OneBand(parts.make_encoder(), parts.make_encoder(1, in_channels=1), 0.5, parts.seed)


class OneBand(Toy):
    def forward(self, batch, step):
        first, second, _ = batch.views
        predicted = self.predictor(self.encoder(first))
        return StepOutput(1 - F.cosine_similarity(predicted, self.other(second[:, :1])).mean())


def test_its_two_encoders_may_see_different_bands(tmp_path):
    light = replace(RECIPE.encoder, backbone="light")
    recipe = replace(RECIPE, method=OneBandSettings(), encoder=light)
    before = build_components(recipe, source_from_dataset(Pictures())).method
    assert [in_channels_of(each) for each in (before.encoder, before.other)] == [3, 1]
    train(Pictures(), recipe, out=tmp_path / "run")
    (state,) = states(tmp_path / "run")
    for name, parameter in before.named_parameters():
        assert not torch.equal(state["method"][name], parameter), f"{name} did not move"


def test_stopped_and_resumed_equals_never_stopped(tmp_path):
    def stop(report):
        if report.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    train(Pictures(), RECIPE, out=tmp_path / "whole", encoder=backbone())
    train(Pictures(), RECIPE, out=tmp_path / "cut", encoder=backbone(), show=stop)
    assert states(tmp_path / "cut")[0]["step"] == 7
    resume(tmp_path / "cut", Pictures(), encoder=backbone())
    whole, cut = states(tmp_path / "whole", tmp_path / "cut")
    for part in ("method", "optimiser"):
        assert_close(cut[part], whole[part], rtol=0, atol=0)


@pytest.mark.end_to_end
def test_its_encoder_is_exported_alone(tmp_path):
    recipe = replace(RECIPE, encoder=replace(RECIPE.encoder, backbone="resnet18", stem="small"))
    recipe = replace(recipe, training=replace(recipe.training, epochs=1, num_queries=48))
    train(Pictures(), recipe, out=tmp_path / "run")
    file = tmp_path / "weights.safetensors"
    export_weights(open_weights(tmp_path / "run"), "safetensors", file)
    exported, encoder = open_weights(file), load(tmp_path / "run")
    images = torch.randn(2, 3, 8, 8)
    assert_close(exported.backbone.eval()(images), encoder.features(images))


def test_recipes_files_and_options_know_it(tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "toy", RECIPE)
    options = parse(["--recipe", "toy", "--method.small-weight", "0.75"])
    assert options.method == ToySettings(small_weight=0.75)
    train(Pictures(), RECIPE, out=tmp_path / "run", encoder=backbone())
    assert read_recipe(RunDirectory(tmp_path / "run").recipe) == RECIPE


def test_the_method_of_the_guide_trains(tmp_path, monkeypatch):
    settings = guide_settings()
    monkeypatch.setitem(METHODS, settings.name, settings)
    recipe = replace(RECIPE, method=settings())
    train(Pictures(), recipe, out=tmp_path / "run", encoder=backbone())
    lines = RunDirectory(tmp_path / "run").read_metrics()
    assert {line["num_negatives"] for line in lines if "num_negatives" in line} == {15}
    assert read_recipe(RunDirectory(tmp_path / "run").recipe) == recipe


def test_the_method_of_the_guide_is_listed_and_planned_with_negatives_of_the_batch(monkeypatch):
    recipe = replace(RECIPE, method=guide_settings()())
    assert source_of_negatives(recipe) == "Negatives from the batch"
    monkeypatch.setitem(RECIPES, "one-way", recipe)
    planned = plan("one-way")
    assert (planned.negatives_in_batch, planned.negatives_in_queue) == (255, 0)
    assert "EqCoLoss" in planned.snippets[0].code
