"""Compile auto: in long runs, where a trial is faster; kept by the run, refused where it fails."""

import importlib
import os
import re
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import CppCompileError, InductorError
from torch.testing import assert_close

from eqco.assembly import build_components, compiling, resume, train
from eqco.assembly.heading import heading
from eqco.assembly.parts import build_probe
from eqco.assembly.runs import RunInfo
from eqco.contrast import Objective
from eqco.data import Batch, DataSettings, source_from_dataset
from eqco.encoders import Encoder, LightEncoder, Pixels, linear_head, mlp_head
from eqco.encoders.batch_norm import SplitBatchNorm2d, split_batch_norm
from eqco.methods import METHODS, CPCSettings, MethodParts
from eqco.recipes import named_recipe
from eqco.recipes.profiles import scale_method
from eqco.runtime import processes
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.loop import optimise


def small(compiled, precision="float32"):
    demo = named_recipe("simo", "demo")
    settings = replace(demo.training, num_queries=8, epochs=2, log_every=1, compile=compiled)
    return replace(
        demo,
        training=replace(settings, precision=precision),
        method=replace(demo.method, count=4),
        data=replace(demo.data, image_size=16),
        optimiser=replace(demo.optimiser, warmup_epochs=0),
    )


def noise():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (24, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return source_from_dataset([(image, 0) for image in pixels])


def pays(encoder=None, passes=10**9):
    encoder = encoder or Encoder(LightEncoder(), linear_head(256, 4))
    return compiling.compiling_pays(
        encoder, num_images=16, size=16, passes=passes, precision="float32"
    )


def trial_of(monkeypatch, *, compiled):
    """A pass that takes a second, and `compiled` seconds once the network is compiled; the sizes of
    the batches that were timed.
    """
    sizes = []

    def seconds(encoders, images, precision):
        sizes.append(len(images))
        each = (1.0 if one.backbone._compiled_call_impl is None else compiled for one in encoders)
        return [one * len(images) / 16 for one in each]

    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    monkeypatch.setattr(compiling, "seconds_per_pass", seconds)
    return sizes


@pytest.mark.parametrize(("compiled", "chosen"), [(0.94, True), (0.96, False), (1.4, False)])
def test_a_long_run_is_compiled_where_a_trial_of_its_batch_is_faster(
    compiled, chosen, monkeypatch, capsys
):
    sizes = trial_of(monkeypatch, compiled=compiled)
    assert pays(passes=1200) is chosen
    assert sizes == [2, 16]
    assert "trying whether compiling the encoder saves time" in capsys.readouterr().err


def test_a_short_run_is_not_tried(monkeypatch, capsys):
    sizes = trial_of(monkeypatch, compiled=0.1)
    assert not pays(passes=1199)
    assert sizes == [2]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("num_images", "bn_groups"), [(200, 2), (24, 2), (16, 2), (64, 8), (8, 4), (12, 1), (2, 1)]
)
def test_batch_norm_in_groups_takes_the_batches_of_the_trial(num_images, bn_groups, monkeypatch):
    """The short one, of whole groups, and the whole one; both are timed for real."""
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    monkeypatch.setattr(nn.Module, "compile", lambda self, dynamic: None)
    encoder = split_batch_norm(Encoder(LightEncoder(), mlp_head(256, 4)), bn_groups)
    sizes = []
    encoder.backbone.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    compiling.compiling_pays(
        encoder,
        num_images=num_images,
        size=16,
        passes=10**9,
        precision="float32",
        bn_groups=bn_groups,
    )
    assert all(size % bn_groups == 0 for size in sizes)
    assert min(sizes) <= max(2 * bn_groups, num_images / 8)
    assert max(sizes) == num_images


def test_auto_compiles_neither_foreign_networks_nor_several_processes(monkeypatch):
    trial_of(monkeypatch, compiled=0.1)
    assert pays()
    assert not pays(Encoder(Pixels(16), linear_head(3 * 16 * 16, 4)))
    monkeypatch.setattr(compiling, "missing_tool", lambda: "a C++ compiler")
    assert not pays()
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    monkeypatch.setattr(processes, "world_size", lambda: 2)
    assert not pays()


def test_the_trial_leaves_encoder_and_generator_as_they_were(monkeypatch):
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    monkeypatch.setattr(nn.Module, "compile", lambda self, dynamic: None)
    encoder = Encoder(LightEncoder(), linear_head(256, 4))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    state = torch.get_rng_state()
    pays(encoder)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_compiling_is_refused_without_a_compiler_and_with_several_processes(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    missing = (
        r"but a C\+\+ compiler is missing here.*--training.compile False \(beside --resume too, "
        r"where the run has a checkpoint\)"
    )
    with pytest.raises(InputError, match=missing):
        train(noise(), small(True), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(processes, "world_size", lambda: 2)
    with pytest.raises(InputError, match=r"training.compile=True with 2 processes"):
        compiling.check_compiler(torch.device("cpu"))


@pytest.fixture
def broken_compiler(monkeypatch, tmp_path_factory):
    """A compiler that is found and ends with an error, and nothing kept of one that worked."""
    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
    with importlib.import_module("torch._inductor.config").patch({"cpp.cxx": (None, "/bin/false")}):
        yield
    torch._dynamo.reset()


@pytest.mark.end_to_end
def test_auto_leaves_a_compiler_that_fails_and_says_so_in_a_line(broken_compiler, capsys):
    assert pays() is False
    first, said, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("a long training: trying")
    failed = r"compiling was tried and failed \(.*C\+\+ compile.*\); training goes on uncompiled"
    assert re.fullmatch(failed, said)
    assert not others


@pytest.mark.end_to_end
def test_a_compiler_that_fails_ends_a_run_in_words_and_it_resumes_uncompiled(
    broken_compiler, monkeypatch, tmp_path
):
    failing = (
        r"training.compile=True, but the compiler fails here \(.*C\+\+ compile.*\). Mend it, or "
        r"give --training.compile False \(beside --resume too, where the run has a checkpoint\)."
    )
    with pytest.raises(InputError, match=failing):
        train(noise(), small(True), out=tmp_path, encoder=tiny())
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("eqco.assembly.parts.compile_encoders", lambda method: None)
        train(noise(), small(True), out=tmp_path, encoder=tiny(), show=stop_after(4))
    with pytest.raises(InputError, match=failing):
        resume(tmp_path, noise(), encoder=tiny())
    assert resume(tmp_path, noise(), encoder=tiny(), compile=False).step == 6


def no_header():
    command = ["g++", "cxx.main.cpp", "-o", "cxx.main.so"]
    output = "In file included from cxx.main.cpp:2:\na.h:25:10: fatal error: omp.h: No such file"
    return CppCompileError(command, output)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (no_header(), "omp.h: No such file"),
        (InductorError(no_header(), None), "omp.h: No such file"),
        (BackendCompilerFailed(print, OSError("no space left"), None), "no space left"),
        (BackendCompilerFailed(print, InductorError(no_header(), None), None), "omp.h: No such"),
    ],
)
def test_what_a_compiler_fails_by_is_said(error, said):
    failing = rf"the compiler fails here \(.*{said}"
    with pytest.raises(InputError, match=failing), compiling.explain_compiler():
        raise error


def test_a_batch_that_does_not_fit_is_not_taken_for_a_compiler_that_fails(monkeypatch):
    """An eighth of it fits, and training would end with the same error."""
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    monkeypatch.setattr(nn.Module, "compile", lambda self, dynamic: None)
    encoder = Encoder(LightEncoder(), linear_head(256, 4))

    def refuse(_, given):
        if len(given[0]) == 16:
            raise MemoryError("16 images")

    encoder.backbone.register_forward_pre_hook(refuse)
    with pytest.raises(MemoryError, match="16 images"):
        pays(encoder)


def test_other_errors_of_a_compiled_training_stay_as_they_are():
    with pytest.raises(RuntimeError, match="shapes"), compiling.explain_compiler():
        raise RuntimeError("shapes do not match")


@pytest.mark.parametrize("chosen", [True, False])
def test_a_run_keeps_what_auto_chose(chosen, monkeypatch, tmp_path):
    compiled = []
    monkeypatch.setattr("eqco.assembly.parts.compiling_pays", lambda *_, **__: chosen)
    monkeypatch.setattr("eqco.assembly.parts.compile_encoders", compiled.append)
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    said: list[RunInfo] = []
    train(noise(), small("auto"), out=tmp_path, on_start=said.append)
    run = RunDirectory(tmp_path)
    kept = run.read_recipe()["training"]["compile"]
    assert kept is read_checkpoint(run.last)["recipe"]["training"]["compile"] is chosen
    waits = [line for line in heading(said[0], "runs/simo") if "compiling the encoders" in line]
    assert len(waits) == len(compiled) == chosen
    monkeypatch.setattr("eqco.assembly.parts.compiling_pays", lambda *_, **__: not chosen)
    resume(tmp_path, noise())
    assert len(compiled) == 2 * chosen


def stop_after(step):
    """Asks for a stop the way a signal does, after a step."""

    def show(report):
        if report.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return show


def test_a_compiled_run_resumes_uncompiled_and_its_recipe_says_so(monkeypatch, tmp_path):
    """From then on, also from a checkpoint that was written before."""
    compiled, begun, run = [], [], RunDirectory(tmp_path)
    monkeypatch.setattr("eqco.assembly.parts.compile_encoders", compiled.append)
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    recipe = small(True)
    recipe = replace(recipe, training=replace(recipe.training, keep_every=1))
    train(noise(), recipe, out=tmp_path, encoder=tiny(), show=stop_after(4))
    how = {"data": noise(), "encoder": tiny(), "on_start": begun.append}
    assert resume(tmp_path, compile=False, show=stop_after(5), **how).step == 5
    for kept in (run.read_recipe(), read_checkpoint(run.last)["recipe"]):
        assert kept["training"]["compile"] is False
    assert resume(tmp_path, **how).step == 6
    assert resume(run.checkpoints / "step-00000003.pt", **how).step == 6
    assert len(compiled) == 1
    said = [[line for line in heading(each, "runs/simo") if "uncompiled" in line] for each in begun]
    to_rounding = "uncompiled from here on: the same to rounding, not to the bit"
    assert said == [
        [f"compiled until step 4, {to_rounding}"],
        [],
        [f"compiled until step 3, {to_rounding}"],
    ]


def test_resuming_does_not_begin_to_compile_nor_change_a_complete_run(monkeypatch, tmp_path):
    monkeypatch.setattr("eqco.assembly.parts.compile_encoders", lambda method: None)
    monkeypatch.setattr(compiling, "missing_tool", lambda: "")
    train(noise(), small(True), out=tmp_path, encoder=tiny())
    with pytest.raises(InputError, match="compile=True for a run that is resumed; it can only be"):
        resume(tmp_path, noise(), encoder=tiny(), compile=True)
    assert resume(tmp_path, noise(), encoder=tiny(), compile=False).step == 6
    assert RunDirectory(tmp_path).read_recipe()["training"]["compile"] is True


class Tiny(nn.Module):
    """Little to compile."""

    feature_dim = 4

    def __init__(self, bands=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(bands, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, images):
        return self.layers(images).mean((2, 3))


def tiny():
    torch.manual_seed(0)
    return Tiny()


class Mismatched(Tiny):
    def forward(self, images):
        return super().forward(images) @ torch.ones(3, 4)


@pytest.mark.end_to_end
def test_a_fault_of_the_network_that_is_compiled_keeps_its_traceback():
    network = Mismatched()
    network.compile(dynamic=False)
    with pytest.raises(RuntimeError, match="reduction dim"), compiling.explain_compiler():
        network(torch.zeros(2, 3, 8, 8))
    torch._dynamo.reset()


@pytest.fixture
def running(monkeypatch):
    """In the compiler's place: what is compiled runs as it is, and is on this list meanwhile."""
    running = []

    def stand_in(function, **_):
        def call(*args):
            running.append(function)
            found = function(*args)
            running.pop()
            return found

        return call

    monkeypatch.setattr(torch, "compile", stand_in)
    return running


def layers_called(encoder, running):
    """Names of layers as they are called, each with whether it is in what was compiled."""
    called = []
    layers = {name: each for name, each in encoder.named_modules() if not list(each.children())}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda *_, name=name: called.append((name, bool(running))))
    return called, set(layers)


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_whatever_a_step_calls_of_its_backbone_is_compiled(kind, running):
    settings, data = scale_method(kind(), ema_decay=0.9, memory=24), DataSettings(image_size=12)
    if kind is CPCSettings:
        settings = replace(settings, grid=2)
    method = settings.build(
        MethodParts(
            make_encoder=lambda number=0, in_channels=3: Encoder(
                Tiny(in_channels), linear_head(4, 4)
            ),
            objective=Objective(temperature=0.2),
            total_steps=9,
            seed=0,
            num_images=72,
        )
    )
    compiling.compile_encoders(method)
    called, layers = layers_called(method.encoder, running)
    views = (torch.randn(24, 3, view.size, view.size) for view in settings.views(data))
    batch = Batch(tuple(views), torch.arange(24))
    method.warm_up(batch)
    method(batch, 0)
    assert set(called) == {(name, name.startswith("backbone.")) for name in layers}


def test_a_probe_calls_nothing_compiled(running):
    components = build_components(small(False), noise(), backbone=tiny())
    compiling.compile_encoders(components.method)
    called, _ = layers_called(components.method.encoder, running)
    split = replace(noise()["train"], labels=torch.arange(24) % 2, classes=("even", "odd"))
    build_probe(small(False), (split, split))(components.method.encoder.eval())
    assert {name for name, _ in called} >= {f"backbone.layers.{number}" for number in range(3)}
    assert not any(compiled for _, compiled in called)


@pytest.mark.end_to_end
@pytest.mark.skipif(bool(compiling.missing_tool()), reason="needs a C++ compiler")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_run_stopped_and_resumed_equals_never_stopped(precision, tmp_path):
    recipe = small(True, precision)
    train(noise(), recipe, out=tmp_path / "whole", encoder=tiny())
    cut = train(noise(), recipe, out=tmp_path / "cut", encoder=tiny(), show=stop_after(3))
    assert cut.step == 3
    torch._dynamo.reset()  # as in a new process
    resume(tmp_path / "cut", noise(), encoder=tiny())
    whole, cut = (read_checkpoint(RunDirectory(tmp_path / name).last) for name in ("whole", "cut"))
    for name, value in whole["method"].items():
        assert torch.equal(value, cut["method"][name]), name


@pytest.mark.end_to_end
@pytest.mark.skipif(bool(compiling.missing_tool()), reason="needs a C++ compiler")
def test_a_compiled_run_resumed_uncompiled_is_to_rounding_one_that_never_was(tmp_path):
    train(noise(), small(False), out=tmp_path / "plain", encoder=tiny())
    cut = train(noise(), small(True), out=tmp_path / "cut", encoder=tiny(), show=stop_after(3))
    assert cut.step == 3
    torch._dynamo.reset()
    assert resume(tmp_path / "cut", noise(), encoder=tiny(), compile=False).step == 6
    plain, cut = (read_checkpoint(RunDirectory(tmp_path / name).last) for name in ("plain", "cut"))
    assert_close(cut["method"], plain["method"], rtol=1e-4, atol=1e-6)


@pytest.mark.end_to_end
@pytest.mark.skipif(bool(compiling.missing_tool()), reason="needs a C++ compiler")
def test_a_compiled_encoder_in_bfloat16_has_the_gradient_of_one_that_is_not():
    torch.manual_seed(0)
    encoder = LightEncoder()
    images = torch.randn(8, 3, 32, 32)
    found = []
    for network in (encoder, torch.compile(encoder, fullgraph=True, dynamic=False)):
        encoder.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features = network(images)
        features.float().square().sum().backward()
        found.append(torch.cat([each.grad.flatten() for each in encoder.parameters()]))
    torch._dynamo.reset()
    assert (found[0] - found[1]).norm() < 0.05 * found[0].norm()


@pytest.mark.end_to_end
@pytest.mark.skipif(bool(compiling.missing_tool()), reason="needs a C++ compiler")
def test_with_shuffling_bn_a_compiled_run_is_to_rounding_one_that_is_not():
    found = []
    for compiled in (True, False):
        recipe = small(compiled)
        recipe = replace(
            recipe,
            method=replace(recipe.method, shuffle_bn=True),
            encoder=replace(recipe.encoder, bn_groups=2),
        )
        components = build_components(recipe, noise(), backbone=tiny())
        assert components.compiled is compiled
        assert isinstance(components.method.encoder.backbone.layers[1], SplitBatchNorm2d)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        for step in range(3):
            batches = components.loader.micro_batches(step)
            components.method.after_step(optimise(components, scaler, batches, step))
        found.append(components.method.state_dict())
    torch._dynamo.reset()
    assert_close(*found, rtol=1e-4, atol=1e-6)
