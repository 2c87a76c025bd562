"""What the documents say of the code stays true."""

import functools
import importlib
import importlib.util
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, read_record, require_committed

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)


def equations():
    return LINE.findall((ROOT / "docs" / "equations.md").read_text())


def test_every_equation_of_the_paper_has_its_line():
    assert [int(number) for number, *_ in equations()] == list(range(1, 17))


@pytest.mark.parametrize("line", equations(), ids=lambda line: f"eq{line[0]}")
def test_an_equation_names_functions_and_tests_that_exist(line):
    number, _, functions, tests = line
    named = re.findall(r"`(eqco[\w.]+)`", functions)
    assert named, "at least one function"
    for name in named:
        module, attribute = name.rsplit(".", 1)
        function = getattr(importlib.import_module(module), attribute)
        assert re.search(rf"Eq\. .*\b{number}\b", function.__doc__), (
            f"the docstring of {name} does not say that it is Eq. {number}"
        )
    found = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert found, "at least one test"
    for path, test in found:
        assert f"def {test}(" in (ROOT / path).read_text(), f"{path} has no {test}"


@pytest.mark.parametrize(
    "document",
    [path for path in (ROOT, ROOT / "docs") for path in sorted(path.glob("*.md"))],
    ids=lambda path: path.name,
)
def test_links_inside_the_project_lead_somewhere(document):
    text = document.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} points to {target}"


def test_make_bench_runs_every_benchmark():
    recipe = re.search(r"^bench:.*\n\tfor name in (.*?);", (ROOT / "Makefile").read_text(), re.M)
    scripts = (ROOT / "benchmarks").glob("*.py")
    files = {path.stem for path in scripts if "__main__" in path.read_text()}
    assert set(recipe[1].split()) == files


def blocks(language, document="README.md"):
    text = (ROOT / document).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_python_of_the_readme_runs():
    names = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["loss"].item() > 0


def test_the_python_about_small_batches_runs(capsys):
    names = {}
    for block in blocks("python", "docs/small_batches.md"):
        exec(compile(block, "small_batches.md", "exec"), names)
        assert len(block.splitlines()) < 10
    assert names["loss"].item() > 0
    assert capsys.readouterr().out


def commands():
    lines = "\n".join(blocks("bash")).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.startswith("eqco ")]


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_is_understood(command, monkeypatch, tmp_path):
    """Parsed as it stands; what the commands do has tests of its own."""
    from eqco.cli.main import main
    from eqco.recipes import Recipe, recipe_to_dict

    (tmp_path / "runs" / "photos").mkdir(parents=True)  # a run that can be extended
    (tmp_path / "runs" / "photos" / "recipe.json").write_text(json.dumps(recipe_to_dict(Recipe())))
    monkeypatch.chdir(tmp_path)
    name, *rest = shlex.split(command)[1:]
    module, calls = importlib.import_module(f"eqco.cli.{name}"), []

    @functools.wraps(module.run)
    def note(*arguments, **options):
        calls.append((arguments, options))

    monkeypatch.setattr(module, "run", note)
    assert main([name, *rest]) == 0
    assert len(calls) == 1


def filling():
    spec = importlib.util.spec_from_file_location("filling", ROOT / "docs" / "fill_documents.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


FILLING = filling()


@pytest.mark.parametrize("document", FILLING.DOCUMENTS, ids=lambda path: path.name)
def test_tables_agree_with_the_records(document):
    text = document.read_text()
    assert "<!-- block" in text
    assert FILLING.fill(text) == text, "run `make documents`"


@pytest.mark.parametrize("picture", FILLING.PICTURES)
def test_pictures_were_drawn_from_the_records(picture):
    drawn = FILLING.drawn_from(ROOT / "docs" / "images" / picture)
    assert drawn == FILLING.digest(*FILLING.PICTURES[picture]), "run `make documents`"


def test_every_result_has_its_place_in_the_documents():
    """What the README lists leads to a section; nothing recorded or published is left out."""
    sections = re.findall(r'<a id="([\w-]+)"></a>', (ROOT / "docs" / "results.md").read_text())
    assert set(sections) == set(FILLING.EXPERIMENTS)


def dirty_record(folder):
    record = Record(
        experiment="study-bound",
        profile="desk",
        recipe=FILLING.EXPERIMENTS["study-bound"].recipes("desk")[0].to_dict(),
        seed=0,
        metrics={},
        code="0.1.0+0123456789-dirty",
        hardware={},
        seconds=1.0,
    )
    return record.write(folder)


def test_records_of_uncommitted_code_fill_no_document(tmp_path, monkeypatch):
    monkeypatch.setattr(FILLING, "RESULTS", tmp_path)
    path = dirty_record(tmp_path)
    with pytest.raises(InputError) as refusal:
        FILLING.fill("<!-- block study-bound -->\n<!-- end -->")
    assert str(path) in str(refusal.value)
    assert "uncommitted changes" in str(refusal.value)
    assert "Commit, delete it, and run its experiment or benchmark again." in str(refusal.value)


def test_a_training_by_uncommitted_code_fills_no_document_either(tmp_path):
    """The run that measured may be clean while the training it measured was not."""
    record = read_record(dirty_record(tmp_path))
    measured = replace(record, code="0.1.0+1", curves={"trained_by": record.code})
    with pytest.raises(InputError, match="uncommitted"):
        require_committed([measured], tmp_path)
    require_committed([replace(measured, curves={"trained_by": "0.1.0+2"})], tmp_path)
