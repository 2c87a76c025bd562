"""Checkpoints that cannot be used and folders that cannot be written: reported, nothing lost."""

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from faults.trainings import SMALL, assert_same_end, saved_step

from eqco.runtime.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from eqco.runtime.run_directory import RunDirectory


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run of three epochs, to be harmed."""
    return RunDirectory(shutil.copytree(trained, tmp_path / "run"))


def harm(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "one bit flipped":
        content[len(content) // 2] ^= 4
    else:
        content = b""
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "one bit flipped", "empty"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_resumes(how, run, trained, warm):
    harm(run.last, how)
    warm.run("train", "--resume", run.path).refused(
        str(run.last), "is damaged", f"The last good one is {run.previous}: resume from that."
    )
    assert read_checkpoint(run.previous)["step"] == 6
    again = warm.run("train", "--resume", run.previous)
    assert again.code == 0, again.output
    assert_same_end(run, RunDirectory(trained))


def test_a_kill_after_going_on_beside_a_damaged_checkpoint_loses_nothing(run, monkeypatch):
    """The damaged file must not take the place of the whole one before the new one stands."""
    harm(run.last, "truncated")
    state = read_checkpoint(run.previous)
    whole = []
    replace = os.replace

    def watched(*arguments):
        for moment in range(2):
            whole.append(any(is_whole(path) for path in (run.last, run.previous)))
            if moment == 0:
                replace(*arguments)

    monkeypatch.setattr(os, "replace", watched)
    run.save(state, keep=False)
    assert len(whole) == 4
    assert all(whole)


def is_whole(path):
    try:
        return bool(read_checkpoint(path))
    except CheckpointError:
        return False


def test_only_a_checkpoint_that_was_read_is_called_good(run, warm):
    harm(run.last, "truncated")
    harm(run.previous, "one bit flipped")
    other = run.checkpoints / "others.pt"
    torch.save({"state_dict": {}}, other)  # whole, newest, and not ours
    said = warm.run("train", "--resume", run.path).refused(
        str(run.last), "is damaged", "There is no other checkpoint beside it that is whole."
    )
    assert "others.pt" not in said


def test_any_flipped_bit_is_refused_or_harmless(tmp_path, record_property):
    path, draw = tmp_path / "last.pt", random.Random(0)
    state = {"step": 3, "recipe": {"a": 1}, "weights": {"w": torch.arange(50.0)}}
    write_checkpoint(path, state)
    content, refused, tried = path.read_bytes(), 0, 600
    for _ in range(tried):
        changed = bytearray(content)
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        try:
            found = read_checkpoint(path)
        except CheckpointError:
            refused += 1
            continue
        assert torch.equal(found["weights"]["w"], state["weights"]["w"])
        assert (found["step"], found["recipe"]) == (3, {"a": 1})
    assert refused > tried // 4  # the rest is padding and what nobody reads
    record_property("count: damaged checkpoints read", tried)


def test_a_checkpoint_of_another_recipe_is_refused_by_what_differs(run, trained, warm, pictures):
    other = run.path.with_name("other")
    options = ["--training.epochs", 1, "--objective.temperature", 0.3]
    assert warm.run("train", pictures, *SMALL, *options, "--out", other).code == 0
    before = run.last.read_bytes()
    kept = run.path.with_name("kept.pt")
    os.replace(run.last, kept)
    shutil.copy(RunDirectory(other).last, run.last)
    warm.run("train", "--resume", run.path).refused(
        str(run.last), "was written by another recipe", "objective.temperature", "differ"
    )
    os.replace(kept, run.last)
    assert run.last.read_bytes() == before
    assert warm.run("train", "--resume", run.path).code == 0


class Malice:
    """Unpickled by anyone who trusts it, makes a folder."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


@pytest.mark.parametrize("kind", ["archive", "plain pickle", "old torch format"])
def test_a_malicious_pickle_is_refused_and_nothing_is_run(kind, run, warm, tmp_path):
    canary = tmp_path / "executed"
    harmful = {**read_checkpoint(run.last), "extra": Malice(canary)}
    if kind == "plain pickle":
        run.last.write_bytes(pickle.dumps(harmful["extra"]))
    else:
        zipped = kind == "archive"
        torch.save(harmful, run.last, _use_new_zipfile_serialization=zipped)
    said = warm.run("train", "--resume", run.path).refused(str(run.last))
    assert not canary.exists()
    assert ("could run code" if kind == "archive" else "not a checkpoint") in said
    assert warm.run("train", "--resume", run.previous).code == 0
    assert not canary.exists()
    assert pickle.loads(pickle.dumps(Malice(canary))) is None  # and it would have
    assert canary.exists()


def test_two_trainers_on_one_directory_the_second_is_refused(warm, pictures, tmp_path):
    run = RunDirectory(tmp_path / "run")
    first = warm.start("train", pictures, *SMALL, "--training.epochs", 400, "--out", run.path)
    first.until(run.last.exists)
    for second in (["--resume", run.path], [pictures, *SMALL, "--out", run.path]):
        said = warm.run("train", *second).refused("is in use by another trainer")
        assert f"(process {first.pid})" in said
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait() == 143, first.output
    assert saved_step(run) > 0


def test_a_full_disk_while_saving_keeps_the_checkpoint_before(run, trained, warm):
    """A limit on the size of files stands for the disk; the write fails in the middle."""
    run.last.unlink()
    run.previous.rename(run.last)
    before = run.last.read_bytes()
    limits = {"RLIMIT_FSIZE": len(before) // 2}
    warm.run("train", "--resume", run.path, limits=limits).refused(
        f"{run.last} cannot be written (File too large).", f"continue with --resume {run.path}."
    )
    assert run.last.read_bytes() == before
    assert not list(run.checkpoints.glob("*.partial"))
    assert warm.run("train", "--resume", run.path).code == 0
    assert_same_end(run, RunDirectory(trained))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB: one checkpoint and a half."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place]
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small file system needs root; the limit on file sizes is tested")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill_up(path):
    """Write until there is no space."""
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_disk_that_fills_up_keeps_what_was_saved(small_disk, warm, pictures, trained, tmp_path):
    run = RunDirectory(small_disk / "run")
    options = [*SMALL, "--training.epochs", 3, "--out", run.path]
    warm.run("train", pictures, *options).refused(
        f"{run.last} cannot be written (No space left on device)", "Free space there"
    )
    assert saved_step(run) == 3
    with pytest.raises(OSError, match="No space"):
        fill_up(small_disk / "filler")  # not even a line of metrics fits
    warm.run("train", "--resume", run.path).refused("cannot be written (No space left on device)")
    assert saved_step(run) == 3
    moved = RunDirectory(shutil.copytree(run.path, tmp_path / "elsewhere"))
    assert warm.run("train", "--resume", moved.path).code == 0
    assert_same_end(moved, RunDirectory(trained))


def test_a_read_only_run_directory_is_reported_before_training(run, trained, pictures):
    """Permissions do not hold for root unless that power is given away."""
    command = [sys.executable, "-m", "eqco", "train"]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv to give that up")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    before = run.last.read_bytes()
    folders = [run.path, run.checkpoints, run.path / "tensorboard"]
    every_file = [path for path in run.path.rglob("*") if path.is_file()]
    for path in [*every_file, *folders]:
        path.chmod(0o555)
    try:
        fresh = [pictures, *SMALL, "--out", run.path / "new"]
        for arguments in (["--resume", run.path], fresh):
            answer = subprocess.run(
                [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300
            )
            assert answer.returncode == 2, answer.stderr
            assert "Traceback" not in answer.stderr
            assert "cannot be written (Permission denied)" in answer.stderr
    finally:
        for path in [*folders, *every_file]:
            path.chmod(0o755)
    assert run.last.read_bytes() == before


def test_a_run_of_before_a_setting_resumes_and_one_without_its_data_says_so(run, warm):
    met = json.loads(run.environment.read_text())
    old = {key: value for key, value in met.items() if key != "unlabelled"}
    assert run.environment.write_text(json.dumps(old))
    assert run.read_environment()["unlabelled"] is False
    del old["images"]
    run.environment.write_text(json.dumps(old))
    warm.run("train", "--resume", run.path).refused(
        "environment.json does not say 'images'", f"--recipe {run.recipe}"
    )
    for damaged in ("[1, 2]", "{", "\udcff"):
        run.environment.write_text(damaged, errors="surrogateescape")
        warm.run("train", "--resume", run.path).refused(str(run.environment), "is damaged")
    run.environment.write_text(json.dumps(met))
    assert warm.run("train", "--resume", run.path).code == 0


def test_damaged_metrics_are_shown_and_nothing_is_dropped(run, warm):
    whole = run.metrics.read_text()
    run.metrics.write_text(whole + "\x00\x00\n")
    warm.run("train", "--resume", run.path).refused("metrics.jsonl is damaged at")
    assert run.metrics.read_text() == whole + "\x00\x00\n"
    run.metrics.write_text(whole)
    assert warm.run("train", "--resume", run.path).code == 0
