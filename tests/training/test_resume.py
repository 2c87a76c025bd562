"""Stopped at any step and resumed is, to the bit, the same as never stopped."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from photos import save_photos
from torch import nn

import eqco
from eqco import assembly
from eqco.assembly import build_components, load, open_weights, resume, runs, train
from eqco.data import source_from_dataset
from eqco.methods import MoCoSettings, SimCLRSettings, SiMoSettings
from eqco.recipes import (
    DataSettings,
    EncoderSettings,
    ObjectiveSettings,
    OptimiserSettings,
    Recipe,
    TrainingSettings,
    named_recipe,
)
from eqco.runtime.checkpoints import CheckpointError, read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.alarms import NonFiniteLossError
from eqco.training.diagnostics import diagnose
from eqco.training.loop import optimise, warm_up

pytestmark = pytest.mark.end_to_end  # whole trainings, stopped and resumed


class Pictures(torch.utils.data.Dataset):
    """Forty small pictures of two kinds, as a user's own Dataset."""

    def __init__(self, copies=1):
        generator = torch.Generator().manual_seed(0)
        self.targets = [number % 2 for number in range(40 * copies)]
        noise = torch.rand(40 * copies, 3, 12, 12, generator=generator)
        tone = torch.tensor(self.targets)[:, None, None, None]
        self.pixels = ((noise + tone) * 127).to(torch.uint8)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        return self.pixels[number], self.targets[number]


class TinyBackbone(nn.Module):
    feature_dim = 8

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )

    def forward(self, images):
        return self.layers(images).flatten(1)


def source():
    return source_from_dataset(Pictures())


METHODS = {
    "simo": SiMoSettings(count=3, ema_decay=0.9),
    "moco": MoCoSettings(queue_size=12, ema_decay=0.9, shuffle_bn=False),
    "simclr": SimCLRSettings(count=4),
}


def tiny(method, *, encoder=None, optimiser=None, **settings):
    """A short run of a method with changed settings of its own."""
    return Recipe(
        method=replace(METHODS[method], **settings),
        objective=ObjectiveSettings(alpha=64),
        data=DataSettings(image_size=8),
        encoder=encoder or EncoderSettings(embedding_dim=4),
        optimiser=optimiser or OptimiserSettings(base_learning_rate=1.0, warmup_epochs=1),
        training=TrainingSettings(
            num_queries=8, epochs=4, log_every=1, diagnose_every=3, save_every=10
        ),
    )


SPLIT = EncoderSettings(embedding_dim=4, head="mlp", bn_groups=2)
RUNS = {
    "simo": tiny("simo"),
    "simo, queue": tiny("simo", queue_size=11),
    "simo, rising decay": tiny("simo", ema_schedule="cosine"),
    "mocov1": tiny("moco", encoder=replace(SPLIT, head="linear"), shuffle_bn=True),
    "mocov2": tiny("moco", encoder=SPLIT, shuffle_bn=True),
    "mocov2, K < N": tiny("moco", queue_size=5),
    "simclr": tiny("simclr"),
    "simclr, lars": tiny("simclr", optimiser=OptimiserSettings(name="lars")),
    "simclr, adamw": tiny("simclr", optimiser=OptimiserSettings(name="adamw")),
}


def backbone():
    torch.manual_seed(0)
    return TinyBackbone()


def stop_after(steps, monkeypatch):
    """Ask for a stop the way a signal does, once `steps` steps were reported."""

    def show(report):
        if report.step == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    return show


@pytest.mark.parametrize("name", RUNS)
def test_stopped_and_resumed_equals_never_stopped(name, tmp_path, monkeypatch):
    recipe = RUNS[name]
    whole = train(source(), recipe, out=tmp_path / "whole", encoder=backbone())
    assert whole.step == 20
    outcome = train(
        source(),
        recipe,
        out=tmp_path / "cut",
        encoder=backbone(),
        show=stop_after(7, monkeypatch),
    )
    assert (outcome.step, outcome.stopped_by) == (7, "SIGTERM")
    torch.manual_seed(123)  # whatever else the process did in between
    outcome = resume(
        tmp_path / "cut", source(), encoder=backbone(), show=stop_after(13, monkeypatch)
    )
    assert outcome.step == 13
    assert resume(tmp_path / "cut", source(), encoder=backbone()).step == 20
    first, second = (RunDirectory(tmp_path / each) for each in ("whole", "cut"))
    states = [read_checkpoint(run.last) for run in (first, second)]
    for part in ("method", "optimiser"):
        assert_same(states[0][part], states[1][part])
    assert first.read_metrics() == second.read_metrics()
    assert len(first.read_metrics()) >= 20


def test_resumed_with_other_workers_equals_never_stopped(tmp_path, monkeypatch):
    recipe = tiny("simo")
    train(source(), recipe, out=tmp_path / "whole", encoder=backbone())
    cut, begun = tmp_path / "cut", []
    train(source(), recipe, out=cut, encoder=backbone(), show=stop_after(18, monkeypatch))
    resume(cut, source(), workers=1, encoder=backbone(), on_start=begun.append)
    assert [(about.loader.workers, about.asked) for about in begun] == [(1, recipe)]
    first, second = (read_checkpoint(RunDirectory(tmp_path / n).last) for n in ("whole", "cut"))
    for part in ("recipe", "method", "optimiser"):
        assert_same(first[part], second[part])
    assert resume(cut, source(), encoder=backbone()).step == 20, "it is the recipe's run still"


def test_resuming_in_another_number_of_threads_is_reported(tmp_path, monkeypatch, capsys):
    cut = tmp_path / "cut"
    train(source(), tiny("simo"), out=cut, encoder=backbone(), show=stop_after(5, monkeypatch))
    capsys.readouterr()
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: before + 1)
    assert resume(cut, source(), encoder=backbone(), show=None).step == 20
    said = capsys.readouterr().out
    assert f"threads: {before} when the run began, {before + 1} now: the same to rounding" in said
    assert f"OMP_NUM_THREADS={before} makes it the same to the bit" in said


def test_resuming_in_the_same_number_of_threads_says_nothing_of_them(tmp_path, monkeypatch):
    cut, begun = tmp_path / "cut", []
    train(source(), tiny("simo"), out=cut, encoder=backbone(), show=stop_after(5, monkeypatch))
    resume(cut, source(), encoder=backbone(), on_start=begun.append)
    assert begun[0].threads_before is None


def assert_same(first, second):
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


def test_checkpoints_are_kept_at_their_own_epochs_whenever_others_are_saved(tmp_path):
    recipe = tiny("simo")
    kept = replace(recipe.training, epochs=4, save_every=2, keep_every=3)
    train(source(), replace(recipe, training=kept), out=tmp_path, encoder=backbone())
    run = RunDirectory(tmp_path)
    kept = sorted(run.checkpoints.glob("step-*.pt"))
    assert [path.name for path in kept] == ["step-00000015.pt"]  # 3 epochs of 5 steps
    assert read_checkpoint(kept[0])["step"] == 15
    assert read_checkpoint(run.last)["step"] == 20


def test_the_trained_encoder_can_be_loaded(tmp_path):
    train(source(), tiny("simo"), out=tmp_path / "run", encoder=backbone())
    encoder = load(tmp_path / "run", backbone=backbone())
    state = read_checkpoint(RunDirectory(tmp_path / "run").last)["method"]
    assert not encoder.training
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, state[f"encoder.{name}"])


def test_a_run_directory_holds_what_is_needed(tmp_path):
    train(source(), tiny("simo"), out=tmp_path, encoder=backbone())
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"recipe.json", "environment.json", "metrics.jsonl", "result.json"}
    assert list((tmp_path / "tensorboard").iterdir())
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 20
    lines = RunDirectory(tmp_path).read_metrics()
    assert {"information", "information_kind", "gradient_norm_mean", "accuracy"} <= lines[2].keys()
    assert lines[2]["information_kind"] == "estimate"
    last = [line for line in lines if "loss" in line][-1]
    assert last["step"] == 20, "20 is no multiple of diagnose_every"
    assert {"information", "alignment", "embedding_rank"} <= last.keys()


def test_a_second_start_in_the_same_place_is_refused(tmp_path):
    train(source(), tiny("simo"), out=tmp_path, encoder=backbone())
    with pytest.raises(InputError, match="holds a run already"):
        train(source(), tiny("simo"), out=tmp_path, encoder=backbone())


@pytest.mark.parametrize("out", [None, ".", "runs/mine", "../link/mine"])
def test_a_run_is_not_put_among_its_images(out, tmp_path, monkeypatch):
    photos = save_photos(tmp_path / "photos", 1)
    (tmp_path / "link").symlink_to(photos)
    monkeypatch.chdir(photos)
    for data in (".", photos, tmp_path / "link"):
        with pytest.raises(InputError, match=r"is in .*photos, .* outside it, such as \.\./runs/"):
            train(data, tiny("simo"), out=out, encoder=backbone())
    assert [each.name for each in photos.iterdir()] == ["0000.jpg"]


def test_a_missing_checkpoint_is_no_silent_restart(tmp_path):
    train(source(), tiny("simo"), out=tmp_path, encoder=backbone())
    RunDirectory(tmp_path).last.unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*previous.pt|no other"):
        resume(tmp_path, source(), encoder=backbone())
    with pytest.raises(InputError, match=r"recipe.json; is .* a run directory"):
        resume(tmp_path / "nowhere", source(), encoder=backbone())


def test_a_run_remembers_its_data_and_refuses_other_data(tmp_path):
    recipe = tiny("simo")
    recipe = replace(recipe, training=replace(recipe.training, epochs=1, num_queries=64))
    train("groceries", recipe, out=tmp_path / "named", encoder=backbone())
    assert resume(tmp_path / "named", encoder=backbone()).step == 10
    with pytest.raises(InputError, match=r"trained on 675 images \(groceries\), but .* has 80"):
        resume(tmp_path / "named", source_from_dataset(Pictures(2)), encoder=backbone())
    train(Pictures(), tiny("simo"), out=tmp_path / "own", encoder=backbone())
    with pytest.raises(InputError, match="give the same to resume"):
        resume(tmp_path / "own", encoder=backbone())


def test_a_run_finds_its_data_again_where_they_were_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, run = tiny("simo"), tmp_path / "run"
    train(save_photos(tmp_path / "old", 16), recipe, out=run, encoder=backbone())
    Path("old").rename("new")
    missing = r"old, which is not there any more\. .* now: eqco train DATA --resume .*run\."
    with pytest.raises(InputError, match=missing):
        resume(run, encoder=backbone())
    before = RunDirectory(run).read_environment()
    assert before["source"] == str(tmp_path / "old")
    with pytest.raises(InputError, match="has 12 now"):
        resume(run, save_photos(tmp_path / "other", 12), encoder=backbone())
    assert RunDirectory(run).read_environment() == before
    resume(run, "new", encoder=backbone())
    assert RunDirectory(run).read_environment() == {**before, "source": str(tmp_path / "new")}
    assert resume(run, encoder=backbone()).path == run


def test_the_queue_must_not_reach_round_the_epoch(tmp_path):
    """It is filled from the epoch's last batch, whose keys must be gone when that batch comes."""
    recipe = tiny("moco", queue_size=33)
    with pytest.raises(
        InputError,
        match=r"method.queue_size=33, but an epoch has 5 .* --method.queue-size 32 or less",
    ):
        train(source(), recipe, out=tmp_path / "run", encoder=backbone())


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    recipe = tiny("simo")
    recipe = replace(recipe, training=replace(recipe.training, save_every=1))

    def poison(report):
        if report.step == 7:
            with torch.no_grad():
                next(poisoned.encoder.parameters()).fill_(float("nan"))

    build, poisoned = build_components, None

    def build_and_keep(*arguments, **named):
        nonlocal poisoned
        components = build(*arguments, **named)
        poisoned = components.method
        return components

    monkeypatch.setattr("eqco.assembly.runs.build_components", build_and_keep)
    with pytest.raises(NonFiniteLossError, match="stopped at step 8: queries holds"):
        train(source(), recipe, out=tmp_path, encoder=backbone(), show=poison)
    state = read_checkpoint(RunDirectory(tmp_path).last)
    assert state["step"] == 5
    assert all(torch.isfinite(v).all() for v in state["method"].values() if hasattr(v, "shape"))


class Picky(TinyBackbone):
    """Refuses what it is given, from its third batch on."""

    batches = 0

    def forward(self, images):
        self.batches += self.training
        if self.batches > 2:
            raise InputError("a batch of 8 images does not divide into bn_groups=3 equal parts.")
        return super().forward(images)


def test_only_numbers_that_are_not_finite_are_reported_as_divergence(tmp_path):
    with pytest.raises(InputError, match=r"^a batch of 8 images .* equal parts\.$") as refusal:
        train(source(), tiny("simo"), out=tmp_path, encoder=Picky())
    assert not isinstance(refusal.value, NonFiniteLossError)


def test_micro_batches_imitate_the_same_alpha_and_average_their_gradients():
    """With EqCo each has its own negatives, fewer of them, and the same α."""
    recipe = tiny("simo", count=None)
    halves = replace(recipe, training=replace(recipe.training, accumulation_steps=2))
    seen = {}
    for each in (recipe, halves):
        components = build_components(each, source(), backbone=backbone())
        batches = components.loader.micro_batches(0)
        outputs = [components.method(batch, number) for number, batch in enumerate(batches)]
        contrasts = [output.contrasts[0] for output in outputs]
        seen[len(batches)] = [contrast.negatives.num_negatives for contrast in contrasts]
        assert components.objective.alpha == 64
        expected = torch.stack([output.loss for output in outputs]).mean()
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        output = optimise(components, scaler, batches, 0)
        torch.testing.assert_close(output.loss, expected.detach())
    assert seen == {1: [7], 2: [3, 3]}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_diagnosed_is_what_was_trained_on(name, tmp_path):
    """The contrasts of the step, not a queue that already holds its positives."""
    components = build_components(RUNS[name], source(), backbone=backbone())
    components.method.train()
    warm_up(components)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for step in range(3):
        output = optimise(components, scaler, components.loader.micro_batches(step), step)
        seen = diagnose(output.contrasts, temperature=0.2, alpha=64)
        # SimCLR trains on the sum of its two directions, and shows their mean
        directions = len(output.contrasts)
        assert directions * seen.loss == pytest.approx(float(output.loss), rel=1e-4)
        components.method.after_step(output)
    train(source(), RUNS[name], out=tmp_path, encoder=backbone())
    lines = [line for line in RunDirectory(tmp_path).read_metrics() if "information" in line]
    for line in lines:
        of_one = line["loss"] / directions
        assert line["information"] == pytest.approx(line["ceiling"] - of_one, abs=1e-3)


def test_a_stop_in_the_last_step_still_runs_the_probe(tmp_path, monkeypatch):
    recipe = tiny("simo")
    recipe = replace(recipe, training=replace(recipe.training, epochs=1, num_queries=64))
    outcomes = [
        train("groceries", recipe, out=tmp_path / str(stop), encoder=backbone(), show=show)
        for stop, show in ((0, lambda report: None), (10, stop_after(10, monkeypatch)))
    ]
    assert outcomes[0].probe == outcomes[1].probe
    assert outcomes[0].step == outcomes[1].step
    assert outcomes[0].probe
    lines = [RunDirectory(tmp_path / name).read_metrics() for name in ("0", "10")]
    assert lines[0] == lines[1]
    resume(tmp_path / "10", encoder=backbone())
    assert RunDirectory(tmp_path / "10").read_metrics() == lines[0]
    monkeypatch.setattr(runs, "run_training", None)  # what is complete is not computed again
    assert resume(tmp_path / "10", encoder=backbone()).probe == outcomes[0].probe


def test_weights_that_are_no_numbers_are_not_saved(tmp_path, monkeypatch):
    """Weights go wrong after the loss of step 10 was computed, just before it is saved."""
    recipe = tiny("simo")
    recipe = replace(recipe, training=replace(recipe.training, save_every=1))
    made = []

    def build_and_keep(*arguments, **named):
        made.append(build_components(*arguments, **named))
        return made[0]

    def poison(report):
        if report.step == 10:
            with torch.no_grad():
                next(made[0].method.encoder.head.parameters()).fill_(float("inf"))

    monkeypatch.setattr("eqco.assembly.runs.build_components", build_and_keep)
    with pytest.raises(InputError, match=r"stopped at step 10: the largest weight is inf.*last.pt"):
        train(source(), recipe, out=tmp_path, encoder=backbone(), show=poison)
    assert read_checkpoint(RunDirectory(tmp_path).last)["step"] == 5


def test_the_name_of_a_recipe_is_answered_with_how_to_get_the_recipe(tmp_path):
    with pytest.raises(
        InputError, match=r"'mocov2' is no Recipe. Give eqco.named_recipe\('mocov2'"
    ):
        train(source(), "mocov2", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_loading_leaves_the_callers_generator_alone(tmp_path):
    train(source(), tiny("simo"), out=tmp_path / "run", encoder=backbone())
    given = backbone()
    state = torch.get_rng_state()
    load(tmp_path / "run", backbone=given)
    assert torch.equal(torch.get_rng_state(), state)
    own = r"a module of your own, TinyBackbone. Give it in Python: eqco.load\(.*=TinyBackbone\("
    with pytest.raises(InputError, match=own):
        load(tmp_path / "run")
    with pytest.raises(InputError, match=own):
        open_weights(tmp_path / "run")
    with pytest.raises(InputError, match=r"eqco.resume\(.*, encoder=TinyBackbone\(…\)\)"):
        resume(tmp_path / "run", source())


def test_a_module_of_ones_own_is_called_by_its_class(tmp_path, capsys):
    trained = train(source(), tiny("simo"), out=tmp_path / "run", encoder=backbone())
    assert "simo, TinyBackbone at 8 pixels" in capsys.readouterr().out
    assert RunDirectory(tmp_path / "run").read_environment()["network"] == "TinyBackbone"
    assert "TinyBackbone at 8 pixels: features of 8" in repr(
        load(tmp_path / "run", backbone=backbone())
    )
    opened = open_weights(tmp_path / "run", backbone=backbone())
    shown = f"Weights({str(tmp_path / 'run')!r}, run: TinyBackbone at 8 pixels, features of 8)"
    assert repr(opened) == shown
    assert repr(trained).startswith(f"Outcome({str(tmp_path / 'run')!r}, complete after step 20, ")


def test_a_network_by_name_is_no_module(tmp_path):
    with pytest.raises(InputError, match=r"by its name is backbone='resnet18'"):
        train(source(), tiny("simo"), out=tmp_path / "run", encoder="resnet18")


def test_a_size_that_a_module_does_not_take_is_answered_with_one_that_it_does(tmp_path):
    class For64(TinyBackbone):
        def forward(self, images):
            assert images.shape[-1] == 64, "64 pixels alone"
            return super().forward(images)

    with pytest.raises(InputError, match=r"(?s)backbone For64 does not .* 64: give image_size=64"):
        train(source(), tiny("simo"), out=tmp_path / "run", encoder=For64())


def test_in_python_a_training_ends_as_the_command_does(tmp_path, capsys):
    """In silence where its progress is not shown; the module is left as it was trained."""
    module = backbone()
    eqco.train(
        source(), tiny("simo"), out=tmp_path / "run", encoder=module, show=lambda report: None
    )
    assert capsys.readouterr().out == ""
    assert all(parameter.requires_grad for parameter in module.parameters())
    files = {"validation.json", "curve.png", "neighbours.png"}
    assert files <= {path.name for path in (tmp_path / "run").iterdir()}
    rows = json.loads((tmp_path / "run" / "validation.json").read_text())["rows"]
    assert rows[-1]["name"] == "this encoder (run)"
    for name in files:
        (tmp_path / "run" / name).unlink()
    eqco.resume(tmp_path / "run", source(), encoder=backbone())
    said = capsys.readouterr().out
    assert "4 validation images (a tenth of train)" in said
    assert "validation images (4) to tell whether" in said
    assert (tmp_path / "run" / "validation.json").exists()
    ended = []
    eqco.resume(
        tmp_path / "run",
        source(),
        encoder=backbone(),
        on_end=lambda *what: ended.append(what),
        show=lambda report: None,
    )
    assert [(begun.step, outcome.step) for begun, outcome in ended] == [(20, 20)]


def test_the_learning_rate_follows_n_and_the_schedule():
    recipe = named_recipe("mocov2")
    recipe = replace(recipe, training=replace(recipe.training, num_queries=512))
    rates = [assembly.learning_rate_at(recipe, 100, step) for step in (0, 10_000, 19_999)]
    assert rates[0] == pytest.approx(0.06)
    assert rates[1] == pytest.approx(0.03)
    assert 0 < rates[2] < 1e-6
    v1 = named_recipe("mocov1")
    assert assembly.learning_rate_at(v1, 100, 11_999) == pytest.approx(0.03)
    assert assembly.learning_rate_at(v1, 100, 12_000) == pytest.approx(0.003)
    assert assembly.learning_rate_at(v1, 100, 16_000) == pytest.approx(0.0003)
    simo = named_recipe("simo")
    assert assembly.learning_rate_at(simo, 100, 0) == pytest.approx(0.03 * 0.001)
    assert assembly.learning_rate_at(simo, 100, 500) == pytest.approx(0.03 * 0.5, rel=0.01)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_trains_and_the_loss_stays_float32(precision, tmp_path):
    recipe = tiny("simo")
    recipe = replace(recipe, training=replace(recipe.training, precision=precision, epochs=1))
    train(source(), recipe, out=tmp_path, encoder=backbone())
    losses = [each["loss"] for each in RunDirectory(tmp_path).read_metrics() if "loss" in each]
    assert all(0 < loss < 10 for loss in losses)


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        recipe = tiny("simo")
        recipe = replace(recipe, training=replace(recipe.training, seed=seed, epochs=1))
        train(source(), recipe, out=tmp_path / name, encoder=backbone())
    lines = {name: RunDirectory(tmp_path / name).read_metrics() for name in "abc"}
    assert lines["a"] == lines["b"] != lines["c"]


class Forgetful(TinyBackbone):
    """One that draws by itself, whenever it is called."""

    def forward(self, images):
        return nn.functional.dropout(super().forward(images), training=self.training)


def test_what_layers_draw_is_decided_by_the_seed_not_by_what_ran_before(tmp_path):
    runs = []
    for number in range(2):
        torch.manual_seed(0)
        network = Forgetful()
        torch.manual_seed(number)
        train(source(), tiny("simo"), out=tmp_path / str(number), encoder=network)
        runs.append(RunDirectory(tmp_path / str(number)).read_metrics())
    assert runs[0] == runs[1]


def test_channels_last_changes_nothing_but_rounding(tmp_path):
    found = []
    for channels_last in (False, True):
        recipe = tiny("simo")
        recipe = replace(recipe, training=replace(recipe.training, channels_last=channels_last))
        path = tmp_path / str(channels_last)
        train(source(), recipe, out=path, encoder=backbone())
        found.append([each["loss"] for each in RunDirectory(path).read_metrics() if "loss" in each])
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_compiled_encoders_train_to_the_same_but_rounding(tmp_path):
    found = []
    for compiled in (False, True):
        recipe = tiny("simo")
        recipe = replace(recipe, training=replace(recipe.training, compile=compiled, epochs=1))
        path = tmp_path / str(compiled)
        train(source(), recipe, out=path, encoder=backbone())
        found.append([each["loss"] for each in RunDirectory(path).read_metrics() if "loss" in each])
        assert not any(
            "_orig_mod" in name for name in read_checkpoint(RunDirectory(path).last)["method"]
        )
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_ctrl_c_outside_the_main_thread_is_left_alone(tmp_path):
    """A trainer in a thread of someone's program does not take over its signals."""
    handler = signal.getsignal(signal.SIGTERM)
    recipe = tiny("simo")
    recipe = replace(recipe, training=replace(recipe.training, epochs=1))
    thread = threading.Thread(
        target=train, args=(source(), recipe), kwargs={"out": tmp_path, "encoder": backbone()}
    )
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert (Path(tmp_path) / "result.json").exists()
