"""Several processes as a user starts them: lost ones, stopped ones, hanging ones, two machines."""

import os
import signal
from pathlib import Path

import pytest
import torch
from photos import save_photos
from together import ended, free_port, start
from torch.testing import assert_close

SETTINGS = [
    "train",
    "--profile",
    "demo",
    "--training.num-queries",
    "64",
    "--training.epochs",
    "30",
    "--data.image-size",
    "16",
    "--optimiser.warmup-epochs",
    "1",
    "--training.save-every",
    "10",
    "--training.log-every",
    "1",
    # one process and two are equal to rounding, and that of bfloat16 is coarse
    "--training.precision",
    "float32",
]
STEPS, SAVED = 30, 10  # in all, and at the first checkpoint
EQCO = ["-m", "eqco"]
TORCHRUN = ["-m", "torch.distributed.run"]


def state_of(run_directory):
    """Weights, statistics, memory and optimiser of the last checkpoint."""
    state = torch.load(run_directory / "checkpoints" / "last.pt", weights_only=True)
    return {name: state[name] for name in ("step", "method", "optimiser")}


def wait_for_checkpoint(run_directory, worker):
    worker.until((run_directory / "checkpoints" / "last.pt").exists, pause=0.02)


def workers_of(parent):
    """The processes that a launcher has started, by rank."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            above = int(status.read_text().rsplit(")", 1)[1].split()[1])
            environment = (status.parent / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        ranks = [entry[5:] for entry in environment if entry.startswith(b"RANK=")]
        if above == parent and ranks:
            found[int(ranks[0])] = int(status.parent.name)
    return found


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """The command of a training on 64 photos: a step is an epoch."""
    photos = save_photos(tmp_path_factory.mktemp("data") / "photos", 64)
    return [*EQCO, *SETTINGS, photos]


@pytest.fixture(scope="module")
def whole(warm, training, tmp_path_factory):
    """A run of two processes that nothing happens to."""
    place = tmp_path_factory.mktemp("whole")
    job = warm.python(*training, "--processes", "2", cwd=place)
    assert job.wait() == 0, job.errors
    assert f"trained for {STEPS} steps" in job.said
    assert job.errors == ""
    return place / "runs" / "simo"


def test_a_killed_worker_is_started_again_and_nothing_differs(warm, training, whole, tmp_path):
    job = warm.python(*training, "--processes", "2", "--restarts", "2", cwd=tmp_path)
    mine = tmp_path / "runs" / "simo"
    wait_for_checkpoint(mine, job)
    os.kill(workers_of(job.pid)[1], signal.SIGKILL)
    assert job.wait() == 0, job.errors
    assert "started again after a process was lost" in job.said
    assert state_of(mine)["step"] == STEPS
    assert_close(state_of(mine), state_of(whole), rtol=0, atol=0)
    assert (mine / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


def test_a_job_stopped_on_two_processes_resumes_on_one(warm, training, whole, tmp_path):
    job = warm.python(*training, "--processes", "2", cwd=tmp_path)
    mine = tmp_path / "runs" / "simo"
    wait_for_checkpoint(mine, job)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait() == 143, job.errors
    assert "stopped by SIGTERM" in job.said
    assert SAVED <= state_of(mine)["step"] < STEPS
    resumed = warm.run("train", "--resume", mine)
    assert resumed.code == 0, resumed.errors
    assert "begun on 2 processes, resumed on 1: the same to rounding" in resumed.said
    assert state_of(mine)["step"] == STEPS
    assert_close(state_of(mine)["method"], state_of(whole)["method"], rtol=1e-2, atol=1e-3)


def test_two_machines_are_two_processes(warm, training, whole, tmp_path):
    """Two agents of torchrun that meet at one address, as on two machines with a shared folder."""
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    meeting += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "two-machines"]
    command = [*TORCHRUN, *meeting, *training]
    for code, _, errors in ended([warm.python(*command, cwd=tmp_path) for _ in range(2)]):
        assert code == 0, errors
    assert_close(state_of(tmp_path / "runs" / "simo"), state_of(whole), rtol=0, atol=0)


@pytest.mark.parametrize(("count", "fate"), [(2, signal.SIGSTOP), (2, signal.SIGKILL)])
def test_a_rank_that_hangs_or_is_gone_is_named(count, fate, warm, training, tmp_path):
    command = [*training, "--training.epochs", "5000", "--timeout", "10"]
    workers = start(warm, [*command, "--out", tmp_path / "run"], count)
    wait_for_checkpoint(tmp_path / "run", workers[0])
    saved = state_of(tmp_path / "run")["step"]
    lost = count - 1
    os.kill(workers[lost].pid, fate)
    said = ended(workers[:lost])
    workers[lost].kill()
    for rank, (code, _, errors) in enumerate(said):
        assert code == 2, errors
        assert f"eqco (rank {rank}): rank {rank} of {count} waited for rank {lost}" in errors
        assert "Traceback" not in errors
    assert state_of(tmp_path / "run")["step"] >= saved


def test_a_rank_that_never_comes_is_reported(warm, training, tmp_path):
    lonely = start(warm, [*training, "--timeout", "2", "--out", tmp_path / "run"], 2)
    lonely[1].kill()
    [(code, _, errors)] = ended(lonely[:1])
    assert code == 2
    assert "rank 0 of 2 could not connect to the others within 2 s" in errors
    assert "Traceback" not in errors


def test_a_restart_does_not_take_over_the_run_of_another_job(warm, training, whole, tmp_path):
    """Refused at first, and refused again by the launcher's second try."""
    before = (whole / "metrics.jsonl").read_text()
    again = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "1"]
    job = warm.python(*TORCHRUN, *again, *training, "--out", whole, cwd=tmp_path)
    assert job.wait() != 0
    assert "started again" not in job.said
    assert job.errors.count("holds a run already") == 2
    assert (whole / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--restarts", "2"], "--restarts 2 without --processes"),
        (["--processes", "3"], "which 3 processes cannot share equally. Choose a multiple of 3"),
        (["--processes", "0"], "--processes 0; it must be at least 1"),
        (
            ["--recipe", "mocov2", "--encoder.bn-groups", "2", "--processes", "4"],
            "encoder.bn_groups=2 with 4 processes",
        ),
    ],
)
def test_a_number_of_processes_that_does_not_fit_is_refused_once(arguments, message, capsys):
    from eqco.cli.main import main

    assert main([*SETTINGS, *arguments]) == 2
    assert capsys.readouterr().err.count(message) == 1


def test_processes_within_processes_are_refused(monkeypatch, capsys):
    from eqco.cli.main import main

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main([*SETTINGS, "--processes", "2"]) == 2
    assert "eqco (rank 1): --processes 2 under torchrun" in capsys.readouterr().err
