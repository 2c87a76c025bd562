"""What the documents say of the code stays true."""

import functools
import importlib
import importlib.util
import json
import re
import shlex
from dataclasses import replace

import pytest
import torch
from filling import FILLING, ROOT

from eqco.runtime.errors import InputError
from eqco.runtime.records import Record, read_record, require_committed

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
    [
        path
        for folder in (ROOT, ROOT / "docs", ROOT / "docs/api")
        for path in sorted(folder.glob("*.md"))
    ],
    ids=lambda path: path.name,
)
def test_links_inside_the_project_lead_somewhere(document):
    text = document.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), f"{document.name} points to {target}"


def test_make_bench_runs_every_benchmark():
    names = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    scripts = (ROOT / "benchmarks").glob("*.py")
    files = {path.stem for path in scripts if "__main__" in path.read_text()}
    assert set(names[1].split()) == files


def blocks(language, document="README.md"):
    text = (ROOT / document).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_blocks(document):
    names = {"__name__": "page"}
    for block in blocks("python", document):
        exec(compile(block, document, "exec"), names)
    return names


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        *(f"docs/{name}.md" for name in ("index", "batch_16", "small_batches", "text_and_clip")),
    ],
)
def test_the_python_of_a_page_runs(document, capsys):
    assert run_blocks(document)["loss"].item() > 0


def test_tools_for_small_batches_take_few_lines():
    assert all(len(block.splitlines()) < 10 for block in blocks("python", "docs/small_batches.md"))


def test_the_python_about_own_photos_runs(tmp_path, monkeypatch):
    import eqco

    monkeypatch.chdir(tmp_path)
    photos = torch.randint(256, (64, 3, 16, 16), dtype=torch.uint8)
    recipe = eqco.named_recipe("simo", "smoke")
    eqco.train(photos, recipe, out="runs/photos", show=lambda report: None)
    names = run_blocks("docs/own_photos.md")
    assert names["nearest"][0] == 0, "a photo is most like itself"


@pytest.mark.end_to_end
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of Lightning, about torch
def test_the_python_about_own_loops_runs(tmp_path, monkeypatch):
    """DDP and Lightning as they come, with one process."""
    pytest.importorskip("lightning", reason="lightning is not installed")
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")  # any that is free
    names = run_blocks("docs/own_loop.md")
    assert names["loss"].item() > 0
    assert names["trainer"].global_step == 4


def commands():
    """Every line of a block of commands that begins with eqco."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for line in "\n".join(blocks("bash", path.relative_to(ROOT))).splitlines():
            if line.startswith("eqco "):
                yield line.split("#")[0].strip()


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_of_the_documents_is_understood(command, monkeypatch, tmp_path):
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


@pytest.mark.parametrize("document", FILLING.DOCUMENTS, ids=lambda path: path.name)
def test_tables_agree_with_the_records(document):
    text = document.read_text()
    assert "<!-- block" in text
    assert FILLING.fill(text) == text, "run `make documents`"


@pytest.mark.parametrize("picture", FILLING.PICTURES)
def test_pictures_were_drawn_from_the_records(picture):
    drawn = FILLING.drawn_from(ROOT / "docs" / "images" / picture)
    assert drawn == FILLING.digest(*FILLING.PICTURES[picture]), "run `make documents`"


def test_the_curves_of_quality_were_drawn_from_the_records():
    drawn = FILLING.drawn_from(ROOT / "docs" / "images" / FILLING.QUALITY)
    assert drawn == FILLING.quality_digest(), "run `make documents`"


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
