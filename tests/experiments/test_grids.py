"""Experiments that are tables of trainings: each training once, resumed, compared seed by seed."""

import json
import signal
from dataclasses import replace
from itertools import chain

import pytest
from PIL import Image

from eqco.evaluation.linear import LINEAR_PROTOCOLS
from eqco.experiments import training_runs
from eqco.experiments.accuracy import protocol_name
from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.coordinates import Coordinates
from eqco.experiments.experiment import (
    RunContext,
    command_for,
    missing_runs,
    profile_records,
    reproduce,
)
from eqco.experiments.fig2 import saved_moments
from eqco.experiments.fig4 import cells as fig4_cells
from eqco.experiments.grid import Cell, differences, quantity_table, references, under_infonce
from eqco.experiments.tab2 import CELLS as TAB2_CELLS
from eqco.experiments.tab2 import FEW, OTHER_IMAGES
from eqco.experiments.tasks import framework, moco, simo
from eqco.recipes.profiles import DESK, PAPER, SCALES, SMOKE
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, recipe_hash
from eqco.runtime.run_directory import RunDirectory

GRIDS = [name for name in EXPERIMENTS if "embedded" in EXPERIMENTS[name].profiles]


@pytest.fixture
def trainings(monkeypatch):
    """Notes every training that is begun."""
    begun = []
    train = training_runs.train

    def noting(data, recipe, **options):
        begun.append(recipe)
        return train(data, recipe, **options)

    monkeypatch.setattr(training_runs, "train", noting)
    return begun


def only(experiment, *recipes):
    return replace(experiment, profiles={"smoke": list(recipes)})


def record(task, seed, accuracy, profile="smoke"):
    return Record(
        experiment="trainings",
        profile=profile,
        recipe=task.to_dict(),
        seed=seed,
        metrics={"probe": accuracy, "knn": accuracy / 2},
        code="",
        hardware={},
        seconds=1.0,
    )


@pytest.mark.end_to_end
def test_a_training_that_two_experiments_need_is_done_once(tmp_path, trainings):
    plain = simo(SMOKE, count=None, alpha=None)
    context = RunContext(work=tmp_path / "runs")
    fig4 = reproduce(only(find_experiment("fig4"), plain), "smoke", [0], tmp_path / "a", context)
    tab3 = reproduce(only(find_experiment("tab3"), plain), "smoke", [0], tmp_path / "b", context)
    assert len(trainings) == 1
    assert fig4[0].metrics == tab3[0].metrics
    # the time of the training is counted by both, since each would have needed it alone
    (cost,) = (tmp_path / "runs").glob("*/cost.json")
    training = json.loads(cost.read_text())["seconds"]
    assert min(fig4[0].seconds, tab3[0].seconds) > 0.99 * training


@pytest.mark.end_to_end
def test_a_stopped_reproduction_resumes_and_ends_where_it_would_have(tmp_path, trainings):
    recipe = simo(SMOKE, count=4, alpha=32, epochs=400)
    experiment = only(find_experiment("fig4"), recipe)
    whole = reproduce(
        experiment, "smoke", [0], tmp_path / "a", RunContext(work=tmp_path / "runs a")
    )

    def stop(steps):
        signal.raise_signal(signal.SIGTERM)

    stopping = RunContext(work=tmp_path / "runs b", advance=stop)
    with pytest.raises(InputError, match="stopped by SIGTERM; run the same command to resume"):
        reproduce(experiment, "smoke", [0], tmp_path / "b", stopping)
    assert len(missing_runs(experiment, "smoke", [0], tmp_path / "b")) == 1
    resumed = reproduce(
        experiment, "smoke", [0], tmp_path / "b", RunContext(work=tmp_path / "runs b")
    )
    assert len(trainings) == 2  # the second was resumed, not begun again
    assert resumed[0].metrics == whole[0].metrics
    assert resumed[0].curves == whole[0].curves


def test_no_two_runs_of_a_profile_are_the_same():
    for name in GRIDS:
        for profile, recipes in EXPERIMENTS[name].profiles.items():
            assert len({recipe_hash(task.to_dict()) for task in recipes}) == len(recipes), (
                name,
                profile,
            )


def test_experiments_share_their_baselines():
    """SiMo with all negatives, and MoCo v2 with its whole memory, are trained once in all."""
    for profile, scale in SCALES.items():
        if profile == "few-images":  # has a part of the figures and tables
            continue
        plain = simo(scale, count=None, alpha=None)
        for name in ("fig4", "tab2", "tab3"):
            assert plain in EXPERIMENTS[name].profiles[profile], (name, profile)
        memory = moco("mocov2", scale, count=scale.memory, alpha=None)
        for name in ("fig1", "fig3", "tab1", "tab2", "tab4"):
            assert memory in EXPERIMENTS[name].profiles[profile], (name, profile)
        (task,) = EXPERIMENTS["fig2"].profiles[profile]
        assert task.training == memory


def test_a_training_has_one_name_in_all_experiments():
    """256 and 256.0 are the same α: what is trained for one experiment is found by all."""
    named = {}
    for name in GRIDS:
        for task in chain.from_iterable(EXPERIMENTS[name].profiles.values()):
            training = EXPERIMENTS[name].training(task)
            place = named.setdefault((training.data, training.recipe), training.run_name(0))
            assert training.run_name(0) == place, name


def test_a_training_that_two_experiments_show_has_one_record(tmp_path):
    """Written for one experiment, it is found by every other that shows the same training."""
    fig4, tab3 = find_experiment("fig4"), find_experiment("tab3")
    shared = simo(SMOKE, count=None, alpha=None)
    record(shared, 0, 0.5).write(tmp_path)
    for experiment in (fig4, tab3):
        (found,) = profile_records(experiment, "smoke", tmp_path)
        assert found.recipe == shared.to_dict()
        assert len(missing_runs(experiment, "smoke", [0], tmp_path)) == (
            len(experiment.recipes("smoke")) - 1
        )


def test_a_cell_holds_the_seeds_of_its_run_and_foreign_records_are_left_out():
    cells = fig4_cells(SMOKE, [4], 4096)
    few, most = cells[0].task, cells[1].task
    records = [record(most, 1, 0.3), record(few, 0, 0.2), record(most, 0, 0.4)]
    records.append(record(replace(most, data="elsewhere"), 0, 0.9))
    found = [c for c in quantity_table(cells, records, "probe", "num_negatives") if c.values]
    plain, eqco = Coordinates(loss="infonce"), Coordinates(loss="eqco", alpha=32.0)
    assert [(cell.row, cell.column.num_negatives, cell.values) for cell in found] == [
        (plain, 4, (20.0,)),
        (plain, 31, (40.0, 30.0)),
        (eqco, 31, (40.0, 30.0)),  # with all negatives α = N is InfoNCE
    ]


def test_what_eqco_gains_is_taken_seed_by_seed():
    cells = fig4_cells(SMOKE, [4], 4096)
    plain, eqco = cells[0].task, cells[2].task
    records = [record(plain, 0, 0.2), record(plain, 1, 0.3), record(eqco, 1, 0.5)]
    (gain,) = differences(cells, records, under_infonce, "num_negatives")
    assert gain.row == Coordinates(loss="eqco", alpha=32.0)
    assert gain.values == pytest.approx((20.0,))


def test_the_papers_numbers_are_compared_in_the_papers_setting_alone():
    cells = fig4_cells(DESK, [4, 16], 4096)
    found = [record(cell.task, 0, 0.4, "desk") for cell in cells[:3]]
    table = quantity_table(cells, found, "probe", "num_negatives")
    assert all(cell.difference is None for cell in table)
    cells = fig4_cells(PAPER, [16], 65536)
    found = [replace(record(cell.task, 0, 0.4), metrics={"linear": 0.68}) for cell in cells]
    table = quantity_table(cells, found, "linear", "num_negatives")
    at = Coordinates(loss="eqco", alpha=256.0), Coordinates(num_negatives=16)
    (cell,) = [each for each in table if (each.row, each.column) == at]
    assert cell.difference == pytest.approx(68.0 - 68.1)


def test_a_data_set_that_is_not_there_is_answered_with_what_to_do(tmp_path, monkeypatch):
    def missing(name):
        raise InputError(f"{name} could not be opened.")

    monkeypatch.setattr(training_runs, "open_once", missing)
    with pytest.raises(InputError, match=r"Give its folder with --cifar10 FOLDER"):
        training_runs.open_data("cifar10", RunContext(work=tmp_path))


def test_a_part_of_a_data_set_is_not_taken_for_all_of_it(tmp_path):
    """Its results would be recorded, and found again, under the name of the whole."""
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            place = tmp_path / split / label
            place.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(place / "0.png")
    with pytest.raises(InputError, match=r"has 2 images in train where cifar10 has 50,000"):
        training_runs.open_data("cifar10", RunContext(work=tmp_path, folders={"cifar10": tmp_path}))


def test_an_accuracy_by_other_settings_is_measured_anew():
    protocol = LINEAR_PROTOCOLS["moco"]
    assert protocol_name(protocol) != protocol_name(replace(protocol, epochs=90))


def test_figure_2_does_without_no_moment(tmp_path):
    """With a checkpoint gone, the others would be taken for other moments."""
    recipe = moco("mocov2", DESK, count=4096, alpha=None).recipe
    run = training_runs.TrainedRun(
        directory=RunDirectory(tmp_path), training=recipe, source=None, earlier=(0, 0)
    )
    run.directory.checkpoints.mkdir()
    for step in (585, 1170, 1755, 2340):
        (run.directory.checkpoints / f"step-{step:08d}.pt").touch()
    assert len(saved_moments(run)) == 4
    (run.directory.checkpoints / "step-00001170.pt").unlink()
    with pytest.raises(InputError, match="has 3 saved moments of a training that saves 4"):
        saved_moments(run)


def test_records_of_abandoned_recipes_are_not_taken_for_further_seeds(tmp_path):
    fig4 = find_experiment("fig4")
    now = fig4.profiles["smoke"][0]
    for task, seed in ((now, 0), (replace(now, data="elsewhere"), 1)):
        record(task, seed, 0.5).write(tmp_path)
    assert [found.seed for found in profile_records(fig4, "smoke", tmp_path)] == [0]


def test_few_negatives_are_compared_with_all_of_the_same_loss_and_length():
    study = find_experiment("study-length")
    tasks = study.recipes("smoke")
    records = [record(task, 0, 0.1 * place) for place, task in enumerate(tasks)]
    (gap,) = study.conclude(records).values()
    # rows: all, then few; each with two lengths: few is two places behind all
    assert [(cell.row.loss, cell.row.num_negatives) for cell in gap] == [
        ("infonce", 4),
        ("infonce", 4),
        ("eqco", 4),
        ("eqco", 4),
    ]
    assert [cell.mean for cell in gap] == pytest.approx([20.0] * 4)


def test_a_small_set_is_trained_on_and_judged_by_the_labels_of_the_whole(
    tmp_path, trainings, monkeypatch
):
    monkeypatch.setitem(training_runs.IMAGES, "groceries-60", 60)
    monkeypatch.setitem(training_runs.PARTS, "groceries-60", "groceries")
    seen, train = [], training_runs.train
    monkeypatch.setattr(
        training_runs, "train", lambda data, *more, **options: (
            seen.append(data), train(data, *more, **options))[1],
    )  # fmt: skip
    task = replace(simo(SMOKE, count=4, alpha=None), data="groceries-60")
    run = training_runs.train_once(task, 0, RunContext(work=tmp_path))
    assert len(seen[0]["train"]) == pytest.approx(60, abs=10)  # whole images of each class
    assert set(seen[0]["train"].labels.tolist()) == set(run.source["train"].labels.tolist())
    assert len(run.source["train"]) == training_runs.IMAGES["groceries"]


def test_the_command_for_a_part_names_the_folder_of_the_whole():
    command = command_for(find_experiment("fig4"), "few-images")
    assert command == "eqco reproduce fig4 --profile few-images --cifar10 FOLDER"


def with_references(task, seed, random):
    found = record(task, seed, 0.5)
    found.metrics.update(pixels_probe=0.25, random_probe=random)
    return found


def test_random_weights_of_each_network_have_a_row():
    numbers = {"simo": 0.5, "mocov1": 0.5, "cmc": 0.75, "cpcv2": 0.125}
    records = [with_references(framework(name, SMOKE), 0, each) for name, each in numbers.items()]
    several = references(records)
    assert [(cell.row, cell.values) for cell in several] == [
        ("raw pixels", (25.0,)),
        ("random weights, light", (50.0,)),
        ("random weights, lab:light (cmc)", (75.0,)),
        ("random weights, light-ln (cpc)", (12.5,)),
    ]
    one = references([*records[:2], with_references(framework("simo", SMOKE), 1, 0.5)])
    assert [(cell.row, cell.values) for cell in one] == [
        ("raw pixels", (25.0, 25.0)),
        ("random weights", (50.0, 50.0)),
    ]


def test_information_by_negatives_of_the_own_image_is_called_an_estimate():
    cells = [Cell(at=Coordinates(framework=n), task=framework(n, SMOKE)) for n in ("simo", "cpcv2")]
    records = [record(cell.task, 0, 0.5) for cell in cells]
    for each in records:
        each.metrics["information"] = 1.0
        each.curves["information_kind"] = "bound"
    found = quantity_table(cells, records, "information", "")
    assert [cell.kind for cell in found] == ["bound", "estimate"]


def test_systems_without_negatives_stand_below_a_line_of_table_2():
    for profile in SCALES:
        tasks = EXPERIMENTS["tab2"].profiles[profile]
        found = [record(task, 0, 0.5, profile) for task in tasks]
        for each in found:
            each.metrics["linear"] = 0.5
        below = [cell.part for cell in EXPERIMENTS["tab2"].compare(found) if cell.values]
        titled = [
            "Without negatives" if task.recipe.num_negatives is None else "" for task in tasks
        ]
        assert below == sorted(below)  # last
        assert below.count("Without negatives") == titled.count("Without negatives") > 0


def test_table_2_has_cpc_with_few_negatives_of_other_images_without_and_with_eqco():
    """Both train on 16 drawn for each prediction, and EqCo imitates the profile's memory."""
    for profile in ("desk", "few-images", "embedded", "paper"):
        found = {
            cell.at.alpha: cell.task.recipe
            for cell in TAB2_CELLS[profile]
            if cell.at.framework == OTHER_IMAGES and cell.at.num_negatives == FEW
        }
        assert list(found) == [None, SCALES[profile].memory]
        for alpha, recipe in found.items():
            assert (recipe.method.count, recipe.num_negatives) == (FEW, FEW)
            assert (recipe.method.other_images_only, recipe.objective.alpha) == (True, alpha)


def test_a_quantity_that_older_records_lack_leaves_their_cells_out():
    cells = fig4_cells(SMOKE, [4], 4096)
    task = cells[0].task
    older, newer = record(task, 0, 0.5), record(task, 1, 0.5)
    newer.metrics["positive_probability"] = 0.4
    (cell,) = quantity_table(cells, [older, newer], "positive_probability", "num_negatives")
    assert cell.values == (0.4,)
