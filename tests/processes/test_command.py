"""Several processes as a user starts them: lost ones, stopped ones, hanging ones, two machines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from together import ended, free_port, start
from torch.testing import assert_close

SETTINGS = [
    "train",
    "--profile",
    "demo",
    "--training.num-queries",
    "64",
    "--training.epochs",
    "3",
    "--data.image-size",
    "16",
    "--optimiser.warmup-epochs",
    "1",
    "--training.save-every",
    "1",
    "--training.log-every",
    "1",
]
STEPS, SAVED = 30, 10  # in all, and at the first checkpoint
EQCO = ["-m", "eqco"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(command, *, cwd, **environment):
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def state_of(run_directory):
    """Weights, statistics, memory and optimiser of the last checkpoint."""
    state = torch.load(run_directory / "checkpoints" / "last.pt", weights_only=True)
    return {name: state[name] for name in ("step", "method", "optimiser")}


def wait_for_checkpoint(run_directory, worker, seconds=300):
    end = time.monotonic() + seconds
    while not (run_directory / "checkpoints" / "last.pt").exists():
        assert worker.poll() is None, worker.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


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
def whole(tmp_path_factory):
    """A run of two processes that nothing happens to."""
    place = tmp_path_factory.mktemp("whole")
    [(code, said, errors)] = ended([run([*EQCO, *SETTINGS, "--processes", "2"], cwd=place)])
    assert code == 0, errors
    assert f"trained for {STEPS} steps" in said
    assert errors == ""
    return place / "runs" / "simo"


def test_a_killed_worker_is_started_again_and_nothing_differs(whole, tmp_path):
    command = [*TORCHRUN, "--max-restarts", "2", *EQCO, *SETTINGS]
    job = run(command, cwd=tmp_path)
    mine = tmp_path / "runs" / "simo"
    wait_for_checkpoint(mine, job)
    os.kill(workers_of(job.pid)[1], signal.SIGKILL)
    [(code, said, errors)] = ended([job])
    assert code == 0, errors
    assert "started again after a process was lost" in said
    assert state_of(mine)["step"] == STEPS
    assert_close(state_of(mine), state_of(whole), rtol=0, atol=0)
    assert (mine / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


def test_a_job_stopped_on_two_processes_resumes_on_one(whole, tmp_path):
    job = run([*EQCO, *SETTINGS, "--processes", "2"], cwd=tmp_path)
    mine = tmp_path / "runs" / "simo"
    wait_for_checkpoint(mine, job)
    job.send_signal(signal.SIGTERM)
    [(code, said, _)] = ended([job])
    assert code == 143
    assert "stopped by SIGTERM" in said
    assert SAVED <= state_of(mine)["step"] < STEPS
    [(code, said, errors)] = ended([run([*EQCO, "train", "--resume", mine], cwd=tmp_path)])
    assert code == 0, errors
    assert "begun on 2 processes, resumed on 1: the same to rounding" in said
    assert state_of(mine)["step"] == STEPS
    assert_close(state_of(mine)["method"], state_of(whole)["method"], rtol=1e-2, atol=1e-3)


def test_two_machines_are_two_processes(whole, tmp_path):
    """Two agents of torchrun that meet at one address, as on two machines with a shared folder."""
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    meeting += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "two-machines"]
    command = ["-m", "torch.distributed.run", *meeting, *EQCO, *SETTINGS]
    for code, _, errors in ended([run(command, cwd=tmp_path) for _ in range(2)]):
        assert code == 0, errors
    assert_close(state_of(tmp_path / "runs" / "simo"), state_of(whole), rtol=0, atol=0)


@pytest.mark.parametrize(("count", "fate"), [(2, signal.SIGSTOP), (2, signal.SIGKILL)])
def test_a_rank_that_hangs_or_is_gone_is_named(count, fate, tmp_path):
    command = [*EQCO, *SETTINGS, "--training.epochs", "500", "--timeout", "20"]
    workers = start([*command, "--out", tmp_path / "run"], count)
    wait_for_checkpoint(tmp_path / "run", workers[0])
    saved = state_of(tmp_path / "run")["step"]
    lost = count - 1
    workers[lost].send_signal(fate)
    try:
        said = [worker.communicate(timeout=240)[1] for worker in workers[:lost]]
    finally:
        for worker in workers:
            worker.kill()
        workers[lost].communicate()
    for rank, errors in enumerate(said):
        assert workers[rank].returncode == 2, errors
        assert f"eqco (rank {rank}): rank {rank} of {count} waited for rank {lost}" in errors
        assert "Traceback" not in errors
    assert state_of(tmp_path / "run")["step"] >= saved


def test_a_rank_that_never_comes_is_reported(tmp_path):
    lonely = start([*EQCO, *SETTINGS, "--timeout", "2", "--out", tmp_path / "run"], 2)
    lonely[1].kill()
    lonely[1].communicate()
    [(code, _, errors)] = ended(lonely[:1])
    assert code == 2
    assert "rank 0 of 2 could not connect to the others within 2 s" in errors
    assert "Traceback" not in errors


def test_a_restart_does_not_take_over_the_run_of_another_job(whole, tmp_path):
    """Refused at first, and refused again by the launcher's second try."""
    before = (whole / "metrics.jsonl").read_text()
    command = [*EQCO, *SETTINGS, "--processes", "2", "--restarts", "1", "--out", whole]
    [(code, said, errors)] = ended([run(command, cwd=tmp_path)])
    assert code != 0
    assert "started again" not in said
    assert "holds a run already" in errors
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
