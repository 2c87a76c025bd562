"""An experiment resumes from its records, run by run, and refuses what it does not have."""

import io
import json
from dataclasses import asdict, dataclass, replace

import pytest
from rich.console import Console

from eqco.experiments.catalog import EXPERIMENTS, find_experiment
from eqco.experiments.experiment import (
    Comparison,
    Experiment,
    RunContext,
    RunResult,
    missing_runs,
    reproduce,
)
from eqco.report.catalog import EXHIBITS, PLOTS
from eqco.report.page import write_page
from eqco.report.summary import write_summary
from eqco.report.words import words
from eqco.runtime.errors import InputError


@dataclass(frozen=True)
class Counted:
    size: int
    alpha: int = 1

    def to_dict(self):
        return asdict(self)


def counting_experiment(done):
    """Three runs that note when they are done."""

    def run(task, seed, context):
        done.append((task.size, seed))
        context.advance(task.size)
        return RunResult(metrics={"size": float(task.size)})

    return Experiment(
        name="counted",
        title="",
        profiles={"smoke": [Counted(3), Counted(1), Counted(2)]},
        seeds={"smoke": (0,)},
        size=lambda task: task.size,
        run=run,
        compare=lambda records: [],
    )


def test_a_run_whose_record_exists_is_skipped(tmp_path):
    done = []
    experiment = counting_experiment(done)
    first = reproduce(experiment, "smoke", [0], tmp_path)
    again = reproduce(experiment, "smoke", [0], tmp_path)
    assert done == [(1, 0), (2, 0), (3, 0)]
    assert again == first


def test_only_what_is_missing_is_run(tmp_path):
    done, steps = [], []
    experiment = counting_experiment(done)
    records = reproduce(experiment, "smoke", [0], tmp_path)
    records[1].path(tmp_path).unlink()
    done.clear()
    reproduce(experiment, "smoke", [0, 1], tmp_path, RunContext(advance=steps.append))
    assert len(done) == 4
    assert set(done) == {(1, 1), (2, 1), (3, 1), (records[1].recipe["size"], 0)}
    assert steps == [size for size, _ in done]


def test_of_each_seed_short_runs_come_first(tmp_path):
    done = []
    reproduce(counting_experiment(done), "smoke", [1, 0], tmp_path)
    assert done == [(1, 1), (2, 1), (3, 1), (1, 0), (2, 0), (3, 0)]


def test_a_run_that_was_stopped_leaves_the_finished_ones(tmp_path):
    done = []
    experiment = counting_experiment(done)

    def stopping(task, seed, context):
        if task.size == 3:
            raise KeyboardInterrupt
        return experiment.run(task, seed, context)

    with pytest.raises(KeyboardInterrupt):
        reproduce(replace(experiment, run=stopping), "smoke", [0], tmp_path)
    assert missing_runs(experiment, "smoke", [0], tmp_path) == [(Counted(3), 0)]


def test_a_changed_recipe_is_run_again(tmp_path):
    done = []
    experiment = counting_experiment(done)
    reproduce(experiment, "smoke", [0], tmp_path)
    changed = replace(experiment, profiles={"smoke": [Counted(1, alpha=2)]})
    reproduce(changed, "smoke", [0], tmp_path)
    assert done[-1] == (1, 0)
    assert len(done) == 4


def test_names_and_profiles_that_do_not_exist_are_answered_with_those_that_do():
    with pytest.raises(InputError, match=r"no experiment 'tab55'. There are: .*tab5"):
        find_experiment("tab55")
    with pytest.raises(InputError, match=r"tab5 has no profile 'full'. There are: smoke, desk, pa"):
        find_experiment("tab5").recipes("full")


def test_no_seeds_is_refused(tmp_path):
    with pytest.raises(InputError, match="no seeds given"):
        reproduce(find_experiment("tab5"), "smoke", [], tmp_path)


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_its_smoke_profile_and_is_shown(name, tmp_path, trained_runs):
    experiment = find_experiment(name)
    done = []
    context = RunContext(advance=done.append, work=trained_runs)
    records = reproduce(experiment, "smoke", experiment.seeds["smoke"], tmp_path, context)
    assert sum(done) == sum(map(experiment.size, experiment.recipes("smoke")))
    assert experiment.compare(records)
    assert experiment.name == name
    for record in records:
        text = record.path(tmp_path).read_text()
        json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} in a record"))
    console = Console(record=True, width=120, file=io.StringIO())
    page, picture = write_summary(console, experiment, records, tmp_path, plot=PLOTS[name])
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    for cell in experiment.compare(records):
        assert f"| {words(cell.row)}" in text
        assert cell.kind in text
    assert "Profile smoke, seeds 0" in text
    assert experiment.heading in console.export_text()
    charts = EXHIBITS[name].charts(records)
    assert any(series.points for chart in charts for series in chart.series)
    shown = write_page(tmp_path, tmp_path / "report.html").read_text()
    assert f'<section id="{name}">' in shown
    assert f'data-charts="{name}/smoke"' in shown


def test_a_comparison_shows_mean_spread_and_difference():
    cell = Comparison(row="", column="", values=(1.0, 2.0, 1.5), published=1.25)
    assert (cell.mean, cell.spread, cell.difference) == (1.5, 1.0, 0.25)
