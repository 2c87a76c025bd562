"""`eqco plan` as the user meets it."""

import json
import math
import re

import pytest

from eqco.cli import plan as command
from eqco.cli.help_text import help_text
from eqco.cli.main import main


def test_the_table_has_margin_rate_and_steps(capsys):
    assert main(["plan", "--num-negatives", "16", "--alpha", "256", "--num-queries", "512"]) == 0
    out = capsys.readouterr().out
    for words in ("16 of 511 in the batch", "0.5545", "0.06", "2502", "an estimate", "none"):
        assert words in out


def test_the_parts_of_k_are_shown(capsys):
    assert main(["plan", "--framework", "simclrv2"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "negatives per query K 66046" in lines
    assert "of them in the batch 510 of 510" in lines
    assert "of them in the queue 65536" in lines


def test_warnings_and_the_lines_for_other_code_are_printed(capsys):
    options = ["--framework", "mocov2", "--num-negatives", "16", "--alpha", "65536"]
    assert main(["plan", *options]) == 0
    out = capsys.readouterr().out
    assert "Note: K = 16 with a queue" in out
    assert "logits[:, 1:] += math.log(65536 / 256)" in out
    for library in ("eqco:", "MoCo's code:", "lightly:", "pytorch-metric-learning:"):
        assert f"\n{library} " in out


def test_json_is_json_alone_and_strict(capsys):
    assert main(["plan", "--alpha", "inf", "--json"]) == 0

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    answer = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert answer["margin"] is answer["ceiling"] is answer["alpha"] is None
    assert answer["num_negatives"] == 16
    assert answer["snippets"][0]["library"] == "eqco"


def test_a_method_without_negatives_says_so(capsys):
    assert main(["plan", "--framework", "byol"]) == 0
    out = capsys.readouterr().out
    assert ["negatives", "per", "query", "K", "none"] in map(str.split, out.splitlines())
    assert "Note: byol has no negatives" in out
    assert "margin m" not in out
    assert main(["plan", "--framework", "swav", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["total_steps"] == 5004 * 200
    assert not {"num_negatives", "alpha", "margin", "ceiling"} & set(answer)


def test_a_memory_budget_is_read_with_its_unit(capsys):
    assert main(["plan", "--framework", "mocov2", "--memory", "64MB", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["num_negatives"] == 117_320
    assert math.isclose(answer["ceiling"], math.log(117_321))


def examples():
    _, _, text = help_text(command.run.__doc__).partition("Examples:")
    return re.findall(r"eqco (plan .*)", text)


@pytest.mark.parametrize("line", examples())
def test_the_examples_of_the_help_work(line, capsys):
    assert main(line.split()) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-negatives", "256"], "--num-negatives=256, but a batch of --num-queries=256"),
        (["--memory", "lots"], "--memory 'lots' is not a size"),
        (["--framework", "cmc", "--memory", "1GB"], "and cmc has memory banks with a row for each"),
        (["--framework", "pirl", "--dataset-size", "500"], "=32000, but a bank of --dataset-size"),
        (["--framework", "moco"], "there is no recipe 'moco'. There are: simo, mocov1"),
        (
            ["--alpha", "-1"],
            "--alpha=-1.0; it says how many negatives those present stand in for",
        ),
    ],
)
def test_bad_input_is_refused_with_code_2_and_a_line(options, message, capsys):
    assert main(["plan", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def metrics_of(folder, *lines):
    folder.mkdir()
    text = [json.dumps({"step": 10 * number, **line}) for number, line in enumerate(lines, 1)]
    (folder / "metrics.jsonl").write_text("\n".join(text) + "\n")
    return str(folder)


SATURATED = {
    "positive_probability": 0.68, "weight_ratio": 1.0, "effective_negatives": 3.1,
    "weight_bias": 0.07, "num_negatives": 4, "margin": 0.0,
}  # fmt: skip


def test_a_run_that_is_saturated_is_told_to_set_alpha(capsys, tmp_path):
    early = {**SATURATED, "positive_probability": 0.2}
    run = metrics_of(tmp_path / "run", {"loss": 1.0}, early, *[early] * 3, SATURATED)
    assert main(["plan", "--from", run]) == 0
    out = capsys.readouterr().out
    for words in ("steps 60 to 60", "0.680", "Set alpha", "--objective.alpha 65536"):
        assert words in out
    assert main(["plan", "--from", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["positive_probability"] == 0.68


def test_there_is_no_advice_on_a_run_without_negatives(capsys, tmp_path):
    run = metrics_of(tmp_path / "run", {"embedding_rank": 9.0})
    assert main(["recipes", "byol"]) == 0
    (tmp_path / "run" / "recipe.json").write_text(capsys.readouterr().out)
    assert main(["plan", "--from", run]) == 2
    assert "byol has no negatives, so that there is nothing to say" in capsys.readouterr().err


def test_there_is_no_advice_on_a_run_with_dot_products(capsys, tmp_path):
    run = metrics_of(tmp_path / "run", {"embedding_rank": 9.0})
    assert main(["recipes", "cpcv2"]) == 0
    recipe = json.loads(capsys.readouterr().out)
    recipe["method"]["similarity"] = "dot"
    (tmp_path / "run" / "recipe.json").write_text(json.dumps(recipe))
    assert main(["plan", "--from", run]) == 2
    said = capsys.readouterr().err
    assert "cpc was trained with --method.similarity dot, and saturation is read from" in said
    assert "Train with --method.similarity cosine --objective.temperature 0.2." in said


def test_a_run_without_diagnostics_is_refused(capsys, tmp_path):
    assert main(["plan", "--from", metrics_of(tmp_path / "run", {"loss": 1.0})]) != 0
    assert "--training.diagnose-every" in capsys.readouterr().err
    assert main(["plan", "--from", str(tmp_path / "nowhere")]) != 0
    assert "no run with metrics is there" in capsys.readouterr().err
