"""`eqco lab` and `eqco reproduce` as the user meets them."""

import json

import pytest

from eqco.cli.main import main

QUICK = ["--dim", "4", "--hidden-size", "8", "--output-size", "4", "--steps", "5", "--repeats", "3"]


def lab(*options):
    return main(["lab", *QUICK, *options])


def test_lab_prints_a_table_that_labels_every_value(capsys):
    assert lab("--information", "1", "--pairs", "4", "--alpha", "16") == 0
    out = capsys.readouterr().out
    for estimator, kind in (("infonce", "a bound"), ("eqco", "an estimate"), ("ml-cpc", "a bou")):
        (line,) = [line for line in out.splitlines() if estimator in line]
        assert kind in line


def test_lab_json_is_json_alone(capsys):
    assert lab("--information", "1", "2", "--pairs", "4", "--seeds", "0", "1", "--json") == 0
    readings = json.loads(capsys.readouterr().out)
    assert len(readings) == 2 * 2 * 3
    assert {reading["kind"] for reading in readings} == {"bound", "estimate"}
    assert {reading["seed"] for reading in readings} == {0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--information", "-1"],
            "information=-1.0; it must be a finite number of nats, 0 or more",
        ),
        (["--pairs", "1"], "pairs=1"),
        (["--alpha", "0"], "alpha=0.0; it must be a finite number greater than 0"),
        (["--dim", "0"], "dim=0; the vectors need at least 1 dimension"),
        (["--estimators", "dcl"], "there is no estimator 'dcl'. There are: infonce, eqco, ml-cpc"),
        (["--seeds"], "no seeds given"),
        (["--pairs"], "no pairs given"),
        (["--information"], "no information given"),
        (["--estimators"], "no estimators given"),
    ],
)
def test_lab_refuses_bad_input_with_code_2_and_a_line(options, message, capsys):
    assert lab(*options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_reproduce_runs_once_and_resumes(tmp_path, capsys):
    command = ["reproduce", "tab5", "--profile", "smoke", "--results", str(tmp_path)]
    assert main(command) == 0
    records = sorted((tmp_path / "tab5" / "smoke").glob("*.json"))
    written = [path.stat().st_mtime_ns for path in records]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert [path.stat().st_mtime_ns for path in records] == written
    assert (tmp_path / "out" / "tab5-smoke.png").exists()
    assert "Steadiness" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name an experiment, or all. There are: tab5"),
        (["tab55"], "there is no experiment 'tab55'"),
        (["tab5", "--profile", "full"], "tab5 has no profile 'full'"),
    ],
)
def test_reproduce_refuses_bad_input_with_code_2(options, message, capsys):
    assert main(["reproduce", *options]) == 2
    assert message in capsys.readouterr().err
