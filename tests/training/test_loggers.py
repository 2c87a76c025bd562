"""Loggers get the numbers of every line, and of a resumed run every step once, under one id."""

import csv
import json
import os
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch

from eqco.assembly import build_components, resume, train
from eqco.data import source_from_dataset
from eqco.recipes import named_recipe, recipe_from_dict, recipe_to_dict, with_settings
from eqco.runtime.errors import MissingExtraError
from eqco.runtime.run_directory import RunDirectory
from eqco.training.loggers import open_loggers


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunDirectory(tmp_path / "run")


def write_twice(name, run, settings=None):
    """Steps 1 to 4, stopped before the last probe and resumed after step 2, up to step 5."""
    for start, stop in ((0, 4), (2, 5)):
        (logger,) = open_loggers([name], run, start, settings or {})
        for step in range(start + 1, stop + 1):
            logger.write(step, {"loss": step / 2, "learning_rate": 0.1})
            if step % 2 == 0 and step < stop:
                logger.write(step, {"probe/knn": step / 10})
        logger.close()
        if name == "tensorboard":  # which reads files by name, and names them by the second
            time.sleep(1.1 - time.time() % 1)


LOSSES = {step: step / 2 for step in range(1, 6)}


def test_csv_has_a_line_for_each_write_and_a_column_for_each_number(run):
    write_twice("csv", run)
    with open(run.path / "metrics.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["step", "loss", "learning_rate", "probe/knn"]
    assert {int(line["step"]): float(line["loss"]) for line in lines if line["loss"]} == LOSSES
    assert [line["step"] for line in lines if line["probe/knn"]] == ["2", "4"]
    assert len(lines) == 7


def test_a_line_of_csv_that_was_cut_short_is_left_out(run):
    (logger,) = open_loggers(["csv"], run, 0, {})
    logger.write(100, {"loss": 0.5})
    with open(run.path / "metrics.csv", "a") as file:
        file.write("1")  # of 150
    open_loggers(["csv"], run, 100, {})
    with open(run.path / "metrics.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [{"step": "100", "loss": "0.5"}]


def test_tensorboard_shows_a_resumed_step_once(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_twice("tensorboard", run)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert {event.step: event.value for event in events.Scalars("loss")} == LOSSES
    assert len(events.Scalars("loss")) == 5


@pytest.mark.end_to_end
def test_mlflow_keeps_its_run_and_has_every_step_once(run, monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to set up
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    write_twice("mlflow", run, {"objective": {"alpha": 256.0}})
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("mine").experiment_id
    (found,) = client.search_runs([experiment])
    assert found.info.run_id == json.loads(run.loggers.read_text())["mlflow"]
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params == {"objective.alpha": "256.0"}
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == list(LOSSES.items())
    probes = client.get_metric_history(found.info.run_id, "probe/knn")
    assert [metric.step for metric in probes] == [2, 4]


@pytest.mark.end_to_end
def test_wandb_keeps_its_id_over_a_resume(run, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    seen = []
    real = wandb.init

    def init(**arguments):
        seen.append(arguments)
        return real(**arguments)

    monkeypatch.setattr(wandb, "init", init)
    write_twice("wandb", run, {"objective": {"alpha": 256.0}})
    number = json.loads(run.loggers.read_text())["wandb"]
    assert [call["id"] for call in seen] == [number] * 2
    assert {call["resume"] for call in seen} == {"allow"}
    files = list((run.path / "wandb").glob(f"offline-run-*-{number}/run-{number}.wandb"))
    assert files


def test_a_missing_package_is_answered_before_anything_is_trained(monkeypatch):
    recipe = with_settings(named_recipe("simo", "smoke"), logger=("csv", "wandb"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    source = source_from_dataset(torch.zeros(40, 3, 16, 16, dtype=torch.uint8))
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[wandb\]"'):
        build_components(recipe, source)


def test_the_setting_survives_json_and_is_left_out_where_it_is_the_usual_one():
    recipe = named_recipe("simo", "smoke")
    assert "logger" not in recipe_to_dict(recipe)["training"]
    other = with_settings(recipe, logger=("csv", "mlflow"))
    assert recipe_from_dict(json.loads(json.dumps(recipe_to_dict(other)))) == other
    assert with_settings(recipe, logger=()).training.logger == ()


@pytest.mark.end_to_end
def test_a_stopped_and_resumed_training_logs_what_an_uninterrupted_one_does(tmp_path):
    recipe = named_recipe("simo", "smoke")
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=8),
        method=replace(recipe.method, count=3),
        training=replace(
            recipe.training, num_queries=4, epochs=2, log_every=1, logger=("csv", "tensorboard")
        ),
    )
    pixels = torch.randint(0, 256, (16, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    source = source_from_dataset(pixels.to(torch.uint8))
    train(source, recipe, out=tmp_path / "whole")
    train(
        source,
        recipe,
        out=tmp_path / "cut",
        show=lambda report: os.kill(os.getpid(), signal.SIGTERM) if report.step == 3 else None,
    )
    resume(tmp_path / "cut", source)
    tables = []
    for name in ("whole", "cut"):
        with open(tmp_path / name / "metrics.csv", newline="") as file:
            tables.append(list(csv.DictReader(file)))
        assert (tmp_path / name / "tensorboard").is_dir()
    for line in (*tables[0], *tables[1]):
        assert float(line.pop("images_per_second")) > 0
    assert tables[0] == tables[1]
    assert [line["step"] for line in tables[0]] == [str(step) for step in range(1, 9)]
