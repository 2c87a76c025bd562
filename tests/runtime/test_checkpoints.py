"""A checkpoint is written whole, checked when read, and never runs code."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from eqco.runtime import checkpoints
from eqco.runtime.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory, write_json

STATE = {"step": 3, "recipe": {"a": 1}, "weights": {"w": torch.arange(200.0)}}


def test_what_is_written_is_read_again(tmp_path):
    write_checkpoint(tmp_path / "last.pt", STATE)
    state = read_checkpoint(tmp_path / "last.pt")
    assert state["step"] == 3
    assert torch.equal(state["weights"]["w"], STATE["weights"]["w"])
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_a_stop_while_writing_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    write_checkpoint(path, STATE)

    def cut_off(state, file):
        file.write(b"half a check")
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.torch, "save", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(path, {**STATE, "step": 4})
    assert read_checkpoint(path)["step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("moment", range(3))
def test_a_kill_while_saving_loses_no_checkpoint_that_is_to_be_kept(tmp_path, monkeypatch, moment):
    """A run resumes after the step of last.pt: by then the file saved for good must stand."""
    run, replace, replaced = RunDirectory(tmp_path), os.replace, []
    run.save({**STATE, "step": 1}, keep=False)

    def killed(*names):
        if len(replaced) == moment:
            raise Killed
        replaced.append(names)
        replace(*names)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        run.save({**STATE, "step": 2}, keep=True)
    kept = run.checkpoints / "step-00000002.pt"
    resumes_after = read_checkpoint(run.last)["step"]
    assert resumes_after == 1 or read_checkpoint(kept)["step"] == 2
    monkeypatch.undo()
    checkpoints.clear_partial(run.checkpoints)  # as who takes the folder next does
    run.save({**STATE, "step": 2}, keep=True)
    assert [read_checkpoint(path)["step"] for path in (kept, run.last)] == [2, 2]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_checkpoint_is_named_with_the_last_good_one(tmp_path, damage):
    run = RunDirectory(tmp_path)
    for step in (1, 2):
        run.save({**STATE, "step": step}, keep=False)
    content = bytearray(run.last.read_bytes())
    middle = content.find(torch.arange(200.0).numpy().tobytes()) + 40
    damaged = {
        "cut": content[: len(content) // 2],
        "flip": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
        "empty": b"",
        "text": b"hello",
    }[damage]
    run.last.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"last.pt is damaged.*previous.pt: resume from that"):
        run.load(STATE["recipe"])
    assert run.load(STATE["recipe"], run.previous)["step"] == 1


def test_a_missing_checkpoint_is_an_error_and_not_a_fresh_start(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*no other checkpoint"):
        RunDirectory(tmp_path).load({})


def test_a_folder_that_is_no_run_is_refused_with_the_runs_in_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a run directory; give one that eqco train"):
        RunDirectory(tmp_path).load({})
    RunDirectory(tmp_path / "simo").save(STATE, keep=False)
    with pytest.raises(CheckpointError, match=rf"in it, such as {tmp_path / 'simo'}\.$"):
        RunDirectory(tmp_path).load({})
    with pytest.raises(CheckpointError, match=r"There is no folder .*nope; give a run directory"):
        RunDirectory(tmp_path / "nope").load({})


class Malice:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_code_is_refused_and_nothing_is_run(tmp_path):
    target = tmp_path / "executed"
    torch.save({"format": "eqco checkpoint 1", "x": Malice(str(target))}, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match=r"could run code.*nothing of it was run"):
        read_checkpoint(tmp_path / "last.pt")
    assert not target.exists()
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Malice(str(target))))
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read_checkpoint(tmp_path / "plain.pt")
    assert not target.exists()


def test_a_checkpoint_of_another_program_is_refused(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint of this project"):
        read_checkpoint(tmp_path / "last.pt")


def test_a_checkpoint_of_another_recipe_is_refused_by_what_differs(tmp_path):
    run = RunDirectory(tmp_path)
    run.save({**STATE, "recipe": {"objective": {"alpha": 4}}}, keep=False)
    with pytest.raises(CheckpointError, match=r"another recipe .*\(objective.alpha differ\)"):
        run.load({"objective": {"alpha": 8}})


def test_a_run_is_not_written_over(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.start({"a": 1}, {})
    run.start({"a": 2}, {})  # nothing was saved yet: a corrected start is welcome
    run.save({**STATE, "recipe": {"a": 2}}, keep=False)
    with pytest.raises(InputError, match=r"holds a run already. Continue it with --resume"):
        run.start({"a": 1}, {})
    write_json(run.result, {})
    with pytest.raises(InputError, match=r"it is complete. .* eqco train --extend"):
        run.start({"a": 1}, {})
    assert run.read_recipe() == {"a": 2}


def test_there_is_a_last_checkpoint_at_every_moment_of_saving(tmp_path, monkeypatch):
    """Whatever is replaced or linked, `last.pt` stands and is whole before and after."""
    run = RunDirectory(tmp_path)
    run.save({**STATE, "step": 1}, keep=False)
    seen = []
    for name in ("replace", "link"):
        original = getattr(os, name)

        def watched(*arguments, original=original):
            seen.append(read_checkpoint(run.last)["step"])
            original(*arguments)
            seen.append(read_checkpoint(run.last)["step"])

        monkeypatch.setattr(checkpoints.os, name, watched)
    run.save({**STATE, "step": 2}, keep=False)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (1, 2)
    assert read_checkpoint(run.previous)["step"] == 1


def test_two_trainers_on_one_directory_the_second_is_refused(tmp_path):
    with (
        RunDirectory(tmp_path).lock(),
        pytest.raises(InputError, match=rf"in use by another trainer \(process {os.getpid()}\)"),
        RunDirectory(tmp_path).lock(),
    ):
        pass
    with RunDirectory(tmp_path).lock():
        assert (tmp_path / "lock").exists()


def test_metrics_after_the_checkpoint_are_forgotten_and_a_cut_line_too(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        run.append_metrics({"step": step})
    with open(run.metrics, "a") as file:
        file.write('{"step": 4, "lo')
    run.drop_metrics_after(2)
    assert run.read_metrics() == [{"step": 1}, {"step": 2}]


def test_kept_checkpoints_stay(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        run.save({**STATE, "step": step}, keep=step == 1)
    assert sorted(path.name for path in Path(run.checkpoints).iterdir()) == [
        "last.pt",
        "previous.pt",
        "step-00000001.pt",
    ]


def test_a_folder_of_other_things_is_no_place_for_a_run(tmp_path):
    """Nothing of them is overwritten; what a run that never began has left is no obstacle."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(InputError, match=r"photos holds cat\.jpg and is no run"):
        RunDirectory(tmp_path / "photos").start({}, {})
    begun = RunDirectory(tmp_path / "run")
    with begun.lock():
        begun.start({}, {})
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    begun.start({}, {})


@pytest.mark.parametrize(
    "name",
    ["environment.json", "recipe.json", "index.npz", "job", "lock", "unreadable.txt", "a.partial"],
)
def test_a_file_of_the_users_with_the_name_of_a_runs_is_left_alone(name, tmp_path):
    (tmp_path / name).write_text("the user's")
    with pytest.raises(InputError, match=rf"holds {name} and is no run. Choose another --out"):
        RunDirectory(tmp_path).start({}, {})
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "the user's"


def test_a_cache_of_the_users_is_no_place_for_a_run(tmp_path):
    (tmp_path / "cache").mkdir()
    with pytest.raises(InputError, match="holds cache and is no run"):
        RunDirectory(tmp_path).start({}, {})


def test_what_a_run_that_was_stopped_before_it_began_has_left_is_no_obstacle(tmp_path):
    with RunDirectory(tmp_path).lock():
        pass
    for name in (".hidden", "cost.json", "recipe.json.12.partial"):
        (tmp_path / name).write_text("")
    RunDirectory(tmp_path).start({"a": 1}, {})
    assert RunDirectory(tmp_path).read_recipe() == {"a": 1}


def test_the_folder_that_one_stands_in_can_be_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = RunDirectory(Path("."))
    assert here.timing == tmp_path.parent / f".{tmp_path.name}.timing"
    here.refuse_started()
