"""`eqco reproduce`: one experiment, all of them, or the list of what is done."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eqco.cli import reproduce as command
from eqco.cli.main import main
from eqco.experiments import status as status_module
from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.experiment import MissingDataError, reproduce
from eqco.experiments.status import status
from eqco.experiments.tasks import simo
from eqco.recipes.profiles import SMOKE
from eqco.report.status import duration
from eqco.runtime.errors import InputError
from eqco.runtime.records import read_records
from eqco.training.alarms import NonFiniteLossError

FEW = {name: EXPERIMENTS[name] for name in ("tab5", "study-bound")}


@pytest.fixture
def timing():
    """The function that times, before it is replaced."""
    return status_module.timed_seconds


@pytest.fixture(autouse=True)
def no_timing(monkeypatch, timing):
    """A training takes a minute for each of its epochs."""
    monkeypatch.setattr(
        status_module,
        "timed_seconds",
        lambda task: 60.0 * task.recipe.training.epochs,
    )


def test_all_runs_every_experiment_that_has_the_profile(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "EXPERIMENTS", FEW)
    arguments = ["reproduce", "all", "--profile", "smoke", "--results", str(tmp_path)]
    assert main(arguments) == 0
    assert all(read_records(tmp_path, name, "smoke") for name in FEW)
    text = capsys.readouterr().out
    assert all(experiment.heading[:40] in text for experiment in FEW.values())


def test_all_leaves_out_what_lacks_its_data_and_says_how_to_run_it(tmp_path, monkeypatch, capsys):
    bccd = {"smoke": EXPERIMENTS["tab9"].profiles["desk"]}
    lacking = replace(EXPERIMENTS["tab9"], profiles=bccd)
    few = {"tab9": lacking, "study-bound": EXPERIMENTS["study-bound"]}
    monkeypatch.setattr(command, "EXPERIMENTS", few)
    arguments = ["reproduce", "all", "--profile", "smoke", "--results", str(tmp_path)]
    assert main(arguments) == 0
    assert read_records(tmp_path, "study-bound", "smoke")
    *_, why, how = capsys.readouterr().out.splitlines()
    assert why.startswith("left out: tab9: tab9 needs the data set bccd; give its folder")
    assert how == (
        "run it with: eqco reproduce tab9 --profile smoke --tiny-imagenet-20 FOLDER --bccd FOLDER "
        f"--results {tmp_path}"
    )


def test_what_is_requested_by_name_and_lacks_its_data_is_an_error(tmp_path, capsys):
    folders = ["--results", str(tmp_path), "--work", str(tmp_path)]
    assert main(["reproduce", "tab9", "--profile", "desk", *folders]) == 2
    assert "give its folder with --bccd FOLDER" in capsys.readouterr().err


def test_a_stop_by_a_signal_ends_all(tmp_path, monkeypatch, capsys):
    def stopped(recipe, seed, context):
        raise InputError("stopped by SIGTERM; run the same command to resume.")

    few = {"tab5": replace(EXPERIMENTS["tab5"], run=stopped), "study-bound": FEW["study-bound"]}
    monkeypatch.setattr(command, "EXPERIMENTS", few)
    assert main(["reproduce", "all", "--profile", "smoke", "--results", str(tmp_path)]) == 2
    assert "stopped by SIGTERM" in capsys.readouterr().err
    assert not read_records(tmp_path, "study-bound", "smoke")


def test_the_list_says_what_is_done_and_what_the_rest_needs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(Path(__file__).parents[2] / "results" / "study-bound", tmp_path / "study-bound")
    assert main(["reproduce", "--list", "--results", str(tmp_path)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert set(EXPERIMENTS) <= set(lines)
    assert " 3/3 " in lines["study-bound"]
    assert "0/33, ~6.6 h" in lines["fig4"]  # 11 runs of 12 epochs with 3 seeds


def test_a_training_that_no_record_tells_of_is_timed_and_grows_with_its_width(timing):
    narrow, wide = (simo(SMOKE, count=4, alpha=None, encoder={"width": w}) for w in (1, 2))
    assert 0 < 4 * timing(narrow) == timing(wide)


def test_the_time_of_missing_runs_is_taken_from_records_of_this_machine(tmp_path):
    experiment = find_experiment("tab5")
    done = reproduce(experiment, "smoke", [0], tmp_path)
    done[1].path(tmp_path).unlink()
    found = status(experiment, "smoke", tmp_path)
    assert (found.done, found.total, found.measured) == (1, 2, True)
    # both runs have as many steps
    assert found.seconds == pytest.approx(done[0].cpu_seconds)


def test_what_is_all_done_needs_no_time_and_what_nothing_tells_of_is_unknown(tmp_path):
    experiment = find_experiment("tab5")
    assert status(experiment, "smoke", tmp_path).seconds is None
    reproduce(experiment, "smoke", [0], tmp_path)
    assert status(experiment, "smoke", tmp_path).seconds == 0


def test_profiles_and_names_that_do_not_exist_are_refused(capsys):
    assert main(["reproduce", "all", "--profile", "full"]) == 2
    assert "no experiment has a profile 'full'. There are: smoke, desk" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert "name an experiment, or all" in capsys.readouterr().err
    assert main(["reproduce", "fig5"]) == 2


def test_a_time_is_shown_in_the_unit_that_suits_it():
    assert duration(3601) == "1 h"
    assert duration(90) == "1.5 min"


def test_an_experiment_that_fails_does_not_keep_all_from_the_others(tmp_path, monkeypatch, capsys):
    def diverged(recipe, seed, context):
        raise NonFiniteLossError("the loss is nan at step 3.")

    few = {"tab5": replace(EXPERIMENTS["tab5"], run=diverged), "study-bound": FEW["study-bound"]}
    monkeypatch.setattr(command, "EXPERIMENTS", few)
    assert main(["reproduce", "all", "--profile", "smoke", "--results", str(tmp_path)]) == 2
    assert read_records(tmp_path, "study-bound", "smoke")
    output = capsys.readouterr()
    assert "failed: tab5: the loss is nan at step 3." in output.out
    assert "1 of the experiments failed: tab5" in output.err


def test_what_was_left_out_is_reported_also_when_a_later_experiment_stops(
    tmp_path, monkeypatch, capsys
):
    def lacking(recipe, seed, context):
        raise MissingDataError("no cifar10 here.")

    def stopped(recipe, seed, context):
        raise InputError("stopped by SIGTERM; run the same command to resume.")

    few = {
        "tab5": replace(EXPERIMENTS["tab5"], run=lacking),
        "study-bound": replace(EXPERIMENTS["study-bound"], run=stopped),
    }
    monkeypatch.setattr(command, "EXPERIMENTS", few)
    assert main(["reproduce", "all", "--profile", "smoke", "--results", str(tmp_path)]) == 2
    assert "left out: tab5: no cifar10 here." in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--out", "--results", "--work"])
def test_a_file_in_place_of_a_folder_is_refused_before_anything_runs(tmp_path, capsys, option):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    arguments = ["reproduce", "tab5", "--profile", "smoke", "--results", str(tmp_path / "results")]
    assert main([*arguments, option, str(file)]) == 2
    assert f"{option} {file} is a file; give the name of a folder." in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert not (tmp_path / "results").exists()
