"""A fine-tuning runs, stops, resumes and is tested; what it cannot use is refused."""

import json
import os
import signal
import sys
from dataclasses import asdict, replace

import pytest
from torch import nn
from torch.testing import assert_close

from eqco.assembly import open_weights
from eqco.detection import resume_transfer, transfer_detection, write_squares
from eqco.detection.fine_tuning import build_optimiser
from eqco.detection.model import faster_rcnn
from eqco.detection.settings import (
    DESK,
    DetectionSettings,
    detection_from_dict,
    detection_profile,
    detection_to_dict,
    learning_rate_at,
    with_epochs,
)
from eqco.encoders import Architecture, resnet
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError, MissingExtraError
from eqco.runtime.run_directory import RunDirectory

TINY = replace(
    DESK,
    epochs=3,
    drops=(2,),
    num_images=2,
    warmup_steps=2,
    sides=(48, 64),
    channels=16,
    proposals=20,
    sampled_boxes=8,
    precise_images=4,
)


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squares")
    return write_squares(folder, images={"train": 4, "test": 2}, side=64)


@pytest.fixture(scope="module")
def finished(squares, tmp_path_factory):
    """A run that was never stopped, and what came of it."""
    place = tmp_path_factory.mktemp("runs") / "whole"
    return place, transfer_detection("random", squares, TINY, out=place, backbone="resnet18")


def test_a_run_leaves_its_scores_recipe_and_weights(finished):
    place, outcome = finished
    result = json.loads((place / "result.json").read_text())
    assert result["steps"] == 6
    assert result["overall"] == outcome.scores.overall
    assert set(result["classes"]) == {"square", "disc"}
    assert len(outcome.found) == 2
    state = read_checkpoint(RunDirectory(place).last)
    assert state["recipe"]["detection"] == detection_to_dict(TINY)
    assert state["recipe"]["backbone"] == asdict(Architecture("resnet18"))


def stopping_at(step, monkeypatch):
    """Let SIGTERM arrive while a step is computed."""

    def rate(settings, steps_per_epoch, at):
        if at == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return learning_rate_at(settings, steps_per_epoch, at)

    monkeypatch.setattr("eqco.detection.fine_tuning.learning_rate_at", rate)


@pytest.mark.end_to_end
def test_stopped_and_resumed_equals_never_stopped(squares, finished, tmp_path, monkeypatch):
    place = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        stopping_at(3, patched)
        outcome = transfer_detection("random", squares, TINY, out=place, backbone="resnet18")
    assert outcome.stopped_by == "SIGTERM"
    assert read_checkpoint(RunDirectory(place).last)["step"] == 4  # the step is finished first
    assert not (place / "result.json").exists()
    outcome = resume_transfer(place)
    whole, expected = finished
    assert outcome.scores == expected.scores
    ends = [read_checkpoint(RunDirectory(run).last) for run in (place, whole)]
    assert ends[0]["step"] == 6
    for part in ("detector", "optimiser"):
        assert_close(ends[0][part], ends[1][part], rtol=0, atol=0)
    assert RunDirectory(place).read_metrics() == RunDirectory(whole).read_metrics()


def test_a_finished_run_is_tested_again_with_the_same_scores(finished):
    place, expected = finished
    assert resume_transfer(place).scores == expected.scores


def test_training_starts_from_the_given_weights_and_leaves_them_as_they_are(squares, tmp_path):
    weights = open_weights("random", backbone="resnet18", seed=7)
    before = {name: value.clone() for name, value in weights.backbone.state_dict().items()}
    settings = replace(TINY, epochs=1, drops=(), base_learning_rate=1e-9)
    transfer_detection(weights, squares, settings, out=tmp_path / "run")
    assert_close(weights.backbone.state_dict(), before, rtol=0, atol=0)
    trained = read_checkpoint(RunDirectory(tmp_path / "run").last)["detector"]
    for name, value in before.items():
        if value.dim() > 1:
            assert_close(trained[f"backbone.body.{name}"], value)


def test_the_rate_is_in_proportion_to_the_images_and_drops_at_seven_and_eleven():
    paper = DetectionSettings()
    epoch = 7393  # steps of 16 on COCO's 118,287 training images
    rates = [learning_rate_at(paper, epoch, e * epoch) for e in (1, 6, 7, 10, 11)]
    assert rates == pytest.approx([0.02, 0.02, 0.002, 0.002, 0.0002])
    assert learning_rate_at(paper, epoch, 0) == pytest.approx(0.02 / 1000)
    assert learning_rate_at(paper, epoch, 500) == pytest.approx(0.02 * (0.001 + 0.999 / 2))
    # the paper's 0.2 is the rate of 160 images in a step
    assert learning_rate_at(replace(paper, num_images=160), epoch, epoch) == pytest.approx(0.2)


def test_weight_decay_leaves_out_batch_norm_and_nothing_else():
    network = faster_rcnn(resnet(18), 2, DetectionSettings(channels=16))
    optimiser = build_optimiser(network, DetectionSettings())
    decay = {
        id(parameter): group["weight_decay"]
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    assert len(decay) == len(list(network.parameters()))
    for layer in network.modules():
        for parameter in layer.parameters(recurse=False):
            expected = 0.0 if isinstance(layer, nn.BatchNorm2d) else 1e-4  # biases decay
            assert decay[id(parameter)] == expected
    assert all(group["momentum"] == 0.9 for group in optimiser.param_groups)


def test_settings_survive_json_and_refuse_what_cannot_be_meant():
    assert detection_from_dict(json.loads(json.dumps(detection_to_dict(DESK)))) == DESK
    with pytest.raises(InputError, match=r"drops=\(7, 11\) in epochs=6"):
        DetectionSettings(epochs=6)
    with pytest.raises(InputError, match="sides="):
        replace(DESK, sides=(500,))
    with pytest.raises(InputError, match="norm_weight_decay=-1"):
        replace(DESK, norm_weight_decay=-1.0)
    with pytest.raises(InputError, match="num_images=0"):
        replace(DESK, num_images=0)
    with pytest.raises(InputError, match="no profile 'dest' of detection"):
        detection_profile("dest")


def test_another_length_keeps_the_share_of_drops_and_shortens_the_warmup():
    paper = DetectionSettings()
    halved = with_epochs(DetectionSettings(epochs=24, drops=(16, 22)), 12)
    assert (halved.epochs, halved.drops, halved.warmup_steps) == (12, (8, 11), 500)
    assert with_epochs(paper, 12) == paper
    assert with_epochs(paper, 1).drops == ()  # no epoch is before the last
    assert with_epochs(paper, 24).warmup_steps == 1000
    with pytest.raises(InputError, match="epochs=0; it must be 1 or more"):
        with_epochs(paper, 0)


def test_without_pycocotools_nothing_is_trained(squares, finished, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.cocoeval", None)
    with pytest.raises(MissingExtraError, match=r"'pycocotools'.*\.\[detection\]"):
        transfer_detection("random", squares, TINY, out=tmp_path / "run", backbone="resnet18")
    assert not (tmp_path / "run").exists()
    with pytest.raises(MissingExtraError, match="'pycocotools'"):
        resume_transfer(finished[0])


def test_a_backbone_for_other_than_three_bands_is_refused(squares, tmp_path):
    weights = open_weights("random", backbone="resnet18", in_channels=13)
    with pytest.raises(InputError, match=r"in_channels=13; .* RGB, 3 channels\. Give"):
        transfer_detection(weights, squares, TINY, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_used_is_refused_before_anything_is_written(squares, tmp_path):
    place = tmp_path / "run"
    with pytest.raises(InputError, match="pixels is not a network by name"):
        transfer_detection("pixels", squares, TINY, out=place)
    with pytest.raises(InputError, match=r"is a light; .* Train with --encoder.backbone resnet18"):
        transfer_detection("random", tmp_path / "none", TINY, out=place, backbone="light")
    with pytest.raises(InputError, match="there is no folder"):
        transfer_detection("random", tmp_path / "none", TINY, out=place)
    with pytest.raises(InputError, match="no split 'dev'"):
        transfer_detection("random", squares, TINY, out=place, test_split="dev")
    settings = replace(TINY, warmup_steps=100)
    with pytest.raises(InputError, match="warmup_steps=100 in a training of total_steps=6"):
        transfer_detection("random", squares, settings, out=place, backbone="resnet18")
    assert not (place / "recipe.json").exists()


def test_a_run_is_not_resumed_on_other_images_nor_started_twice(squares, finished, tmp_path):
    place, _ = finished
    other = write_squares(tmp_path / "other", images={"train": 5, "test": 2}, side=64)
    with pytest.raises(InputError, match="was trained on 4 images"):
        resume_transfer(place, other)
    with pytest.raises(InputError, match="holds a run already"):
        transfer_detection("random", squares, TINY, out=place, backbone="resnet18")


def test_a_run_whose_recipe_lacks_a_setting_is_not_resumed_with_its_default(finished, tmp_path):
    recipe = json.loads((finished[0] / "recipe.json").read_text())
    del recipe["detection"]["norm_weight_decay"]
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    (tmp_path / "environment.json").write_text("{}")
    with pytest.raises(InputError, match="does not say norm_weight_decay: another version"):
        resume_transfer(tmp_path)


def test_other_classes_in_the_test_split_are_refused(tmp_path):
    folder = write_squares(tmp_path, images={"train": 2, "test": 2}, side=64)
    file = folder / "instances_test.json"
    file.write_text(file.read_text().replace('"disc"', '"ring"'))
    with pytest.raises(InputError, match=r"square, disc, but .* square, ring"):
        transfer_detection("random", folder, TINY, out=tmp_path / "run", backbone="resnet18")
