"""Sweeps: every combination once for each seed, resumed, extended, and told in one table."""

import shutil

import pytest
from photos import save_photos
from torch import nn

from eqco.cli.main import main
from eqco.cli.sweep import parse
from eqco.experiments.sweep import parse_over, sweep_experiment, sweep_table, with_values
from eqco.recipes import Recipe, named_recipe, recipe_to_dict, with_settings
from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, read_records
from eqco.runtime.run_directory import write_json

SMOKE = recipe_to_dict(named_recipe("simo", "smoke"))
SMALL = ["--profile", "smoke", "--training.num-queries", "16", "--method.count", "4"]
SMALL += ["--training.log-every", "1", "--training.diagnose-every", "1", "--ray", "off"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return save_photos(tmp_path_factory.mktemp("sweep") / "photos", 60, classes=3)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Lines are not folded."""
    monkeypatch.setenv("COLUMNS", "250")


def sweep(photos, out, *arguments):
    return main(["sweep", str(photos), *SMALL, "--out", str(out), *arguments])


def records(out):
    return {path.name: path.stat().st_mtime_ns for path in (out / "records" / "sweep").iterdir()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["method.count"], "it must be a setting and its values, such as method.count=4,16,64"),
        (["count=4"], "it must be a setting and its values"),
        (["training.seed=1,2"], "give the seeds by --seeds"),
        (["method.count=4", "method.count=8"], "--over method.count was given twice"),
        (["training.precision=auto, float32"], "such as training.precision=float32,bfloat16"),
        (["training.compile=True,auto"], "such as training.compile=True,False"),
    ],
)
def test_what_is_no_setting_with_values_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        parse_over(given)


def test_words_numbers_and_none_are_told_apart():
    assert parse_over(["objective.alpha=None,inf,1e3", "encoder.backbone=timm:vit,light"]) == {
        "objective.alpha": [None, "inf", 1000.0],
        "encoder.backbone": ["timm:vit", "light"],
    }


def test_settings_that_do_not_exist_are_answered_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'count'"):
        with_values(recipe_to_dict(Recipe()), {"method.coutn": 4})
    with pytest.raises(InputError, match="the groups of settings are training, method"):
        with_values(recipe_to_dict(Recipe()), {"mehtod.count": 4})


def test_the_same_cell_twice_is_refused(photos):
    with pytest.raises(InputError, match="names a value twice"):
        sweep_experiment(str(photos), SMOKE, {"method.count": [4, 4]})


def test_a_cell_is_the_mean_over_its_seeds(photos):
    experiment = sweep_experiment(str(photos), SMOKE, {"objective.alpha": [None, 256]})
    plain, eqco = experiment.profiles["sweep"]
    found = [
        Record(
            experiment="records",
            profile="sweep",
            recipe=task.to_dict(),
            seed=seed,
            metrics={"knn": knn, "loss": 2.0},
            code="",
            hardware={},
            seconds=1.0,
        )
        for task, seed, knn in ((plain, 0, 0.3), (plain, 1, 0.5), (eqco, 1, 0.6))
    ]
    cells = {(cell.row, cell.column): cell for cell in sweep_table([plain, eqco], found)}
    assert cells["objective.alpha=None", "kNN, %"].mean == pytest.approx(40)
    assert cells["objective.alpha=None", "kNN, %"].spread == pytest.approx(20)
    assert cells["objective.alpha=256", "kNN, %"].values == pytest.approx((60,))
    assert ("objective.alpha=None", "probe, %") not in cells  # nobody measured it


def test_results_on_other_numbers_of_images_are_of_other_cells(photos, tmp_path):
    folder, over = shutil.copytree(photos, tmp_path / "photos"), {"method.count": [4]}
    (before,) = sweep_experiment(str(folder), SMOKE, over).profiles["sweep"]
    (same,) = sweep_experiment(str(folder), SMOKE, over).profiles["sweep"]
    shutil.copy(photos / "class-0" / "0000.jpg", folder / "class-0" / "added.jpg")
    (after,) = sweep_experiment(str(folder), SMOKE, over).profiles["sweep"]
    assert (before.images, after.images) == (60, 61)
    assert before.to_dict() == same.to_dict() != after.to_dict()
    assert before.run_name(0) == same.run_name(0) != after.run_name(0)


AUTO = recipe_to_dict(with_settings(Recipe(), precision="auto", compile="auto"))


@pytest.mark.parametrize(("native", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_chosen_once_for_all_cells_and_recorded(photos, native, precision, monkeypatch):
    monkeypatch.setattr("eqco.encoders.precision.has_native_bfloat16", lambda device: native)
    tasks = sweep_experiment(str(photos), AUTO, {"method.count": [4, 8]}).profiles["sweep"]
    for task in tasks:
        recorded = task.to_dict()["training"]["training"]
        assert (recorded["precision"], recorded["compile"]) == (precision, False)


def test_all_cells_take_float32_where_one_network_has_no_gradient_in_bfloat16(photos, monkeypatch):
    monkeypatch.setattr("eqco.encoders.precision.has_native_bfloat16", lambda device: True)
    monkeypatch.setattr(
        "eqco.experiments.sweep.build_evaluated_encoder", lambda *_, **__: Strided()
    )
    over = {"encoder.backbone": ["light", "timm:anything"]}
    tasks = sweep_experiment(str(photos), AUTO, over).profiles["sweep"]
    assert [task.recipe.training.precision for task in tasks] == ["float32", "float32"]


class Strided(nn.Module):
    """Its convolution of stride 8 sees fewer columns."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.AdaptiveAvgPool2d(4), nn.Conv2d(3, 4, 3, stride=8, padding=1)
        )


def test_what_is_named_stays(photos):
    settings = recipe_to_dict(with_settings(Recipe(), precision="float16", compile=True))
    (task,) = sweep_experiment(str(photos), settings, {"method.count": [4]}).profiles["sweep"]
    assert task.recipe.training.precision == "float16"
    assert task.recipe.training.compile is True


def test_a_sweep_says_what_it_took_for_auto(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("eqco.encoders.precision.has_native_bfloat16", lambda device: False)
    monkeypatch.setattr("eqco.cli.sweep.train_all", lambda *_: {})
    auto = ["--over", "method.count=4", "--training.compile", "auto"]
    assert sweep(photos, tmp_path, *auto, "--training.precision", "auto") == 0
    said = capsys.readouterr().out
    assert "all trainings: precision float32 (auto), compile False (auto)" in said
    assert sweep(photos, tmp_path, "--over", "method.count=4") == 0
    assert "(auto)" not in capsys.readouterr().out


def test_the_seeds_of_a_sweep_are_its_own_and_not_those_of_a_recipe_in_a_file(tmp_path):
    recipe = with_settings(named_recipe("simo", "smoke"), seed=3, num_queries=32)
    write_json(tmp_path / "recipe.json", recipe_to_dict(recipe))
    options = parse(["groceries", "--recipe", str(tmp_path / "recipe.json"), "--seeds", "1"])
    assert (options.training.seed, options.training.num_queries, options.seeds) == (0, 32, (1,))


@pytest.mark.end_to_end
def test_a_sweep_ends_with_a_table_and_does_nothing_twice(photos, tmp_path, capsys):
    over = ["--over", "objective.alpha=None,256"]
    assert sweep(photos, tmp_path, *over) == 0
    said = capsys.readouterr().out
    assert "2 trainings of objective.alpha" in said
    assert "Losses are not comparable: they are of different α (None, 256)." in said
    page = (tmp_path / "table.md").read_text()
    assert "| objective.alpha=None |" in page
    assert "kNN, %" in page
    before = records(tmp_path)
    assert sweep(photos, tmp_path, *over, "--seeds", "0", "1") == 0
    said = capsys.readouterr().out
    assert "4 trainings of objective.alpha" in said
    assert "2 done before" in said
    assert "±" in said
    after = records(tmp_path)
    assert len(after) == 4
    assert before.items() <= after.items()


@pytest.mark.end_to_end
def test_a_training_that_diverges_is_named_and_does_not_stop_the_others(photos, tmp_path, capsys):
    over = ["--over", "optimiser.base_learning_rate=1e30,0.1", "--training.epochs", "3"]
    assert sweep(photos, tmp_path, *over) == 2
    said = capsys.readouterr()
    assert "failed: optimiser.base_learning_rate=1e+30, seed 0" in said.out
    assert "1 of the trainings failed" in said.err
    (record,) = read_records(tmp_path, "records", "sweep")
    assert record.recipe["training"]["optimiser"]["base_learning_rate"] == 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to sweep over; give --over"),
        (["--over", "method.count=4", "--cores", "0"], "--cores 0; it must be at least 1"),
        (["--over", "method.count=4", "--restarts", "-1"], "--restarts -1; it must be 0 or more"),
        (["--over", "method.count=4,99"], "count=99"),
        (["--over", "method.count=4", "--training.seed", "3"], "--training.seed 3; give --seeds"),
        (["--over", "method.count=4", "--device", "toaster"], "--device toaster is no device"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_it_begins(
    photos, tmp_path, arguments, message, capsys
):
    assert sweep(photos, tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
