"""`eqco train` and `eqco recipes` as a user calls them."""

import io
import json
import os
import signal
from types import SimpleNamespace

import pytest
from faults.trainings import logged_step
from photos import save_photos
from rich.text import Text

import eqco
from eqco.assembly import train
from eqco.cli.main import main
from eqco.cli.train import parse
from eqco.data import open_source
from eqco.recipes import RECIPES, named_recipe, recipe_to_dict, with_settings
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.display import LogLines, training_display
from eqco.training.loop import StepReport

QUICK = ["--profile", "demo", "--training.epochs", "1", "--training.num-queries", "64"]
QUICK += ["--optimiser.warmup-epochs", "0"]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_recipes_are_listed_and_shown(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["head", "linear", "mlp", "mlp", "linear", "linear"] in lines  # of those with a memory
    groups = ["Negatives from the batch", "Negatives from a memory", "Without negatives"]
    assert all(name in text for name in (*RECIPES, *groups, "profile desk"))
    last = lines[lines.index(["Without", "negatives"]) :]
    assert not any(line and line[0] in ("K", "α") for line in last)
    assert main(["recipes", "simo", "--profile", "desk"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["method"] | {"name": "simo", "count": 16} == shown["method"]
    assert main(["recipes", "simmo"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "simmo"], "there is no recipe 'simmo'"),
        (["--profile", "huge"], "there is no profile 'huge'"),
        (["nowhere/at/all"], "neither a folder that exists nor a data set by name"),
        (["--method.count", "256"], "offers 126"),
        (["--objective.alpha", "-3"], "objective.alpha=-3"),
        (
            ["--training.epochs", "1", "--optimiser.warmup-epochs", "2"],
            "warmup_epochs=2.0 is longer",
        ),
        (["--resume", "nowhere"], "nowhere a run directory?"),
        (["--resume", "a", "--out", "b"], "--out b and --resume a were both given"),
        (["--encoder.backbone", "resnet19"], "resnet18"),
        (["--recipe", "mocov2", "--method.queue-size", "4096"], "an epoch has 2 batches of 256"),
        (
            ["--resume", "a", "--objective.alpha", "3"],
            "new run: eqco train DATA --recipe RUN/recipe.json --objective.alpha … --out OTHER",
        ),
        (
            ["--resume", "a", "--recipe", "mocov2"],
            "new run: eqco train DATA --recipe … --out OTHER",
        ),
        (["--resume", "a", "--minutes", "3"], "new run: eqco train DATA --minutes … --out OTHER"),
        (
            ["--resume", "a", "--training.epochs", "3"],
            "train it longer as a new run: eqco train --extend RUN --training.epochs …",
        ),
        (["--resume", "a", "--extend", "b"], "leave out --resume: eqco train --extend RUN makes"),
        (["--device", "cuda:7"], "--device cuda:7 cannot be used here"),
        (["--device", "toaster"], "--device toaster is no device; choose cpu"),
        (["--recipe", "mocov1", "--training.epochs", "5"], "optimiser.drops=(12, 16); they must"),
        (
            ["--recipe", "cmc", "--training.epochs", "1"],
            "one epoch has room for none, since training.epochs=1. Train for longer, or give "
            "others by --optimiser.drops (without a number: none)",
        ),
        (
            ["--extend", "a-file"],
            "--extend a-file is a file, and a run is extended from its last checkpoint. Give the "
            "run directory it belongs to.",
        ),
        (["--out", "a-file"], "a-file is a file, and a run is a folder. Choose another --out."),
    ],
)
def test_bad_input_is_reported_without_traceback(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"], "nothing is left behind"


def test_of_its_settings_a_resumed_run_takes_workers_and_not_to_be_compiled(capsys, tmp_path):
    run = RunDirectory(tmp_path)
    began = {"source": "groceries", "data": "groceries", "images": 675}
    run.start(recipe_to_dict(named_recipe("simo", "smoke")), began)
    assert main(["train", "--resume", str(tmp_path), "--data.workers", "-1"]) == 2
    assert "data.workers=-1; it must be at least 0" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path), "--data.image-size", "32"]) == 2
    assert "--data.image-size was given beside --resume" in capsys.readouterr().err
    for values in (["True"], ["auto"], ["False", "True"]):
        given = [argument for value in values for argument in ("--training.compile", value)]
        assert main(["train", "--resume", str(tmp_path), *given]) == 2
        assert "--training.compile was given beside --resume" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path), "--training.compile", "False"]) == 2
    assert f"no checkpoint at {run.last}" in capsys.readouterr().err


@pytest.mark.end_to_end
def test_a_compiled_run_is_resumed_uncompiled_by_the_command(capsys, tmp_path, monkeypatch):
    def stop(report):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("eqco.assembly.parts.check_compiler", lambda device: None)
    monkeypatch.setattr("eqco.assembly.parts.compile_encoders", lambda method: None)
    monkeypatch.setattr("eqco.cli.train.conclude", lambda outcome, begun: None)
    recipe = with_settings(named_recipe("simo", "smoke"), compile=True)
    assert train("groceries", recipe, out=tmp_path, show=stop).step == 5
    assert main(["train", "--resume", str(tmp_path), "--training.compile=False"]) == 0
    assert "compiled until step 5, uncompiled from here on" in capsys.readouterr().out
    assert RunDirectory(tmp_path).read_recipe()["training"]["compile"] is False


def test_an_unknown_setting_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--objective.alfa", "3"])
    assert stop.value.code == 2
    assert "--objective.alpha" in capsys.readouterr().err


def report(step, diagnostics=None, diagnosed_at=0):
    return StepReport(
        step=step,
        total_steps=36_000,
        loss=1.0,
        learning_rate=0.008787,
        images_per_second=1000.0,
        seconds_left=1.0,
        diagnostics=diagnostics,
        diagnosed_at=diagnosed_at,
    )


@pytest.mark.parametrize("columns", [80, 100])
def test_a_terminal_shows_the_step_and_cuts_no_word(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    with training_display(stream) as show:
        show(report(12_340, SimpleNamespace(information=1.234, information_kind="estimate")))
    shown = Text.from_ansi(stream.getvalue()).plain
    assert "loss 1.000, info ≈ 1.23 nats, lr 0.008787, 1000 images/s" in shown
    assert "12340/36000" in shown
    assert "…" not in shown


def test_a_log_file_gets_about_sixty_lines():
    stream = io.StringIO()
    lines = LogLines(stream)
    for step in range(10, 36_001, 10):
        lines.show(report(step))
    assert 60 <= len(stream.getvalue().splitlines()) <= 62
    assert "36000/36000" in stream.getvalue()


def test_a_log_file_says_of_which_step_an_earlier_reading_is():
    seen, stream = SimpleNamespace(information=1.234, information_kind="bound"), io.StringIO()
    lines = LogLines(stream)
    lines.show(report(600, seen, diagnosed_at=600))
    lines.show(report(1200, seen, diagnosed_at=600))
    now, later = stream.getvalue().splitlines()
    assert "info ≥ 1.23 nats," in now
    assert "info ≥ 1.23 nats at step 600," in later


def test_a_training_leaves_a_run_that_its_recipe_file_repeats(warm, tmp_path):
    first = warm.run("train", *QUICK, "--out", tmp_path / "a", "--method.count", 5)
    assert first.code == 0, first.errors
    assert "groceries: 675 images (" in first.said
    assert "as test); simo, light at 32 pixels" in first.said
    assert first.said.count("what one view tells of the other, read off the loss") == 1
    assert "this encoder (a)" in first.said
    assert "N = 64, K = 5, α = 256, τ = 0.2, learning rate 0.015; 1 epoch × 10" in first.said
    assert "little is learned in 10 steps: raise --training.epochs to 20" in first.said
    assert "57 validation images (val), not test images" in first.said
    named = ("raw pixels", "colour histogram", "random weights, light")
    assert all(name in first.said for name in named)
    assert f"warning: this encoder is not clearly better than {named[0]}" in first.said
    assert "images/s" in first.said
    recipe = json.loads((tmp_path / "a" / "recipe.json").read_text())
    assert recipe["method"]["count"] == 5
    again = ["--recipe", str(tmp_path / "a" / "recipe.json"), "--out", str(tmp_path / "b")]
    assert main(["train", *again]) == 0
    lines = [(tmp_path / name / "metrics.jsonl").read_text() for name in "ab"]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("other", ["--recipe=simo", "--profile=smoke", "--extend=runs/photos"])
def test_minutes_beside_a_recipe_are_refused(capsys, other):
    assert main(["train", "--minutes", "5", other]) == 2
    assert "--minutes was given beside a recipe" in capsys.readouterr().err


def test_a_run_that_is_complete_is_answered_with_how_to_train_it_longer(tmp_path, capsys):
    place = tmp_path / "run"
    RunDirectory(place).start({}, {})
    (place / "checkpoints" / "last.pt").touch()
    (place / "result.json").touch()
    assert main(["train", *QUICK, "--out", str(place)]) == 2
    said = capsys.readouterr().err
    assert f"or train it longer: eqco train --extend {place} --training.epochs N." in said
    assert "detector" not in said


@pytest.mark.parametrize(
    ("began", "why", "network"),
    [
        ({"source": None, "network": None}, "on a Dataset given in Python. Give a folder, or", ""),
        ({"source": "photos", "network": "Mine"}, "a module of your own, Mine", "encoder=…, "),
    ],
)
def test_what_no_command_can_extend_is_answered_with_the_call_in_python(
    began, why, network, tmp_path, capsys
):
    run = RunDirectory(tmp_path / "run")
    recipe = recipe_to_dict(named_recipe("simo", "smoke"))
    run.start(recipe, {"data": "photos", "images": 9, **began})
    assert main(["train", "--extend", str(run.path)]) == 2
    said = capsys.readouterr().err
    assert why in said
    call = f"eqco.train(…, {network}init='{run.path}', epochs=N, out='{run.path}-extended')"
    assert f"rain it longer in Python: {call}." in said
    (run.checkpoints / "last.pt").touch()
    run.result.touch()
    with pytest.raises(InputError) as refused:
        run.refuse_started()
    assert str(refused.value).endswith(f"or train it longer: {call}.")


def test_more_processes_than_a_batch_has_images_are_refused_before_they_start(tmp_path, capsys):
    save_photos(tmp_path / "photos", 48)
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", str(tmp_path / "photos"), "--processes", "64", *out]) == 2
    assert "eqco: 64 processes for batches of 32 images" in capsys.readouterr().err
    command = ["train", str(tmp_path / "photos"), "--processes", "5", *out]
    assert main([*command, "--training.num-queries", "16"]) == 2
    assert "which 5 processes cannot share equally" in capsys.readouterr().err


def test_a_warm_up_keeps_its_share_of_other_epochs_unless_it_is_given(tmp_path):
    recipe = with_settings(named_recipe("simo", "folder"), epochs=40, warmup_epochs=8.0)
    RunDirectory(tmp_path / "run").start(recipe_to_dict(recipe), {})
    shorter = ["--training.epochs", "5"]
    for given in (
        ["--extend", str(tmp_path / "run")],
        ["--recipe", str(tmp_path / "run/recipe.json")],
    ):
        options = parse([*given, *shorter])
        assert (options.training.epochs, options.optimiser.warmup_epochs) == (5, 1.0)
        assert options.notes[-1] == "warm-up of 1 of 5 epochs, the share that it had of 40"
        kept = parse([*given, *shorter, "--optimiser.warmup-epochs", "2"])
        assert kept.optimiser.warmup_epochs == 2.0
        assert not any("warm-up" in note for note in kept.notes)
        assert parse(given).optimiser.warmup_epochs == 8.0


@pytest.mark.parametrize(
    ("recipe", "epochs", "drops", "note"),
    [
        ((4, (2, 3)), 2, (1,), "drops at 1 of 2 epochs, where they were at 2, 3 of 4"),
        ((200, (120, 160)), 800, (480, 640), "480, 640 of 800 epochs, where they were at 120, 160"),
        ((4, (2, 3)), 1, (), "drops at none of 1 epochs, where they were at 2, 3 of 4"),
    ],
)
def test_drops_keep_their_share_of_other_epochs_unless_they_are_given(
    recipe, epochs, drops, note, tmp_path
):
    length, before = recipe
    mocov1 = with_settings(named_recipe("mocov1", "folder"), epochs=length, drops=before)
    RunDirectory(tmp_path / "run").start(recipe_to_dict(mocov1), {})
    for given in (
        ["--extend", str(tmp_path / "run")],
        ["--recipe", str(tmp_path / "run/recipe.json")],
    ):
        options = parse([*given, "--training.epochs", str(epochs)])
        assert options.optimiser.drops == drops
        assert note in options.notes[-1]
        kept = parse([*given, "--training.epochs", "900", "--optimiser.drops", "7", "9"])
        assert kept.optimiser.drops == (7, 9)
        assert not any("drops at" in note for note in kept.notes)
        assert parse(given).optimiser.drops == before


def test_an_image_that_cannot_be_read_does_not_stop_what_a_training_ends_with(warm, tmp_path):
    for number in range(40):
        image = open_source("groceries")["train"].images.read(number)
        place = tmp_path / "photos" / "train" / f"{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        image.resize((40 + number, 50)).save(place / f"{number:02d}.jpg")
    broken = tmp_path / "photos" / "train" / "0" / "04.jpg"
    broken.write_bytes(broken.read_bytes()[:900])  # its header is whole
    (broken.parent / "words.png").write_text("words")
    command = ["train", tmp_path / "photos", *QUICK, "--training.num-queries", 20]
    command += ["--data.on-unreadable", "skip"]
    trained = warm.run(*command, "--out", tmp_path / "run")
    assert trained.code == 0, trained.errors
    assert "validation images (a tenth of train)" in trained.said
    listed = tmp_path / "run" / "unreadable.txt"
    assert f"left out, since they cannot be read: 1, listed in {listed}" in trained.said
    assert "found damaged while training, and replaced by others: 1" in trained.said
    assert f"written: {listed}" in trained.said.replace("\n", "")
    assert {"validation.json", "curve.png"} <= {each.name for each in (tmp_path / "run").iterdir()}
    trained = warm.run(*command, "--unlabelled", "--out", tmp_path / "other")
    assert trained.code == 0, trained.errors
    assert (tmp_path / "other" / "neighbours.png").exists()


def test_what_a_killed_training_did_not_end_with_is_made_up_for(warm, tmp_path):
    first = warm.run("train", *QUICK, "--out", tmp_path / "run")
    assert first.code == 0, first.errors
    for name in ("validation.json", "neighbours.png"):
        (tmp_path / "run" / name).unlink()
    for said in ("validation images", "was finished already"):
        again = warm.run("train", "--resume", tmp_path / "run")
        assert again.code == 0, again.errors
        assert said in again.said


def test_sigterm_saves_and_says_how_to_resume(warm, tmp_path):
    place = tmp_path / "run"
    command = warm.start("train", *QUICK, "--training.epochs", "50", "--out", place)
    command.until(lambda: logged_step(RunDirectory(place)), pause=0.05)
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 143, command.errors
    assert f"resume with: eqco train --resume {place}" in command.said
    assert (place / "checkpoints" / "last.pt").exists()


def test_a_folder_of_images_without_classes_trains_and_resumes(warm, tmp_path, capsys):
    """JPEG files of several sizes in one folder, decoded by a worker process."""
    folder = tmp_path / "photos" / "mine"
    folder.mkdir(parents=True)
    split = open_source("groceries")["train"]
    for number in range(40):
        image = split.images.read(number)
        image.resize((40 + number, 50)).save(folder / f"{number:02d}.jpg")
    command = ["train", str(tmp_path / "photos"), *QUICK, "--training.num-queries", "20"]
    command += ["--out", str(tmp_path / "run")]
    trained = warm.run(*command, "--data.workers", 1)
    assert trained.code == 0, trained.errors
    assert "There are no labels, so that nobody can say" in trained.said
    assert "the other (at step 2)" in trained.said, "2 steps, and one look in 50"
    assert (tmp_path / "run" / "neighbours.png").exists()
    assert "has one folder, mine: its images are taken without classes" in trained.said
    assert "images are decoded once" in trained.said
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "was finished already, after 2 steps; nothing was trained" in said
    assert "trained for" not in said


def test_without_a_recipe_everything_is_chosen_and_what_is_given_is_kept(tmp_path, capsys):
    given = ["--training.epochs", "2", "--objective.temperature", "0.3", "--method.shared"]
    assert main(["train", *given, "--minutes", "0.1", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "images a second here" in said
    assert "as given" in said
    assert "little is learned in 20 steps: raise --training.epochs to 20" in said
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (recipe["training"]["epochs"], recipe["objective"]["temperature"]) == (2, 0.3)
    assert recipe["method"]["shared"]
    assert recipe["training"]["num_queries"] == 64
    assert {"validation.json", "neighbours.png", "curve.png"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }


def test_a_run_is_extended_from_its_weights_by_a_new_schedule(tmp_path, capsys):
    assert main(["train", *QUICK, "--data.image-size", "16", "--out", str(tmp_path / "run")]) == 0
    assert main(["train", "--extend", str(tmp_path / "run"), "--training.epochs", "2"]) == 0
    longer = tmp_path / "run-extended"
    recipes = [
        json.loads((place / "recipe.json").read_text()) for place in (tmp_path / "run", longer)
    ]
    assert [recipe["training"].pop("epochs") for recipe in recipes] == [1, 2]
    seeds = [recipe["training"].pop("seed") for recipe in recipes]
    assert recipes[0] == recipes[1]
    assert (
        f"seed {seeds[1]}, which follows {seeds[0]} of {tmp_path / 'run'}"
        in capsys.readouterr().out
    )
    began = json.loads((longer / "environment.json").read_text())
    assert (began["init"], began["source"]) == (str(tmp_path / "run"), "groceries")
    assert began["extended"]
    assert main(["train", "--extend", str(tmp_path / "run"), "--recipe", "simclr"]) == 2
    assert "--recipe was given beside --extend" in capsys.readouterr().err
    assert main(["train", "--extend", str(tmp_path / "run"), "--init", "random"]) == 2
    assert "choose one" in capsys.readouterr().err
    file = tmp_path / "run" / "checkpoints" / "last.pt"
    assert main(["train", "--extend", str(file)]) == 2
    assert f"Give the run directory: {tmp_path / 'run'}." in capsys.readouterr().err
    with pytest.raises(InputError, match=f"Give the run directory: {tmp_path / 'run'}"):
        eqco.train(extend=file)


def test_every_extension_draws_anew_by_a_seed_of_its_own(tmp_path):
    """The seed decides orders, crops and colours, and stands in the recipe that a resume reads."""
    seeds = [0]
    for number in range(3):
        recipe = with_settings(named_recipe("simo", "smoke"), seed=seeds[-1])
        RunDirectory(tmp_path / f"{number}").start(recipe_to_dict(recipe), {})
        seeds.append(parse(["--extend", str(tmp_path / f"{number}")]).training.seed)
    assert len(set(seeds)) == 4
    again = ["--extend", str(tmp_path / "0")]
    assert parse(again).training.seed == seeds[1]
    given = parse([*again, "--training.seed", "5"])
    assert (given.training.seed, given.notes) == (5, ())


def test_nothing_is_written_among_the_photos(tmp_path, capsys):
    folder = tmp_path / "photos"
    folder.mkdir()
    open_source("groceries")["train"].images.read(0).save(folder / "mine.png")
    before = sorted(folder.rglob("*"))
    smoke = ["--profile", "smoke", "--out", str(folder)]
    for data, message in ((str(folder), "Give --out outside it"), ("groceries", "is no run.")):
        assert main(["train", data, *smoke]) == 2
        assert message in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
