"""From a folder and a machine to a recipe: nothing of the user's is changed by the timing."""

import copy
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from eqco.assembly import choosing, train
from eqco.assembly.choosing import choose_recipe
from eqco.data import open_source
from eqco.encoders import backbone_named
from eqco.recipes import Recipe, read_recipe, with_settings
from eqco.recipes.rules import choose
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def short_timing(monkeypatch):
    monkeypatch.setattr(choosing, "SECONDS", 0.01)


@pytest.fixture
def photos(tmp_path):
    """Files of several sizes, which are not kept in memory."""
    for number in range(12):
        file = tmp_path / "photos" / "train" / f"{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20 + number, 24), 50).convert("RGB").save(file)
    return open_source(str(tmp_path / "photos"))


class Own(nn.Module):
    """A backbone of the user's."""

    feature_dim = 3

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, images):
        return images.mean((2, 3)) * self.scale


def test_the_timing_does_not_train_the_users_network(photos):
    own = Own()
    before = copy.deepcopy(own.state_dict())
    choice = choose_recipe(photos, minutes=0.01, backbone=own)
    assert own.scale.equal(before["scale"])
    assert own.scale.grad is None
    assert "Own" in [reason.what for reason in choice.reasons]


@pytest.mark.parametrize("given", [{}, {"image_size": 24}, {"pipeline": "simclr"}])
def test_a_chosen_run_is_what_its_own_recipe_trains(tmp_path, given):
    """Images of one size between what 32 and what 64 pixels need: held in memory in both."""
    for number in range(12):
        file = tmp_path / "photos" / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.effect_noise((100, 90), 50).convert("RGB").save(file)
    data, quiet = str(tmp_path / "photos"), {"show": lambda report: None}
    train(data, out=tmp_path / "a", epochs=2, **given, **quiet)
    train(data, read_recipe(tmp_path / "a" / "recipe.json"), out=tmp_path / "b", **quiet)
    runs = [RunDirectory(tmp_path / name) for name in "ab"]
    assert runs[0].read_metrics() == runs[1].read_metrics()
    assert len({run.read_environment()["opened_side"] for run in runs}) == 1
    assert not any(run.read_environment()["cached"] for run in runs)


def test_a_folder_beside_the_run_stays_and_nothing_is_left(photos, tmp_path):
    kept = tmp_path / "runs" / "photos-trial" / "recipe.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("of another run")
    place = RunDirectory(tmp_path / "runs" / "photos").timing
    choose_recipe(photos, minutes=0.01, cache=place, cache_gib=1.0)
    assert [each.name for each in (tmp_path / "runs").iterdir()] == ["photos-trial"]
    assert kept.read_text() == "of another run"


@pytest.mark.parametrize(("gib", "decoded"), [(1.0, True), (1e-9, False)])
def test_what_will_not_be_decoded_once_is_not_timed_so(photos, tmp_path, monkeypatch, gib, decoded):
    seen, plain = [], choosing.decoded_sample
    monkeypatch.setattr(
        choosing, "decoded_sample", lambda *given: seen.append(given) or plain(*given)
    )
    choose_recipe(photos, minutes=0.01, cache=tmp_path / "timing", cache_gib=gib)
    assert bool(seen) == decoded


def test_a_batch_may_be_larger_than_the_sample_that_is_timed(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "SAMPLE", 4)
    choice = choose_recipe(
        photos, minutes=0.01, settings={"num_queries": 8}, cache=tmp_path / "timing", cache_gib=1.0
    )
    assert choice.recipe.training.num_queries == 8


def test_files_that_each_point_of_the_curve_decodes_are_counted(photos, monkeypatch):
    """Those of val; those of train are decoded once."""
    seen = []
    monkeypatch.setattr(
        choosing,
        "choose",
        lambda facts, *rest, **how: seen.append(facts) or choose(facts, *rest, **how),
    )
    choose_recipe(photos, minutes=0.01)
    held_out = replace(photos["train"].subset(range(5)), name="val")
    choose_recipe(replace(photos, splits={**photos.splits, "val": held_out}), minutes=0.01)
    unlabelled = replace(photos["train"], name="unlabelled", labels=None)
    choose_recipe(replace(photos, splits={**photos.splits, "unlabelled": unlabelled}), minutes=0.01)
    assert [facts.decoded for facts in seen] == [0, 5, 12]


def test_first_weights_bring_their_network_along(photos, tmp_path):
    network = backbone_named("resnet18", stem="small")
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    seen = []
    train(
        photos,
        init=tmp_path / "weights.pth",
        out=tmp_path / "run",
        epochs=1,
        image_size=16,
        on_start=seen.append,
        show=lambda report: None,
    )
    chosen = seen[0].recipe.encoder
    assert (chosen.backbone, chosen.stem, chosen.head) == ("resnet18", "small", "normalised")
    said = {reason.what: reason.why for reason in seen[0].choice.reasons}
    assert said["resnet18 with a small stem"] == "of --init's weights"
    assert said["16 pixels"] == "as given"


def test_first_weights_of_a_network_that_no_file_tells_are_read_by_its_name(photos, tmp_path):
    timm = pytest.importorskip("timm")
    name = "vit_tiny_patch16_224"
    torch.save(timm.create_model(name).state_dict(), tmp_path / "weights.pth")
    small = {"epochs": 1, "num_queries": 4, "count": None, "image_size": 32}
    recipe = with_settings(Recipe(), **small, backbone=f"timm:{name}")
    how = {"init": tmp_path / "weights.pth", "show": lambda report: None}
    with pytest.raises(InputError, match=r"--encoder\.backbone"):
        train(photos, out=tmp_path / "unnamed", **how)
    outcome = train(photos, recipe, out=tmp_path / "named", **how)
    assert outcome.step == 3


def test_first_weights_of_ones_own_module_are_read_into_it(photos, tmp_path):
    """Of a file, and of a run with its head; the module itself is trained, not a copy."""
    torch.save({"scale": torch.full((3,), 7.0)}, tmp_path / "weights.pth")
    how = {"epochs": 1, "image_size": 16, "base_learning_rate": 1e-9, "show": lambda report: None}
    own = Own()
    train(photos, encoder=own, init=tmp_path / "weights.pth", out=tmp_path / "a", **how)
    torch.testing.assert_close(own.scale, torch.full((3,), 7.0))
    again = Own()
    train(photos, encoder=again, init=tmp_path / "a", out=tmp_path / "b", **how)
    torch.testing.assert_close(again.scale, torch.full((3,), 7.0))


def test_a_training_in_python_prints_its_choice_unless_somebody_else_shows_it(
    photos, tmp_path, capsys
):
    how = {"epochs": 1, "image_size": 16}
    train(photos, out=tmp_path / "shown", **how)
    said = capsys.readouterr().out
    assert "chosen (give a setting to keep it from being chosen)" in said
    assert "as given" in said
    train(photos, out=tmp_path / "quiet", show=lambda report: None, **how)
    assert capsys.readouterr().out == ""
    train(photos, out=tmp_path / "told", on_start=lambda info: None, **how)
    assert "chosen" not in capsys.readouterr().out
