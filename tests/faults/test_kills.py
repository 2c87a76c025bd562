"""Killed with SIGKILL at any moment and resumed is, to the bit, the same as never killed."""

import os
import random
import signal
import time

import pytest
from faults.trainings import SMALL, assert_same_end, logged_step, saved_step
from warm import children_of, state_of

from eqco.runtime.run_directory import RunDirectory

EPOCHS = ["--training.epochs", 30]
KILLS = 24  # at random steps
KILLS_WHILE_WRITING = 16


@pytest.fixture(scope="module")
def never_killed(warm, pictures, tmp_path_factory):
    out = tmp_path_factory.mktemp("never_killed") / "run"
    command = warm.run("train", pictures, *SMALL, *EPOCHS, "--out", out)
    assert command.code == 0, command.output
    return RunDirectory(out)


def go_on(warm, pictures, run):
    """Resume, or begin anew what was killed before its first checkpoint."""
    if run.last.exists():
        return warm.start("train", "--resume", run.path)
    return warm.start("train", pictures, *SMALL, *EPOCHS, "--out", run.path)


def test_kills_at_random_steps_change_nothing(
    warm, pictures, tmp_path, never_killed, record_property
):
    run, draw = RunDirectory(tmp_path / "run"), random.Random(0)
    for number in range(KILLS):
        before = saved_step(run)
        command = go_on(warm, pictures, run)
        if number % 4 == 3:  # wherever it is: most likely still on its way to the first step
            time.sleep(draw.uniform(0, 0.4))
        else:
            target = before + draw.randint(1, 6)
            command.until(lambda wanted=target: logged_step(run) >= wanted)
            time.sleep(draw.uniform(0, 0.05))
        assert command.kill() == -signal.SIGKILL, command.output
        assert saved_step(run) >= before
    command = go_on(warm, pictures, run)
    assert command.wait() == 0, command.output
    assert_same_end(run, never_killed)
    record_property("count: kills at random steps survived", KILLS)


def test_kills_while_a_checkpoint_is_written_change_nothing(
    warm, pictures, tmp_path, never_killed, record_property
):
    """Each strikes while the file is half written: it is still there when the process is gone."""
    run, draw, hits = RunDirectory(tmp_path / "run"), random.Random(0), 0

    def half_written():
        return run.checkpoints.exists() and [
            name for name in os.listdir(run.checkpoints) if name.endswith(".partial")
        ]

    while hits < KILLS_WHILE_WRITING:
        before = saved_step(run)
        command = go_on(warm, pictures, run)
        command.until(lambda wanted=before + 1: logged_step(run) >= wanted)
        for _ in range(draw.randint(0, 1)):  # let one be written to its end
            command.until(half_written, pause=0)
            command.until(lambda: not half_written())
        command.until(half_written, pause=0)
        time.sleep(draw.choice([0, 0.002, 0.01]))
        assert command.kill() == -signal.SIGKILL, command.output
        hits += bool(half_written())
        assert saved_step(run) >= before
    command = go_on(warm, pictures, run)
    assert command.wait() == 0, command.output
    assert not half_written(), "what was half written is removed"
    assert_same_end(run, never_killed)
    record_property("count: kills while a checkpoint was written survived", hits)


def test_a_trainer_killed_beside_its_workers_can_be_resumed_at_once(warm, files, tmp_path):
    """Orphaned worker processes must not hold the run directory's lock."""
    run = RunDirectory(tmp_path / "run")
    options = [*SMALL, "--training.epochs", 400, "--data.workers", 2, "--out", run.path]
    command = warm.start("train", files, *options)
    command.until(run.last.exists)
    workers = children_of(command.pid)
    assert workers
    command.kill()
    resumed = warm.start("train", "--resume", run.path)
    resumed.until(lambda: logged_step(run) > saved_step(run))
    os.kill(resumed.pid, signal.SIGTERM)
    assert resumed.wait() == 143, resumed.output
    deadline = time.monotonic() + 30
    while any(state_of(worker) != "Z" for worker in workers):
        assert time.monotonic() < deadline, "orphans go by themselves"
        time.sleep(0.1)
