"""Images that vanish, explode or hold no numbers, and processes that die reading them."""

import os
import shutil
import signal
import struct
import zlib
from dataclasses import replace

import pytest
import torch
from faults.trainings import SMALL, assert_same_end, logged_step, saved_step
from warm import children_of

from eqco.assembly import train
from eqco.cli.main import main
from eqco.data import EvaluationLoader, StepLoader, open_source, source_from_dataset
from eqco.recipes import read_recipe
from eqco.runtime.checkpoints import CheckpointError, first_not_finite, read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_vanishes_is_named_and_put_back_the_run_resumes(workers, warm, files, tmp_path):
    options = [*SMALL, "--training.epochs", 5, "--data.workers", workers, "--cache-gib", 0]
    whole, run = (RunDirectory(tmp_path / name) for name in ("whole", "run"))
    assert warm.run("train", files, *options, "--out", whole.path).code == 0
    command = warm.start("train", files, *options, "--out", run.path)
    command.until(lambda: logged_step(run) >= 4)  # in the middle of the second epoch
    gone = files / "07.png"
    gone.rename(tmp_path / "aside.png")
    command.wait()
    command.refused(str(gone), "cannot be read: No such file or directory")
    assert saved_step(run) >= 3
    (tmp_path / "aside.png").rename(gone)
    resumed = warm.run("train", "--resume", run.path)
    assert resumed.code == 0, resumed.output
    assert_same_end(run, whole)


def test_a_file_that_vanishes_after_it_was_decoded_is_not_missed(warm, files, tmp_path):
    options = [*SMALL, "--training.epochs", 5]
    whole, run = (RunDirectory(tmp_path / name) for name in ("whole", "run"))
    assert warm.run("train", files, *options, "--out", whole.path).code == 0
    command = warm.start("train", files, *options, "--out", run.path)
    command.until(lambda: logged_step(run) >= 4)
    (files / "07.png").unlink()
    assert command.wait() == 0, command.output
    assert_same_end(run, whole)


def test_a_killed_worker_is_reported_and_the_run_resumes(warm, files, tmp_path):
    run = RunDirectory(tmp_path / "run")
    options = [*SMALL, "--training.epochs", 400, "--data.workers", 2, "--out", run.path]
    command = warm.start("train", files, *options)
    command.until(run.last.exists)
    os.kill(children_of(command.pid)[0], signal.SIGKILL)
    command.wait()
    command.refused("a process that reads images has ended", "fewer --data.workers", "--resume")
    before, logged = saved_step(run), logged_step(run)  # it may have continued after it saved
    resumed = warm.start("train", "--resume", run.path)
    resumed.until(lambda: logged_step(run) > logged)
    os.kill(resumed.pid, signal.SIGTERM)
    assert resumed.wait() == 143, resumed.output
    assert saved_step(run) > before


class Moody(torch.utils.data.Dataset):
    """A user's pictures of several sizes; one of them raises once the training has begun."""

    def __init__(self, error):
        self.error = error
        self.begun = torch.zeros(1).share_memory_()

    def __len__(self):
        return 48

    def __getitem__(self, number):
        if number == 7 and self.begun:
            raise self.error
        generator = torch.Generator().manual_seed(number)
        shape = (3, 20 + number % 5, 24)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def recipe_with(trained, **changes):
    """The recipe of the small run with other settings of its data."""
    recipe = read_recipe(trained / "recipe.json")
    return replace(recipe, data=replace(recipe.data, **changes))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [KeyError("broken"), InputError("too dark")], ids=repr)
def test_a_worker_that_raises_names_the_item_and_the_checkpoint_stays(
    error, workers, trained, tmp_path
):
    pictures, run = Moody(error), RunDirectory(tmp_path / "run")

    def turn(report):
        pictures.begun.fill_(run.last.exists())

    with pytest.raises(InputError, match=r"item 7 of Moody cannot be read: .*(broken|too dark)"):
        train(
            source_from_dataset(pictures, memory_gib=0),
            recipe_with(trained, workers=workers),
            out=run.path,
            show=turn,
        )
    assert saved_step(run) >= 3


def test_nan_in_a_batch_stops_the_run_before_it_is_saved(pictures, tmp_path, monkeypatch, capsys):
    run = RunDirectory(tmp_path / "run")
    iterate = StepLoader.iterate

    def poisoned(self, start_step=0, stop_step=None):
        for step, batches in enumerate(iterate(self, start_step, stop_step), start=start_step):
            if step == 7 and len(os.listdir(tmp_path)) == 1:
                batches[0].views[0][0, 0, 0, 0] = float("nan")
            yield batches

    monkeypatch.setattr(StepLoader, "iterate", poisoned)
    arguments = ["train", pictures, *SMALL, "--training.epochs", 4, "--out", run.path]
    assert main([str(each) for each in arguments]) == 2
    said = capsys.readouterr().err
    assert "stopped at step 8" in said
    assert f"The last good checkpoint is kept: {run.last}" in said
    state = read_checkpoint(run.last)
    assert state["step"] == 6
    assert first_not_finite(state) is None
    (tmp_path / "the batch is whole now").touch()
    assert main(["train", "--resume", str(run.path)]) == 0
    assert saved_step(run) == 12


@pytest.mark.parametrize("part", ["method", "optimiser"])
def test_a_diverged_state_is_not_saved_though_the_loss_is_finite(part, trained, tmp_path):
    """Statistics of batch norm and momenta, which no loss and no weight tells of."""
    run = RunDirectory(shutil.copytree(trained, tmp_path / "run"))
    state = read_checkpoint(run.last)
    if part == "method":
        name = next(name for name in state["method"] if name.endswith("running_var"))
        state["method"][name][0] = float("inf")
    else:
        state["optimiser"]["state"][0]["momentum_buffer"].fill_(float("nan"))
    with pytest.raises(CheckpointError, match=rf"{part}\..* is no longer finite.* stays as it was"):
        run.save({**state, "step": 99}, keep=True)
    assert saved_step(run) == 9
    assert not list(run.checkpoints.glob("step-*"))


def png(width, height, rows):
    """A PNG that declares a size, with so many empty rows in it."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    packer = zlib.compressobj(9)
    empty = bytes(1 + 3 * width)
    pixels = b"".join(packer.compress(empty) for _ in range(rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(30_000, 30_000), (2**31 - 1, 2**31 - 1)])
def test_an_image_bomb_is_refused_from_its_header(size, warm, files, tmp_path):
    """Its pixels would take gigabytes; the command takes what it takes without it."""
    quiet = warm.run("data", files, "--sheet", tmp_path / "sheet.png")
    assert quiet.code == 0, quiet.output
    (files / "bomb.png").write_bytes(png(*size, rows=100 if size[0] < 10**6 else 0))
    out = tmp_path / "run"
    command = warm.run("train", files, *SMALL, "--out", out)
    command.refused("bomb.png cannot be read: it has more than 89,478,485 pixels")
    looked = warm.run("data", files, "--sheet", tmp_path / "sheet.png", "--overwrite")
    assert looked.code == 0, looked.output
    assert "unreadable: 1" in looked.output
    for each in (command, looked):
        assert each.peak_bytes < quiet.peak_bytes + 150e6
    assert not RunDirectory(out).last.exists()
    (files / "bomb.png").unlink()
    assert warm.run("train", files, *SMALL, "--training.epochs", 1, "--out", out).code == 0


def test_a_picture_too_narrow_to_be_enlarged_is_named(tmp_path):
    """One pixel by sixty thousand: made 256 high for evaluation it would take gigabytes."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "strip.png").write_bytes(png(60_000, 1, rows=1))
    source = open_source(tmp_path, memory_gib=0, val_fraction=0, test_fraction=0)
    with pytest.raises(InputError, match=r"strip.png cannot be read: it has 60000 x 1 pixels, and"):
        next(iter(EvaluationLoader(source["train"], size=224)))


def test_too_little_memory_is_reported_without_traceback(warm, pictures, tmp_path):
    """A head of a hundred billion outputs."""
    options = [*SMALL, "--encoder.embedding-dim", 10**11, "--out", tmp_path / "run"]
    warm.run("train", pictures, *options).refused("there is not enough memory", "Lower the batch")
