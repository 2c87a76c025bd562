"""Experiments that are tables of trainings: each training once, resumed, compared seed by seed."""

import json
import signal
from dataclasses import replace
from itertools import chain

import pytest
from PIL import Image

from eqco.experiments import training_runs
from eqco.experiments.accuracy import measurement_name
from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.experiment import Site, missing_runs, recorded, reproduce
from eqco.experiments.fig2 import kept_moments
from eqco.experiments.fig4 import grid as fig4_grid
from eqco.experiments.grid import differences, filled
from eqco.experiments.scales import DESK, EMBEDDED, PAPER, SMOKE, moco, simo
from eqco.experiments.training_runs import run_name
from eqco.recipes import recipe_from_dict
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, recipe_hash
from eqco.runtime.run_directory import RunDirectory, write_json

GRIDS = [name for name in EXPERIMENTS if "embedded" in EXPERIMENTS[name].profiles]


@pytest.fixture
def trainings(monkeypatch):
    """Notes every training that is begun."""
    begun = []
    train = training_runs.train

    def noting(recipe, *arguments, **options):
        begun.append(recipe)
        return train(recipe, *arguments, **options)

    monkeypatch.setattr(training_runs, "train", noting)
    return begun


def only(experiment, *recipes):
    return replace(experiment, profiles={"smoke": list(recipes)})


def record(recipe, seed, accuracy, profile="smoke"):
    return Record(
        experiment="fig4",
        profile=profile,
        recipe=recipe,
        seed=seed,
        metrics={"probe": accuracy, "knn": accuracy / 2},
        code="",
        hardware={},
        seconds=1.0,
    )


def test_a_training_that_two_experiments_need_is_done_once(tmp_path, trainings):
    plain = simo(SMOKE, count=None, alpha=None)
    site = Site(work=tmp_path / "runs")
    fig4 = reproduce(only(find_experiment("fig4"), plain), "smoke", [0], tmp_path, site)
    tab3 = reproduce(only(find_experiment("tab3"), plain), "smoke", [0], tmp_path, site)
    assert len(trainings) == 1
    assert fig4[0].metrics == tab3[0].metrics
    # the time of the training is told by both, since each would have needed it alone
    (cost,) = (tmp_path / "runs").glob("*/cost.json")
    training = json.loads(cost.read_text())["seconds"]
    assert min(fig4[0].seconds, tab3[0].seconds) > 0.99 * training


def test_a_stopped_reproduction_goes_on_and_ends_where_it_would_have(tmp_path, trainings):
    recipe = simo(SMOKE, count=4, alpha=32, epochs=400)
    experiment = only(find_experiment("fig4"), recipe)
    whole = reproduce(experiment, "smoke", [0], tmp_path / "a", Site(work=tmp_path / "runs a"))

    def stop(steps):
        signal.raise_signal(signal.SIGTERM)

    site = Site(work=tmp_path / "runs b", advance=stop)
    with pytest.raises(InputError, match="stopped by SIGTERM; run the same command to go on"):
        reproduce(experiment, "smoke", [0], tmp_path / "b", site)
    assert len(missing_runs(experiment, "smoke", [0], tmp_path / "b")) == 1
    resumed = reproduce(experiment, "smoke", [0], tmp_path / "b", Site(work=tmp_path / "runs b"))
    assert len(trainings) == 2  # the second was gone on with, not begun again
    assert resumed[0].metrics == whole[0].metrics
    assert resumed[0].curves == whole[0].curves


def test_no_two_runs_of_a_profile_are_the_same():
    for name in GRIDS:
        for profile, recipes in EXPERIMENTS[name].profiles.items():
            assert len({recipe_hash(recipe) for recipe in recipes}) == len(recipes), (name, profile)


def test_experiments_share_their_baselines():
    """SiMo with all negatives, and MoCo v2 with its whole memory, are trained once in all."""
    scales = {"smoke": SMOKE, "desk": DESK, "embedded": EMBEDDED, "paper": PAPER}
    for profile, scale in scales.items():
        plain = simo(scale, count=None, alpha=None)
        for name in ("fig4", "tab2", "tab3"):
            assert plain in EXPERIMENTS[name].profiles[profile], (name, profile)
        memory = moco("mocov2", scale, count=scale.memory, alpha=None)
        for name in ("fig1", "fig3", "tab1", "tab2", "tab4"):
            assert memory in EXPERIMENTS[name].profiles[profile], (name, profile)
        (looked,) = EXPERIMENTS["fig2"].profiles[profile]
        assert looked["training"] == memory["training"]


def test_a_training_has_one_name_in_all_experiments():
    """256 and 256.0 are the same α: what is trained for one experiment is found by all."""
    named: list[tuple[dict, str, str]] = []
    for name in GRIDS:
        for recipe in chain.from_iterable(EXPERIMENTS[name].profiles.values()):
            here = {"data": recipe["data"], "training": recipe["training"]}
            for other, place, where in named:
                assert here != other or run_name(recipe, 0) == place, (name, where)
            named.append((here, run_name(recipe, 0), name))


def test_a_cell_holds_the_seeds_of_its_run_and_foreign_records_are_left_out():
    grid = fig4_grid(SMOKE, [4], 4096)
    few, most = grid[0].recipe, grid[1].recipe
    records = [record(most, 1, 0.3), record(few, 0, 0.2), record(most, 0, 0.4)]
    records.append(record({**most, "data": "elsewhere"}, 0, 0.9))
    cells = filled(grid, records, "probe")
    assert [(cell.row, cell.column, cell.values) for cell in cells] == [
        ("InfoNCE", "K=4", (20.0,)),
        ("InfoNCE", "K=31", (40.0, 30.0)),
        ("EqCo, α=32", "K=31", (40.0, 30.0)),  # with all negatives α = N is InfoNCE
    ]


def test_what_eqco_gains_is_taken_seed_by_seed():
    grid = fig4_grid(SMOKE, [4], 4096)
    plain, eqco = grid[0].recipe, grid[2].recipe
    records = [record(plain, 0, 0.2), record(plain, 1, 0.3), record(eqco, 1, 0.5)]
    (gain,) = differences(grid, records, lambda cell: cell.row == "InfoNCE")
    assert gain.row == "EqCo, α=32"
    assert gain.values == pytest.approx((20.0,))


def test_the_papers_numbers_are_compared_in_the_papers_setting_alone():
    grid = fig4_grid(DESK, [4, 16], 4096)
    found = [record(cell.recipe, 0, 0.4, "desk") for cell in grid[:3]]
    assert all(cell.difference is None for cell in filled(grid, found, "probe"))
    grid = fig4_grid(PAPER, [16], 65536)
    found = [replace(record(cell.recipe, 0, 0.4), metrics={"linear": 0.68}) for cell in grid]
    cells = {(cell.row, cell.column): cell for cell in filled(grid, found, "linear")}
    assert cells["EqCo, α=256", "K=16"].difference == pytest.approx(68.0 - 68.1)


def test_a_data_set_that_is_not_there_is_answered_with_what_to_do(tmp_path, monkeypatch):
    def missing(name):
        raise InputError(f"{name} could not be opened.")

    monkeypatch.setattr(training_runs, "opened", missing)
    with pytest.raises(InputError, match=r"Give its folder with --cifar10 FOLDER"):
        training_runs.open_data("cifar10", Site(work=tmp_path))


def test_a_part_of_a_data_set_is_not_taken_for_all_of_it(tmp_path):
    """Its results would be recorded, and found again, under the name of the whole."""
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            place = tmp_path / split / label
            place.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(place / "0.png")
    with pytest.raises(InputError, match=r"has 2 images in train where cifar10 has 50,000"):
        training_runs.open_data("cifar10", Site(work=tmp_path, folders={"cifar10": tmp_path}))


def test_an_accuracy_by_other_settings_is_measured_anew():
    linear = {"accuracy": "linear", "linear": {"epochs": 100}}
    names = [measurement_name(r) for r in (linear, {**linear, "linear": {"epochs": 90}})]
    assert len(set(names)) == 2


def test_a_run_tells_its_neighbours_by_the_number_that_was_asked_for(tmp_path):
    run = RunDirectory(tmp_path)
    write_json(run.result, {"probe": {"knn20_test": 0.5}})
    found = training_runs.TrainedRun(directory=run, training=None, source=None, earlier=(0, 0))
    assert found.knn(20) == 0.5
    with pytest.raises(InputError, match="holds knn20_test, and the experiment asks for 200"):
        found.knn(200)


def test_figure_2_does_without_no_moment(tmp_path):
    """With a checkpoint gone, the others would be taken for other moments."""
    recipe = recipe_from_dict(moco("mocov2", DESK, count=4096, alpha=None)["training"])
    run = training_runs.TrainedRun(
        directory=RunDirectory(tmp_path), training=recipe, source=None, earlier=(0, 0)
    )
    run.directory.checkpoints.mkdir()
    for step in (585, 1170, 1755, 2340):
        (run.directory.checkpoints / f"step-{step:08d}.pt").touch()
    assert len(kept_moments(run)) == 4
    (run.directory.checkpoints / "step-00001170.pt").unlink()
    with pytest.raises(InputError, match="has 3 kept moments of a training that keeps 4"):
        kept_moments(run)


def test_records_of_abandoned_recipes_are_not_taken_for_further_seeds(tmp_path):
    fig4 = find_experiment("fig4")
    now = fig4.profiles["smoke"][0]
    for recipe, seed in ((now, 0), ({**now, "data": "elsewhere"}, 1)):
        record(recipe, seed, 0.5).write(tmp_path)
    assert [found.seed for found in recorded(fig4, "smoke", tmp_path)] == [0]


def test_what_is_gained_names_what_it_is_gained_over():
    study = find_experiment("study-small-batch")
    records = [
        replace(record(recipe, 0, 0.4), experiment=study.name) for recipe in study.profiles["smoke"]
    ]
    for each in records:
        each.curves["information_kind"] = "bound"
        each.metrics.update(information=1.0, gradient_norm=1.0)
    assert next(iter(study.further(records))).startswith("Gained over batch: InfoNCE, ")
