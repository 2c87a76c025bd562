"""What the documents say of the code stays true."""

import importlib
import re
from pathlib import Path

import pytest

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
