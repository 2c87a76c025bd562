"""References of an accuracy are of the network that is evaluated; its trainings share them."""

from dataclasses import replace

import pytest

from eqco.assembly import build_components
from eqco.data import open_source
from eqco.evaluation import knn_accuracy
from eqco.experiments.accuracy import features_of, reference_accuracies, reference_file
from eqco.experiments.experiment import RunContext
from eqco.experiments.tasks import framework
from eqco.experiments.training_runs import TrainedRun
from eqco.recipes import recipe_to_dict, with_settings
from eqco.recipes.profiles import SMOKE
from eqco.runtime.records import recipe_hash


@pytest.fixture(scope="module")
def photos():
    return open_source("groceries")


def run_of(name, source, seed=0, **settings):
    recipe = with_settings(framework(name, SMOKE).recipe, seed=seed, **settings)
    return TrainedRun(directory=None, training=recipe, source=source, earlier=(0, 0))


@pytest.mark.end_to_end
def test_random_weights_are_those_that_the_training_begins_with(photos, tmp_path):
    """CMC: two networks, of lightness and of colour."""
    run = run_of("cmc", photos)
    found = reference_accuracies(run, 20, RunContext(work=tmp_path))
    encoder = build_components(run.training, photos).method.encoder.eval()
    train, test = features_of(encoder.features, photos, run.training, "cpu")
    assert train.values.shape[1] == 512
    assert found["random_knn"] == pytest.approx(knn_accuracy(test, train, neighbours=20))


def test_networks_that_differ_have_references_of_their_own(photos, tmp_path):
    runs = {name: run_of(name, photos) for name in ("pirl", "mocov1", "cmc", "cpcv2")}
    runs["cmc, ydbdr"] = run_of("cmc", photos, colours="ydbdr")
    runs["cmc, few"] = run_of("cmc", photos, count=4)
    runs["cmc, seed"] = run_of("cmc", photos, seed=1)
    files = {name: reference_file(run, 20, tmp_path) for name, run in runs.items()}
    assert files["cmc"] == files["cmc, few"]
    distinct = ("pirl", "cmc", "cpcv2", "cmc, ydbdr", "cmc, seed")
    assert len({files[name] for name in distinct}) == len(distinct)


def test_the_file_of_a_plain_network_is_named_by_its_settings(photos, tmp_path):
    run = run_of("pirl", photos, seed=3)
    settings = recipe_to_dict(run.training)
    named = {"data": "groceries", "image_size": 16, "encoder": settings["encoder"], "seed": 3}
    expected = f"references-{recipe_hash({**named, 'neighbours': 20})}.json"
    assert reference_file(run, 20, tmp_path).name == expected
    other = replace(
        run, training=replace(run.training, method=run_of("cmc", photos).training.method)
    )
    assert reference_file(other, 20, tmp_path).name != expected
