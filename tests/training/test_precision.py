"""Precision auto: what a run chooses, that it keeps it, and what stays float32."""

import json
from dataclasses import replace

import pytest
import torch

from eqco.assembly import build_components, resume, train
from eqco.assembly.heading import heading
from eqco.assembly.runs import RunInfo
from eqco.data import source_from_dataset
from eqco.encoders import choose_precision
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.tasks import TrainingTask
from eqco.recipes import PROFILES, RECIPES, named_recipe
from eqco.runtime import processes
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory

CPU = torch.device("cpu")


class Noise(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(256, (24, 3, 16, 16), generator=generator, dtype=torch.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, number):
        return self.pixels[number], 0


@pytest.fixture
def recipe():
    demo = named_recipe("simo", "demo")
    small = replace(demo.training, num_queries=8, epochs=2, diagnose_every=2, log_every=1)
    return replace(
        demo,
        training=small,
        method=replace(demo.method, count=4),
        data=replace(demo.data, image_size=16),
        optimiser=replace(demo.optimiser, warmup_epochs=0),
    )


def native(monkeypatch, answer):
    for place in ("encoders.precision", "assembly.heading"):
        monkeypatch.setattr(f"eqco.{place}.has_native_bfloat16", lambda device: answer)


def kept_precision(place):
    run = RunDirectory(place)
    state = read_checkpoint(run.last)
    return {run.read_recipe()["training"]["precision"], state["recipe"]["training"]["precision"]}


def test_auto_is_bfloat16_where_every_process_computes_it_natively(monkeypatch):
    native(monkeypatch, True)
    assert choose_precision("auto", CPU) == "bfloat16"
    assert choose_precision("float32", CPU) == "float32"
    monkeypatch.setattr(processes, "any_of", lambda lacking: True)  # as another machine says
    assert choose_precision("auto", CPU) == "float32"
    native(monkeypatch, False)
    assert choose_precision("auto", CPU) == "float32"
    assert choose_precision("bfloat16", CPU) == "bfloat16"


def test_what_multiplies_it_natively_is_told_by_the_processor(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    told = {"avx512_f": True, "avx512_bf16": False, "amx_tile": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert choose_precision("auto", CPU) == "float32"
    for name in ("avx512_bf16", "amx_bf16", "bf16"):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda name=name: {**told, name: True})
        assert choose_precision("auto", CPU) == "bfloat16"


def test_where_torch_has_no_onednn_a_processor_with_bfloat16_computes_in_float32(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert choose_precision("auto", CPU) == "float32"


class OwnBackbone(torch.nn.Sequential):
    """A module of the user's whose last convolution sees a single pixel of an image of 16."""

    feature_dim = 8

    def __init__(self):
        super().__init__(
            torch.nn.Conv2d(3, 8, 16, stride=16),
            torch.nn.Conv2d(8, 8, 3, stride=2, padding=1),
            torch.nn.Flatten(),
        )


def test_where_torch_leaves_a_gradient_unset_bfloat16_is_not_chosen_and_refused(
    recipe, monkeypatch
):
    native(monkeypatch, True)
    source = source_from_dataset(Noise())
    assert build_components(recipe, source).precision == "bfloat16"
    assert build_components(recipe, source, backbone=OwnBackbone()).precision == "float32"
    asked = replace(recipe, training=replace(recipe.training, precision="bfloat16"))
    with pytest.raises(InputError, match="views of 16 pixels the convolution '1' of OwnBackbone"):
        build_components(asked, source, backbone=OwnBackbone())


@pytest.mark.parametrize("answer", [True, False])
def test_a_run_says_and_keeps_what_it_chose(recipe, answer, monkeypatch, tmp_path):
    native(monkeypatch, answer)
    chosen = "bfloat16" if answer else "float32"
    said: list[RunInfo] = []
    train(source_from_dataset(Noise()), recipe, out=tmp_path / "run", on_start=said.append)
    assert kept_precision(tmp_path / "run") == {chosen}
    assert said[0].asked == recipe
    assert f"precision auto: {chosen}" in heading(said[0], "runs/simo")


@pytest.mark.parametrize("answer", [True, False])
def test_a_run_in_bfloat16_says_where_it_is_emulated(recipe, answer, monkeypatch, tmp_path):
    native(monkeypatch, answer)
    source, said = source_from_dataset(Noise()), []
    asked = replace(recipe, training=replace(recipe.training, precision="bfloat16", keep_every=1))
    train(source, asked, out=tmp_path, on_start=said.append)
    (middle,) = (tmp_path / "checkpoints").glob("*3.pt")
    resume(middle, source, on_start=said.append)
    resume(tmp_path, source, on_start=said.append)  # with nothing left to compute
    found = [[line for line in heading(each, "run") if "emulated" in line] for each in said]
    line = "bfloat16 is emulated here (cpu), slower than float32: "
    new, resumed = f"{line}give --training.precision float32", f"{line}a resumed run keeps it"
    assert found == ([[], [], []] if answer else [[new], [resumed], []])


@pytest.mark.end_to_end
def test_a_run_resumed_on_another_machine_keeps_its_precision(recipe, monkeypatch, tmp_path):
    """To the bit what a run that was never moved ends at."""
    source = source_from_dataset(Noise())
    native(monkeypatch, True)
    train(source, recipe, out=tmp_path / "whole")
    recipe = replace(recipe, training=replace(recipe.training, keep_every=1))
    train(source, recipe, out=tmp_path / "moved")
    (middle,) = (tmp_path / "moved" / "checkpoints").glob("*3.pt")
    native(monkeypatch, False)
    resume(middle, source)
    assert kept_precision(tmp_path / "moved") == {"bfloat16"}
    whole, moved = (read_checkpoint(RunDirectory(tmp_path / n).last) for n in ("whole", "moved"))
    for name, value in whole["method"].items():
        assert torch.equal(value, moved["method"][name]), name


def test_weights_statistics_and_optimiser_stay_float32(recipe, monkeypatch, tmp_path):
    native(monkeypatch, True)
    train(source_from_dataset(Noise()), recipe, out=tmp_path)
    state = read_checkpoint(RunDirectory(tmp_path).last)
    momentum = [each["momentum_buffer"] for each in state["optimiser"]["state"].values()]
    for value in [*state["method"].values(), *momentum]:
        assert value.dtype in (torch.float32, torch.int64)


def test_own_data_is_trained_with_auto_and_everything_recorded_in_float32():
    for profile in PROFILES:
        asked = {named_recipe(name, profile).training.precision for name in RECIPES}
        assert asked == {"auto" if profile in ("folder", "embedded", "demo") else "float32"}
    figures = [each for each in EXPERIMENTS.values() if each.name != "demo"]  # which shows `train`
    for experiment in figures:
        for tasks in experiment.profiles.values():
            for task in tasks:
                text = json.dumps(task.to_dict() if isinstance(task, TrainingTask) else str(task))
                assert "auto" not in text, experiment.name
