"""A run of CMC: two networks, evaluated side by side, exported together or one by one."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from together import Pictures
from torch.testing import assert_close

from eqco.assembly import (
    build_components,
    build_evaluated_encoder,
    load,
    open_weights,
    resume,
    runs,
    train,
)
from eqco.assembly.comparison import untrained_twin
from eqco.assembly.export import export_weights
from eqco.assembly.weights import half_of, random_like
from eqco.cli.main import main
from eqco.data import source_from_dataset
from eqco.encoders import Architecture
from eqco.recipes import RECIPES, named_recipe, with_settings
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.loop import Outcome

IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(7))


def recipe_of(name, **method):
    """Six steps on ninety-six pictures."""
    recipe = named_recipe(name, "smoke")
    training = replace(recipe.training, num_queries=16, log_every=1, diagnose_every=4)
    return replace(recipe, method=replace(recipe.method, **method), training=training)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "cmc"
    train(Pictures(), recipe_of("cmc", count=20), out=place)
    return place


@pytest.fixture
def begun(monkeypatch):
    """The methods of runs as they are before their first step, which is not taken."""
    methods = []

    def keep(components, run, recipe, **how):
        methods.append(components.method)
        return Outcome(path=run.path, step=0, stopped_by="the test")

    monkeypatch.setattr(runs, "run_training", keep)
    return methods


def stop_at_three(report):
    if report.step == 3:
        os.kill(os.getpid(), signal.SIGTERM)


def test_its_features_are_those_of_both_networks(run):
    weights = open_weights(run)
    assert str(weights.architecture) == "lab:light"
    assert (weights.feature_dim, weights.in_channels) == (512, 3)
    halves = [half_of(weights, half).backbone(IMAGES) for half in ("luminance", "chroma")]
    assert_close(torch.cat(halves, dim=1), weights.backbone(IMAGES))
    assert_close(load(run).features(IMAGES), weights.backbone(IMAGES))
    picture = np.zeros((20, 30, 3), dtype=np.uint8)
    assert load(run).embed([picture]).shape == (1, 512)


def test_an_untrained_network_of_its_kind_differs(run):
    weights = open_weights(run)
    other = random_like(weights).backbone(IMAGES)
    assert other.shape == (3, 512)
    assert not torch.allclose(other, weights.backbone(IMAGES))


def test_its_untrained_twin_is_the_network_that_training_begins_with(run):
    """Fine-tuned beside it: the same network, not one for all colours."""
    weights = open_weights(run)
    twin = untrained_twin(weights, seed=9)  # a run has a seed of its own
    begun = build_components(weights.recipe, source_from_dataset(Pictures())).method.encoder
    assert (twin.feature_dim, twin.embedding_dim) == (512, weights.encoder.embedding_dim)
    assert_close(dict(twin.state_dict()), dict(begun.state_dict()), rtol=0, atol=0)
    half = untrained_twin(half_of(weights, "chroma"), seed=9)
    assert half.feature_dim == 256


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, {}) for name in RECIPES if not name.endswith("-vit")] + [("cmc", {"colours": "ydbdr"})],
)
def test_the_name_of_what_is_evaluated_builds_that_network(name, method):
    recipe = with_settings(named_recipe(name, "smoke"), **method)
    named = Architecture(recipe.method.evaluated_backbone(recipe.encoder.backbone)).build()
    network = build_evaluated_encoder(recipe).backbone
    assert (type(named), getattr(named, "space", "")) == (
        type(network),
        getattr(network, "space", ""),
    )
    shapes = [
        {name: value.shape for name, value in each.state_dict().items()}
        for each in (named, network)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("half", [None, "luminance", "chroma"])
def test_exported_and_opened_again_it_gives_the_same_features(run, half, tmp_path):
    weights = open_weights(run)
    weights = weights if half is None else half_of(weights, half)
    export_weights(weights, "safetensors", tmp_path / "file.safetensors")
    opened = open_weights(tmp_path / "file.safetensors")
    assert opened.architecture == weights.architecture
    assert torch.equal(opened.backbone(IMAGES), weights.backbone(IMAGES))


@pytest.mark.end_to_end
def test_the_command_exports_one_half_as_a_graph(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--to", "onnx", "--half", "chroma", "--out", "c.onnx"]) == 0
    assert "lab-chroma:light backbone" in (tmp_path / "c.md").read_text()
    assert "256 features" in (tmp_path / "c.md").read_text()


@pytest.mark.parametrize("to", ["torchvision", "timm", "moco"])
def test_formats_that_know_no_halves_refuse_them(run, to, tmp_path):
    with pytest.raises(InputError, match=r"lab:light.*--to safetensors"):
        export_weights(open_weights(run), to, tmp_path / "file.pth")


def test_a_run_of_its_kind_begins_with_both_networks_and_both_heads(run, begun, tmp_path):
    train(Pictures(), recipe_of("cmc", count=20), out=tmp_path / "next", init=run)
    (method,) = begun
    trained = open_weights(run).encoder
    assert_close(dict(method.encoder.state_dict()), dict(trained.state_dict()), rtol=0, atol=0)


def test_another_method_begins_with_both_networks_and_a_head_of_its_own(run, begun, tmp_path):
    """Where the rules choose it, and where its recipe names the network; its copies as well."""
    small = {"num_queries": 16, "count": None, "image_size": 16}
    train(Pictures(), init=run, out=tmp_path / "chosen", epochs=1, **small)
    recipe = with_settings(named_recipe("simo", "smoke"), backbone="lab:light", **small)
    train(Pictures(), recipe, init=run, out=tmp_path / "named")
    chosen, named = begun
    assert chosen.encoder.embedding_dim == named.encoder.embedding_dim == 128
    trained = dict(open_weights(run).backbone.state_dict())
    for method in begun:
        assert_close(dict(method.encoder.backbone.state_dict()), trained, rtol=0, atol=0)
    keys = named.key_encoder.network.state_dict()
    assert_close(dict(keys), dict(named.encoder.state_dict()), rtol=0, atol=0)


def test_first_weights_of_one_network_are_refused_for_two(run, tmp_path):
    half = half_of(open_weights(run), "luminance")
    export_weights(half, "safetensors", tmp_path / "half.safetensors")
    with pytest.raises(InputError, match=r"is lab-luminance:light, .* such as a run of cmc with"):
        train(
            Pictures(),
            recipe_of("cmc", count=20),
            init=tmp_path / "half.safetensors",
            out=tmp_path / "next",
        )


def test_a_half_of_what_has_none_is_refused(run):
    with pytest.raises(InputError, match=r"--half chroma: random has no network for chroma alone"):
        half_of(open_weights("random", backbone="light"), "chroma")
    alone = half_of(open_weights(run), "luminance")
    with pytest.raises(InputError, match=r"--half chroma: .* has no network"):
        half_of(alone, "chroma")


def test_grey_images_are_refused_before_anything_is_written(tmp_path):
    pixels = torch.randint(256, (80, 1, 16, 16), dtype=torch.uint8)
    data = [(each, 0) for each in pixels]
    with pytest.raises(InputError, match=r"method cmc splits red.* the images have 1 band\."):
        train(data, recipe_of("cmc", count=9), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("cmc", {"count": 20, "loss": "nce"}),
    ],
)
def test_stopped_and_resumed_equals_never_stopped(name, method, tmp_path):
    recipe = recipe_of(name, **method)
    train(Pictures(), recipe, out=tmp_path / "whole")
    train(Pictures(), recipe, out=tmp_path / "cut", show=stop_at_three)
    assert read_checkpoint(RunDirectory(tmp_path / "cut").last)["step"] == 3
    resume(tmp_path / "cut", Pictures())
    whole, cut = (read_checkpoint(RunDirectory(tmp_path / each).last) for each in ("whole", "cut"))
    for part in ("method", "optimiser"):
        assert_close(cut[part], whole[part], rtol=0, atol=0)


def test_more_negatives_than_images_are_refused_with_a_remedy(tmp_path):
    with pytest.raises(InputError, match=r"method.count=96, but a bank of 96 images offers 95"):
        train(Pictures(), recipe_of("pirl", count=96), out=tmp_path / "run")
